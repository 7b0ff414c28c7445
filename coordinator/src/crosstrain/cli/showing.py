"""The comparison table and where to look, at the end of a job."""

from __future__ import annotations

from typing import Any

from crosstrain.results import JobRecord, Results, RunRecord, summary
from crosstrain.results.names import error_reason, job_state, run_state
from crosstrain_protos.v1 import coordinator_pb2, run_pb2

from .exits import COULD_NOT_RUN, INTERRUPTED, OK
from .output import Output

# Two tables of at most 80 columns each, since that is how wide many terminals are.
_HEADER = ("engine", "steps", "loss", "test %", "train s", "samples/s", "peak MB")
_AGAINST = ("|loss - reference|", "steps 0-9", "all steps", "first above 1e-6")


def exit_code(record: JobRecord) -> int:
    """What a job's end means for the command that waited for it."""
    if record.state == coordinator_pb2.JOB_STATE_SUCCEEDED:
        return OK
    return INTERRUPTED if record.state == coordinator_pb2.JOB_STATE_CANCELLED else COULD_NOT_RUN


def show_results(output: Output, results: Results, left_out: dict[str, str]) -> int:
    """Prints the comparison and returns the exit code."""
    from . import verdicts

    record = results.record
    code = verdicts.exit_code(results)
    output.document(results_json(results, left_out, code))
    if record.training_runs() or record.evaluation_runs():
        output.text()
        comparison_table(output, results)
        rank_table(output, results)
        cross_table(output, results)
    for run in record.runs.values():
        if run.error is not None:
            output.text(
                f"{run.label}: {run_state(run.state)}: {error_reason(run.error.reason)}: {run.error.message}"
            )
    if record.error is not None:
        output.text(f"job {job_state(record.state)}: {record.error.message}")
    for engine, reason in left_out.items():
        output.text(f"left out: {engine}: {reason}")
    verdicts.show_verdict(output, results)
    output.text()
    files = "results.csv, epochs.csv, steps.parquet, run.log and more"
    if results.verdict is not None:
        files = "report.html (open it in a browser), verdict.json, verdict.junit.xml, run.log and more"
    output.text(f"Results are in {results.folder}: {files}.")
    return code


def results_json(results: Results, left_out: dict[str, str], code: int) -> dict[str, Any]:
    """All that the tables show, as JSON values."""
    return {
        **summary(results.record),
        "comparison": [vars(item) for item in results.differences],
        "cross_evaluation": [
            {
                "weights_of": pair[0],
                "evaluated_in": pair[1],
                "accuracy_pct": pair[2],
                "images_differing": pair[5],
            }
            for pair in results.cross.pairs
        ],
        "verdict_document": results.verdict,
        "left_out": left_out,
        "results": str(results.folder),
        "exit_code": code,
    }


def comparison_table(output: Output, results: Results) -> None:
    """One row per training run, with its distance from the reference engine if that ran."""
    runs = results.record.training_runs()
    if not runs:
        _evaluation_table(output, results)
        return
    output.table("", _HEADER, [_row(run) for run in runs], "lrrrrrr")
    if not results.differences:
        return
    distances = {(item.label, item.repeat): item for item in results.differences}
    rows = []
    for run in runs:
        item = distances.get((run.label, run.repeat))
        if item is not None:
            first = "none" if item.first_above is None else f"step {item.first_above}"
            rows.append([_name(run), _scientific(item.early), _scientific(item.largest), first])
    output.text()
    output.table("", _AGAINST, rows, "lrrr")


def rank_table(output: Output, results: Results) -> None:
    """How the runs on several ranks were spread, and what that cost; nothing without one."""
    told = summary(results.record)
    rows = []
    hints = []
    for run in results.record.training_runs():
        spread = next((item["ranks"] for item in told["runs"] if item["run_id"] == run.run_id), None)
        if spread is None:
            continue
        imbalance, share = spread["imbalance"], spread["sync_share"]
        rows.append(
            [
                _name(run),
                spread["ranks"],
                spread["backend"],
                spread["share"],
                None if share is None else f"{100.0 * share:.1f}",
                None if imbalance is None else f"{imbalance:.2f}",
            ]
        )
        if spread["hint"]:
            hints.append(f"{_name(run)}: {100.0 * share:.0f} % of the time waiting for other ranks ({spread['hint']})")
    if not rows:
        return
    output.text()
    output.table("", ("engine", "ranks", "backend", "batch share", "waiting %", "imbalance"), rows, "lrlrrr")
    if told["training"] is not None:
        output.text(f"In every engine {told['training']['text']}.")
    for hint in hints:
        output.text(hint)


def cross_table(output: Output, results: Results) -> None:
    """Accuracy of every engine's weights, and where another engine classifies an image otherwise with them.

    The whole matrix is in cross_evaluation.csv.
    """
    pairs = results.cross.pairs
    if not pairs:
        return
    engines = len({pair[1] for pair in pairs})
    rows = []
    for owner in dict.fromkeys(pair[0] for pair in pairs):
        mine = [pair for pair in pairs if pair[0] == owner]
        own = next((pair for pair in mine if pair[1] == owner), mine[0])
        otherwise = [f"{pair[5]} in {pair[1]}" for pair in mine if pair[5]]
        rows.append([owner, f"{own[2]:.2f}", ", ".join(otherwise) or "none"])
    output.text()
    header = ("weights of", "test %", f"classified otherwise in any of {engines} engines")
    output.table("", header, rows, "lrl")


def _evaluation_table(output: Output, results: Results) -> None:
    rows = [
        (
            run.label,
            item.weights_digest[:12],
            100.0 * item.correct / max(1, item.samples),
            item.loss,
            item.samples,
        )
        for run in results.record.evaluation_runs()
        for item in run.evaluations
    ]
    output.table("", ("engine", "weights", "accuracy %", "loss", "images"), rows, "llrrr")


def _row(run: RunRecord) -> list[Any]:
    result = run.result
    speed = None
    steps = run.steps()
    if result is not None and result.train_seconds > 0:
        speed = f"{steps['samples'].sum() / result.train_seconds:.0f}"
    has_accuracy = result is not None and result.HasField("test_accuracy")
    succeeded = run.state == run_pb2.RUN_STATE_SUCCEEDED
    return [
        _name(run) if succeeded else f"{_name(run)} ({run_state(run.state)})",
        run.last_step + 1,
        None if run.last_loss is None else f"{run.last_loss:.6f}",
        f"{100.0 * result.test_accuracy:.2f}" if result is not None and has_accuracy else None,
        f"{result.train_seconds:.1f}" if result is not None else None,
        speed,
        f"{result.resources.memory_peak_bytes / 1e6:.0f}" if result is not None else None,
    ]


def _name(run: RunRecord) -> str:
    """Engine and version, with the repeat where it is not the first."""
    return f"{run.label} #{run.repeat}" if run.repeat else run.label


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"
