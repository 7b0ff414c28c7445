"""Writes the results folder of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crosstrain import spec as documents
from crosstrain_protos.v1 import coordinator_pb2, errors_pb2
from crosstrain_service.model import Model

from . import tables
from .comparison import Difference, compare_with_reference
from .cross_evaluation import DIFFERENCE_COLUMNS, PAIR_COLUMNS, CrossEvaluation, cross_evaluation
from .files import csv_text, json_text, replace_folder
from .names import error_reason, job_state, run_purpose, run_state, verdict_name
from .ranks import Spreading, spreading
from .records import JobRecord, RunRecord
from .runlog import log_text

if TYPE_CHECKING:
    from crosstrain.client import Client


@dataclass(frozen=True)
class Results:
    """What was written, for showing it."""

    folder: Path
    record: JobRecord
    differences: list[Difference]
    cross: CrossEvaluation
    verdict: dict[str, Any] | None = None


def write_results(
    client: Client, job_id: str, folder: Path | str, record: JobRecord | None = None
) -> Results:
    """Writes the results of a job that has ended into ``folder``; see docs/results.md.

    A folder that an earlier run of a job of the same name filled is overwritten, any other is refused.

    Args:
        record: what was watched already; None fetches all events.

    Raises:
        CrosstrainError: the job is not known, or the folder belongs to something else.
    """
    record = record or JobRecord(client.get_job(job_id))
    record.add_all(client.watch_job(job_id, record.last_sequence))
    record.update(client.get_job(job_id))
    return write_record(record, Path(folder), client)


def write_record(record: JobRecord, folder: Path, client: Client) -> Results:
    """Writes what was recorded; ``client`` gives the logits of the cross-evaluation."""
    job = record.job
    spec, model = _read(job)
    training = record.training_runs()
    differences = compare_with_reference(training)
    cross = cross_evaluation(training, record.evaluation_runs(), model, client.read)
    document = read_job_verdict(record, client)

    def write(aside: Path) -> dict[str, Any]:
        if spec.task != "check":
            tables.write_results(aside, training, model, spec.training.batch_size)
            tables.write_epochs(aside, training)
            tables.write_steps(aside, training)
            tables.write_rank_steps(aside, training)
            tables.write_ranks(aside, training, spreadings(record, spec, model))
        if differences:
            tables.write_comparison(aside, differences)
        if cross.pairs:
            _write(aside / "cross_evaluation.csv", csv_text(PAIR_COLUMNS, cross.pairs))
            rows = csv_text(DIFFERENCE_COLUMNS, cross.differences)
            _write(aside / "cross_evaluation_differences.csv", rows)
        if spec.task == "evaluate":
            _write(aside / "evaluation.csv", _evaluations(record.evaluation_runs()))
        _write(aside / "run.log", log_text(record, model, (training_settings(record, spec) or {}).get("text", "")))
        _write(aside / "job.yaml", job.document)
        if document is not None:
            _write_verdict(aside, document, record, cross)
        facts = {run.run_id: {**run.facts, "run.repeat": str(run.repeat)} for run in record.runs.values()}
        _write(aside / "fingerprints.json", json_text(facts))
        return summary(record)

    replace_folder(folder, job.name, write)
    return Results(folder, record, differences, cross, document)


def read_job_verdict(record: JobRecord, client: Client) -> dict[str, Any] | None:
    """The verdict document of a job; None if it has none."""
    from crosstrain.compare.verdict import read_verdict

    if record.verdict is None or not record.verdict.digest:
        return None
    return read_verdict(client.read(record.verdict.digest))


def _write_verdict(aside: Path, document: dict[str, Any], record: JobRecord, cross: CrossEvaluation) -> None:
    from crosstrain.compare.verdict import junit_xml, verdict_json
    from crosstrain.report import from_record, write_report

    _write(aside / "verdict.json", verdict_json(document))
    _write(aside / "verdict.junit.xml", junit_xml(document))
    write_report(aside / "report.html", document, from_record(record, cross))


def spreadings(record: JobRecord, spec: documents.JobSpec, model: Model) -> dict[str, Spreading]:
    """How the training runs on several ranks were spread, by run."""
    size = sum(int(np.prod(shape)) for shape in model.parameter_shapes().values())
    size *= 8 if spec.execution.precision == "float64" else 4
    batch = spec.training.batch_size
    return {
        run.run_id: spreading(run.parallel, run.rank_steps(), run.result, batch, size, run.ranks_lost)
        for run in record.training_runs()
        if run.parallel is not None and run.ranks > 1
    }


def training_settings(record: JobRecord, spec: documents.JobSpec) -> dict[str, Any] | None:
    """The batch size of all ranks together, and the learning rates that all engines look up; None if none train."""
    if spec.task == "evaluate" or not record.job.train.samples:
        return None
    rates = documents.learning_rates(spec, documents.training_rows(spec, record.job.train.samples))
    schedule = spec.training.schedule
    values: dict[str, Any] = {
        "batch_size": spec.training.batch_size,
        "steps": len(rates),
        "learning_rate_first": float(rates[0]),
        "learning_rate_largest": float(rates.max()),
        "learning_rate_last": float(rates[-1]),
        "scaled_with_batch": schedule.scale_with_batch,
        "base_batch_size": schedule.base_batch_size if schedule.scale_with_batch else None,
        "warmup_steps": schedule.warmup_steps,
        "precision": spec.execution.precision or "float32",
    }
    names = {documents.parse_entry(name).base.partition("@")[0] for name in spec.engines}
    # It alone computes in another precision where the job names none.
    wide = " (float64 in the reference)" if "reference" in names and not spec.execution.precision else ""
    return {**values, "text": _in_words(values) + wide}


def _in_words(settings: Mapping[str, Any]) -> str:
    """The batch and the learning rate of a job in words."""
    first, largest, last = (settings[f"learning_rate_{name}"] for name in ("first", "largest", "last"))
    rate = f"learning rate {largest:g}"
    if not first == largest == last:
        rate = f"learning rate {first:g} at first, at most {largest:g}, {last:g} at last"
    if settings["scaled_with_batch"]:
        scale = f"scaled by batch size / {settings['base_batch_size']}"
    else:
        scale = "as given, whatever the batch and the number of ranks"
    batch = f"batches of {settings['batch_size']} samples over all ranks together"
    return f"{batch}, {rate} ({scale}), precision {settings['precision']}"


def summary(record: JobRecord) -> dict[str, Any]:
    """State of a job and its runs as JSON values."""
    spec, model = _read(record.job)
    spread = spreadings(record, spec, model)
    return {
        "job_id": record.job.job_id,
        "state": job_state(record.state),
        "error": _error(record.error),
        "remarks": [{"severity": item.severity, "text": item.text} for item in record.job.remarks],
        "verdict": _verdict(record),
        "training": training_settings(record, spec),
        "runs": [_run(run, spread.get(run.run_id)) for run in record.runs.values()],
    }


def _read(job: coordinator_pb2.Job) -> tuple[documents.JobSpec, Model]:
    spec = documents.parse_document(job.document)
    data = job.train if job.HasField("train") else job.test
    return spec, documents.build_model(spec, tuple(data.input_shape), data.classes)


def _run(run: RunRecord, spread: Spreading | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run_id": run.run_id,
        "kind": run_purpose(run.kind, run.purpose),
        "engine": run.engine,
        "version": run.version,
        "variant": run.variant,
        "repeat": run.repeat,
        "service": run.service,
        "state": run_state(run.state),
        "error": _error(run.error),
        "attempts": run.attempts,
        "ranks": spread.to_json() if spread is not None else None,
    }
    result = run.result
    if result is not None:
        values |= {
            "steps": result.steps,
            "train_seconds": result.train_seconds,
            "first_step_seconds": result.first_step_seconds,
            "final_loss": run.last_loss,
            "test_loss": result.test_loss if result.HasField("test_loss") else None,
            "test_accuracy": result.test_accuracy if result.HasField("test_accuracy") else None,
            "memory_peak_bytes": result.resources.memory_peak_bytes,
            "memory_after_import_bytes": result.resources.memory_after_import_bytes or None,
            "gpu_memory_peak_bytes": result.resources.gpu_memory_peak_bytes or None,
            "weights_digest": result.weights_digest,
            "skipped_updates": result.skipped_updates,
        }
    return values


def _verdict(record: JobRecord) -> dict[str, Any] | None:
    reached = record.verdict
    if reached is None:
        return None
    error = _error(reached.error) if reached.HasField("error") else None
    return {"verdict": verdict_name(reached.verdict) or None, "digest": reached.digest or None, "error": error}


def _error(error: errors_pb2.Error | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"reason": error_reason(error.reason), "message": error.message, "field": error.field}


def _evaluations(runs: Sequence[RunRecord]) -> str:
    header = ("engine", "version", "variant", "weights_digest", "accuracy_pct", "loss", "images", "seconds")
    rows = [
        (
            run.engine,
            run.version,
            run.variant,
            item.weights_digest,
            100.0 * item.correct / max(1, item.samples),
            item.loss,
            item.samples,
            item.seconds,
        )
        for run in runs
        for item in run.evaluations
    ]
    return csv_text(header, rows)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
