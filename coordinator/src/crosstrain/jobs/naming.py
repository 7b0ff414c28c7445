"""Ids of jobs and runs."""

from __future__ import annotations

import hashlib
import re
import secrets

from crosstrain_service.convert import check_name

#: Largest number of characters of an id.
LIMIT = 128
_SUFFIX = 60


def new_job_id() -> str:
    """An id for a job whose client chose none."""
    return f"job-{secrets.token_hex(6)}"


def check_job_id(value: str) -> str:
    """The id, if it is one; raises ``INVALID_FIELD``."""
    return check_name(value, "job_id")


def run_id(job_id: str, engine: str, version: str, variant: str, part: str) -> str:
    """``<job id>.<engine>-<version>[-<variant>].<part>`` of at most 128 letters, digits, "-", "_", ".".

    ``part`` is the repeat, or "evaluate". A long job id is cut and told apart by a hash, as is a variant.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", f".{engine}-{version}")[:_SUFFIX]
    if variant:
        told = "-" + re.sub(r"[^A-Za-z0-9_.-]", "-", variant.replace("=", ""))
        if len(name) + len(told) > _SUFFIX:
            name = name[: _SUFFIX - 13]
            told = f"-{hashlib.sha256(variant.encode()).hexdigest()[:12]}"
        name += told
    return _ending(job_id, f"{name}.{part}")


def member_run_id(run_id: str, member: int, start: int) -> str:
    """Id of the run of a group's member other than its leader; ``start`` counts its runs from 1."""
    return _ending(run_id, f"-m{member}" + (f".{start}" if start > 1 else ""))


def _ending(text: str, suffix: str) -> str:
    """A text with a suffix, at most 128 characters long; a long text is cut and told apart by a hash."""
    if len(text) + len(suffix) > LIMIT:
        tag = hashlib.sha256(text.encode()).hexdigest()[:12]
        text = f"{text[: LIMIT - len(suffix) - 13]}-{tag}"
    return text + suffix
