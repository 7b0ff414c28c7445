"""``crosstrain migrate``: what would change if a job moved from one framework to another with its defaults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crosstrain.results import Results

from . import verdicts
from .execution import execute
from .exits import MISMATCH, OK, USAGE, CommandError
from .jobfile import read_job
from .options import Connection
from .output import Output
from .running import checking


def migrate(connection: Connection, path: Path, origin: str, target: str, folder: Path | None) -> int:
    """Checks both engines in native semantics and lists what they do differently; returns the exit code."""
    if origin == target:
        raise CommandError("--from and --to name the same engine", USAGE)
    job = checking(read_job(path), [origin, target], "native")

    def show(output: Output, results: Results, _left_out: dict[str, str]) -> int:
        return show_changes(output, results)

    return execute(connection, job, folder, show=show)


def show_changes(output: Output, results: Results) -> int:
    """Prints what changes between the first and the second engine of a verdict over two."""
    document = results.verdict
    code = verdicts.exit_code(results)
    if document is None or len(document["engines"]) != 2 or document["could_not_compare"]:
        output.document({"changes": None, "verdict_document": document, "exit_code": code})
        verdicts.show_verdict(output, results)
        return code
    origin, target = document["engines"]
    found = changes(origin, target)
    code = MISMATCH if any(found[name] for name in ("gained", "lost", "unknown")) else OK
    output.document({**found, "from": origin["label"], "to": target["label"], "exit_code": code,
                     "results": str(results.folder)})  # fmt: skip
    _show(output, origin["label"], target["label"], found)
    output.text(f"Evidence is in {results.folder}: report.html, verdict.json.")
    return code


def changes(origin: dict[str, Any], target: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Conventions of the target alone ("gained"), of the origin alone ("lost"), of both ("shared"), and what
    neither explains ("unknown"). Each by its ids, with title, what it says, where, and what restores parity.
    """
    before, after = _by_ids(origin["causes"]), _by_ids(target["causes"])
    unknown = [
        {"engine": engine["label"], "where": cause["where"], "says": cause["says"], "case": cause["case"]}
        for engine in (origin, target)
        for cause in engine["causes"]
        if cause["unknown"]
    ]
    return {
        "gained": [after[ids] for ids in after if ids not in before],
        "lost": [before[ids] for ids in before if ids not in after],
        "shared": [after[ids] for ids in after if ids in before],
        "unknown": unknown,
    }


def _by_ids(causes: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for cause in causes:
        if cause["unknown"]:
            continue
        ids = tuple(cause["ids"])
        kept = {name: cause[name] for name in ("ids", "title", "says", "restore")}
        entry = found.setdefault(ids, {**kept, "where": []})
        entry["where"] += [place for place in cause["where"] if place not in entry["where"]]
    return found


def _show(output: Output, origin: str, target: str, found: dict[str, list[dict[str, Any]]]) -> None:
    output.text()
    if not any(found.values()):
        output.text(f"Nothing changes from {origin} to {target}: both compute the canonical function.")
        return
    parts = (
        ("gained", f"{target} does otherwise than {origin}:"),
        ("lost", f"{origin} does so, {target} does not:"),
        ("shared", "Both depart from the canonical function in the same way, so that nothing changes by it:"),
    )
    for name, title in parts:
        if not found[name]:
            continue
        output.text(title)
        for item in found[name]:
            output.text(f"- {' + '.join(item['ids'])}: {item['title']} ({', '.join(item['where'][:4])})")
            output.text(f"  {item['says']}")
            if item["restore"]:
                output.text(f"  To restore parity: {item['restore']}")
        output.text()
    for item in found["unknown"]:
        output.text(f"unknown in {item['engine']}: {', '.join(item['where'])}: {item['says']}")
