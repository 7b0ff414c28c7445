"""Shows a verdict: one sentence first, then engine by engine, causes with what restores parity, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crosstrain.client import Client
from crosstrain.compare.verdict import read_verdict
from crosstrain.labels import engine_label, run_label
from crosstrain.results import JobRecord, Results, write_results
from crosstrain.results.cross_evaluation import CrossEvaluation
from crosstrain.results.names import error_reason
from crosstrain.spec import EngineEntry, parse_entry
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

from . import connect, showing
from .exits import COULD_NOT_RUN, CommandError
from .options import Connection
from .output import Output

_HEADER = ("engine", "verdict", "checks", "failed", "worst/bound", "departs", "horizon")
#: Failed places named per cause; verdict.json has all.
_PLACES = 4


def exit_code(results: Results) -> int:
    """The verdict's exit code; that of the job's end where there is no verdict."""
    code = showing.exit_code(results.record)
    if results.verdict is not None:
        return int(results.verdict["exit_code"])
    reached = results.record.verdict
    return COULD_NOT_RUN if reached is not None and reached.HasField("error") else code


def show_verdict(output: Output, results: Results) -> None:
    """Prints the verdict of a job, or why it has none."""
    if results.verdict is not None:
        show_document(output, results.verdict)
    elif results.record.verdict is not None:
        error = results.record.verdict.error
        output.text()
        output.text(f"no verdict: {error_reason(error.reason)}: {error.message}")


def show_document(output: Output, document: dict[str, Any]) -> None:
    """Prints a verdict document."""
    engines = document["engines"]
    output.text()
    output.table("", _HEADER, [_row(engine) for engine in engines], "llrrrrr")
    for engine in engines:
        for cause in engine["causes"]:
            _show_cause(output, engine["label"], cause)
    if document["could_not_compare"]:
        output.text()
    for failure in document["could_not_compare"]:
        output.text(f"could not compare: {failure['what']}: {failure['reason']}")
    output.text()
    output.text(f"{document['verdict']}: {document['sentence']}")
    for step in document["next_steps"]:
        output.text(f"next: {step}")


def _show_cause(output: Output, label: str, cause: dict[str, Any]) -> None:
    places = cause["where"][:_PLACES]
    more = len(cause["where"]) - len(places)
    where = ", ".join(places) + (f" and {more} more" if more > 0 else "")
    name = " + ".join(cause["ids"]) or "cause unknown"
    output.text()
    output.text(f"{label}: {name} ({where}; case {cause['case']}, step {cause['step']})")
    output.text(f"  {cause['says']}")
    worst = cause["worst"]
    if cause["unknown"] and worst is not None:
        place = ", ".join(map(str, worst["coordinates"]))
        output.text(
            f"  at ({place}) found {worst['found']}, expected {worst['expected']} within {worst['bound']}"
        )
    if cause["restore"]:
        output.text(f"  To restore parity: {cause['restore']}")
    if cause["also"]:
        output.text(f"  The same values would come from: {', '.join(cause['also'])}")


def _row(engine: dict[str, Any]) -> list[Any]:
    certificate, free = engine["certificate"], engine["free_run"]
    ratios = [float(item["ratio"]) for item in certificate["worst"] if item["ratio"] is not None]
    return [
        engine["label"],
        engine["verdict"],
        certificate["checks"] if certificate["possible"] else "none",
        certificate["failed"] if certificate["possible"] else None,
        f"{max(ratios):.2g}" if ratios else None,
        _step(free, "departed_step"),
        _step(free, "horizon_step"),
    ]


def _step(free: dict[str, Any] | None, name: str) -> str | None:
    if free is None:
        return None
    return f"step {free[name]}" if free[name] >= 0 else "never"


def verdict(connection: Connection, job_id: str, folder: Path | None) -> int:
    """Fetches the verdict of a job that has ended, writes its results again and shows it."""
    output = connection.output
    with connect.connected(connection) as client:
        job = client.get_job(job_id)
        if job.state == coordinator_pb2.JOB_STATE_RUNNING:
            raise CommandError(f"the job {job_id} has not ended", remedy=f"crosstrain watch {job_id}")
        if not job.verdict_digest and not job.HasField("verdict_error"):
            raise CommandError(
                f"the job {job_id} was not judged", remedy="crosstrain check, or crosstrain run without --no-verdict"
            )
        if folder is not None:
            results = write_results(client, job_id, folder)
            document, code = results.verdict, exit_code(results)
        else:
            record = JobRecord(job)
            document = _read(client, job.verdict_digest) if job.verdict_digest else None
            results = Results(Path(), record, [], CrossEvaluation([], []), document)
            code = exit_code(results)
    output.document(document)
    show_verdict(output, results)
    return code


def compare(connection: Connection, first: str, second: str, folder: Path | None) -> int:
    """Judges two finished runs; returns the verdict's exit code."""
    output = connection.output
    with connect.connected(connection) as client:
        run_a, run_b = find_runs(client, first, second)
        response = client.compare_runs(run_a, run_b)
        document = _read(client, response.verdict_digest)
        records = _records(client, (first, run_a), (second, run_b)) if folder is not None else []
    output.document(document)
    output.text(f"{run_a} and {run_b}")
    for pair in document["pairs"]:
        _show_pair(output, pair)
    show_document(output, document)
    if folder is not None:
        write_files(folder, document, records, (run_a, run_b))
        output.text(f"The verdict is in {folder}: verdict.json, verdict.junit.xml, report.html.")
    return int(document["exit_code"])


def write_files(
    folder: Path, document: dict[str, Any], records: Sequence[JobRecord], run_ids: Sequence[str]
) -> None:
    """verdict.json, verdict.junit.xml and report.html of a comparison of runs of these jobs."""
    from crosstrain.compare.verdict import junit_xml, verdict_json
    from crosstrain.report import from_runs, write_report
    from crosstrain.results.files import replace_folder

    def write(aside: Path) -> dict[str, Any]:
        (aside / "verdict.json").write_text(verdict_json(document), encoding="utf-8", newline="")
        (aside / "verdict.junit.xml").write_text(junit_xml(document), encoding="utf-8", newline="")
        write_report(aside / "report.html", document, from_runs(records, run_ids))
        return {"verdict": document["verdict"], "exit_code": document["exit_code"]}

    replace_folder(folder, f"comparison of {document['job_name']}", write)


def _records(client: Client, *runs: tuple[str, str]) -> list[JobRecord]:
    """The jobs of runs, each given as it was named and by its id, with their events; known ones only."""
    found: dict[str, JobRecord] = {}
    for given, run_id in runs:
        parts = run_id.split(".")
        names = [given.partition("/")[0], *(".".join(parts[:count]) for count in range(1, len(parts)))]
        for name in dict.fromkeys(names):
            try:
                job = found[name].job if name in found else client.get_job(name)
            except CrosstrainError:
                continue
            if any(record.run.run_id == run_id for record in job.runs):
                # Watching a job that is still running would wait for its end.
                if job.job_id not in found and job.state != coordinator_pb2.JOB_STATE_RUNNING:
                    found[job.job_id] = JobRecord(job).add_all(client.watch_job(job.job_id, 0))
                break
    return list(found.values())


def find_runs(client: Client, first: str, second: str) -> tuple[str, str]:
    """Ids of two runs, each given as RUN, JOB or JOB/ENGINE; two jobs must share exactly one engine then.

    Raises:
        CommandError: nothing, or more than one run, is meant.
    """
    a, b = _candidates(client, first), _candidates(client, second)
    if len(a) == 1 and len(b) == 1:
        return next(iter(a.values())), next(iter(b.values()))
    # One side names an engine, or both name jobs: the engine they have in common is meant.
    for narrow, wide in ((a, b), (b, a)):
        if len(narrow) == 1 and not wide.keys().isdisjoint(narrow):
            key = next(iter(narrow))
            return a[key], b[key]
    shared = [key for key in a if key in b]
    if len(shared) == 1:
        return a[shared[0]], b[shared[0]]
    for given, found in ((first, a), (second, b)):
        if len(found) != 1:
            names = ", ".join(f"{given.partition('/')[0]}/{key}" for key in found) or "none"
            raise CommandError(f"{given} does not name one run", remedy=f"name one of: {names}")
    raise CommandError("the two do not name one run each")


def _candidates(client: Client, given: str) -> dict[str, str]:
    """Runs that a name may mean, by label: training runs of repeat 0, else probes.

    A name without brackets means the run without them, if there is one.
    """
    job_id, _, engine = given.partition("/")
    try:
        entry = parse_entry(engine) if engine else EngineEntry("")
    except ValueError as error:
        raise CommandError(f"{given}: {error}") from None
    try:
        job = client.get_job(job_id)
    except CrosstrainError as error:
        if error.reason != "JOB_NOT_FOUND" or engine:
            raise
        return {given: given}
    found: dict[str, str] = {}
    for kind in (run_pb2.RUN_KIND_TRAIN, run_pb2.RUN_KIND_PROBE):
        for record in job.runs:
            purposes = (coordinator_pb2.RUN_PURPOSE_TRAIN, coordinator_pb2.RUN_PURPOSE_PROBE)
            if record.run.kind != kind or record.repeat or record.purpose not in purposes:
                continue
            plain = engine_label(record.run.engine, record.run.engine_version)
            fits = not engine or entry.base in (plain, record.run.engine) or plain.startswith(entry.base)
            if fits and (not entry.settings or entry.variant == record.variant):
                found[run_label(record)] = record.run.run_id
        plain_ones = {label: run_id for label, run_id in found.items() if not label.endswith("]")}
        if found:
            return plain_ones if engine and plain_ones else found
    return found


def _show_pair(output: Output, pair: dict[str, Any]) -> None:
    if pair["steps_compared"]:
        same = "bitwise equal losses" if pair["losses_equal"] else (
            f"losses differ from step {pair['first_different_step']} on, at most by {pair['max_abs_difference']} "
            f"(step {pair['max_difference_step']})"
        )
        output.text(f"{pair['steps_compared']} steps compared: {same}")
    for fact in pair["fact_differences"]:
        output.text(f"  {fact['name']}: {fact['a'] or 'none'} | {fact['b'] or 'none'}")


def _read(client: Client, digest: str) -> dict[str, Any]:
    return read_verdict(client.read(digest))
