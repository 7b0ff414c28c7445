"""The comparison table and where to look, at the end of a job."""

from __future__ import annotations

from typing import Any

from crosstrain.results import JobRecord, Results, RunRecord, summary
from crosstrain.results.names import error_reason, job_state, run_state
from crosstrain_protos.v1 import coordinator_pb2

from .exits import COULD_NOT_RUN, INTERRUPTED, OK
from .output import Output

_HEADER = ("engine", "repeat", "state", "steps", "final loss", "test %", "train s", "samples/s", "peak MB")
_AGAINST = ("max |loss - ref|, steps 0-9", "all steps", "first step > 1e-6")


def exit_code(record: JobRecord) -> int:
    """What a job's end means for the command that waited for it."""
    if record.state == coordinator_pb2.JOB_STATE_SUCCEEDED:
        return OK
    return INTERRUPTED if record.state == coordinator_pb2.JOB_STATE_CANCELLED else COULD_NOT_RUN


def show_results(output: Output, results: Results, left_out: dict[str, str]) -> int:
    """Prints the comparison and returns the exit code."""
    record = results.record
    code = exit_code(record)
    output.document(results_json(results, left_out, code))
    output.text()
    comparison_table(output, results)
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
    output.text(f"Results are in {results.folder}: results.csv, epochs.csv, steps.parquet, run.log and more.")
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
    distances = {(item.engine, item.version, item.repeat): item for item in results.differences}
    header = _HEADER + (_AGAINST if distances else ())
    rows = []
    for run in runs:
        row = _row(run)
        if distances:
            item = distances.get((run.engine, run.version, run.repeat))
            row += (
                [None] * 3
                if item is None
                else [
                    _scientific(item.early),
                    _scientific(item.largest),
                    "none" if item.first_above is None else item.first_above,
                ]
            )
        rows.append(row)
    output.table("", header, rows, "lrlrrrrrrrrr")


def cross_table(output: Output, results: Results) -> None:
    """Accuracy of every engine's weights in every engine; in brackets images classified differently."""
    pairs = results.cross.pairs
    if not pairs:
        return
    owners = list(dict.fromkeys(pair[0] for pair in pairs))
    engines = list(dict.fromkeys(pair[1] for pair in pairs))
    found = {(pair[0], pair[1]): f"{pair[2]:.2f}" + (f" ({pair[5]})" if pair[5] else "") for pair in pairs}
    rows = [[owner, *(found.get((owner, engine), "") for engine in engines)] for owner in owners]
    output.text()
    title = "Test accuracy in %: weights of a row, evaluated in a column (images classified otherwise)"
    output.table(title, ["weights of", *engines], rows, "l" + "r" * len(engines))


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
    return [
        run.label,
        run.repeat,
        run_state(run.state),
        run.last_step + 1,
        None if run.last_loss is None else f"{run.last_loss:.6f}",
        f"{100.0 * result.test_accuracy:.2f}" if result is not None and has_accuracy else None,
        f"{result.train_seconds:.1f}" if result is not None else None,
        speed,
        f"{result.resources.memory_peak_bytes / 1e6:.0f}" if result is not None else None,
    ]


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"
