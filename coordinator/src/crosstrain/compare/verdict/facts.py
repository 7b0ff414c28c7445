"""Facts of two runs' fingerprints that differ and may matter."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Last parts of names whose values tell runs apart and nothing else.
_RUN_ONLY = frozenset(
    "run_id job_id probe_run_id attempt repeat pid ppid process_id port host hostname started started_at start_time "
    "ended created time timestamp uptime temp tmp tmpdir workdir directory folder path cwd user".split()
)
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:\\|/)[^\s,;:=\"']+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def fact_differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[dict[str, str]]:
    """Facts whose values differ, by name, as rows with ``name``, ``a`` and ``b``; a fact that is missing is "".

    Left out are facts that differ between any two runs: identifiers, process numbers, ports and times, and
    differences of paths and addresses alone.
    """
    rows = []
    for name in sorted(a.keys() | b.keys()):
        left, right = a.get(name, ""), b.get(name, "")
        if _compared(left) != _compared(right) and not _run_only(name):
            rows.append({"name": name, "a": left, "b": right})
    return rows


def _run_only(name: str) -> bool:
    return name.replace("-", "_").lower().rsplit(".", 1)[-1] in _RUN_ONLY


def _compared(value: str) -> str:
    return _ADDRESS.sub("<address>", _PATH.sub("<path>", value))
