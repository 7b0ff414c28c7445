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
    suffix = f"{name}.{part}"
    if len(job_id) + len(suffix) > LIMIT:
        tag = hashlib.sha256(job_id.encode()).hexdigest()[:12]
        job_id = f"{job_id[: LIMIT - len(suffix) - 13]}-{tag}"
    return job_id + suffix
