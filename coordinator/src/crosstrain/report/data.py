"""What the report shows of a job besides its verdict, whatever it was read from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain.labels import engine_label
from crosstrain.results import JobRecord, summary
from crosstrain.results.cross_evaluation import CrossEvaluation

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run; accuracies in percent, epochs from 0. None where nothing was measured."""

    epoch: int
    train_loss: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None


@dataclass(frozen=True)
class RunData:
    """One run of an engine.

    ``steps`` holds columns of equal length in order of the steps, named as in
    :data:`crosstrain.results.records.STEP_COLUMNS`; empty if the run trained nothing. Times are in
    seconds, sizes in bytes, ``test_accuracy`` is a share from 0 to 1. ``ranks`` is what summary.json tells of a run on
    several ranks (:class:`crosstrain.results.ranks.Spreading`); None on one.
    """

    run_id: str
    label: str
    engine: str = ""
    version: str = ""
    repeat: int = 0
    kind: str = "train"
    state: str = ""
    error: str = ""
    steps: Columns = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    train_seconds: float | None = None
    first_step_seconds: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    memory_peak_bytes: int | None = None
    memory_after_import_bytes: int | None = None
    gpu_memory_peak_bytes: int | None = None
    ranks: Mapping[str, Any] | None = None

    @property
    def trained(self) -> bool:
        """Whether the run recorded steps."""
        return len(self.steps.get("step", ())) > 0


@dataclass(frozen=True)
class CrossRow:
    """Final weights of one engine evaluated in another; ``accuracy`` in percent."""

    weights_of: str
    evaluated_in: str
    accuracy: float | None
    loss: float | None
    images: int
    differing: int
    within_rounding: int


@dataclass(frozen=True)
class ReportData:
    """Everything the report shows besides the verdict; each part may be missing.

    ``problems`` says what could not be read, and why; ``training`` tells batch and learning rate in words.
    """

    job_name: str = ""
    job_id: str = ""
    state: str = ""
    error: str = ""
    remarks: tuple[str, ...] = ()
    runs: tuple[RunData, ...] = ()
    cross: tuple[CrossRow, ...] = ()
    document: str = ""
    problems: tuple[str, ...] = ()
    training: str = ""


def from_record(record: JobRecord, cross: CrossEvaluation | None = None) -> ReportData:
    """What was watched of a job, with its cross-evaluation if there is one."""
    told = summary(record)
    runs = []
    for values in told["runs"]:
        run = record.runs[values["run_id"]]
        epochs = []
        for item in run.epochs:
            held = {
                name: (100.0 if name.endswith("accuracy") else 1.0) * getattr(item, name)
                for name in ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
                if item.HasField(name)
            }
            epochs.append(Epoch(item.epoch, item.train_loss, **held))
        columns = run.steps() if run.last_step >= 0 else {}
        runs.append(run_data(values, columns, tuple(epochs), run.facts))
    rows = tuple(CrossRow(*pair) for pair in cross.pairs) if cross else ()
    return report_data(told, record.job.name, tuple(runs), rows, record.job.document)


def from_runs(records: Sequence[JobRecord], run_ids: Collection[str]) -> ReportData:
    """Runs of one or several jobs, as a comparison of finished runs shows them, with the jobs' documents."""
    jobs = {record.job.job_id: record for record in records}
    shown = [from_record(record) for record in jobs.values()]
    return ReportData(
        job_name=" and ".join(dict.fromkeys(data.job_name for data in shown)),
        job_id=" and ".join(jobs),
        state="compared",
        remarks=tuple(dict.fromkeys(remark for data in shown for remark in data.remarks)),
        runs=tuple(run for data in shown for run in data.runs if run.run_id in run_ids),
        document="---\n".join(dict.fromkeys(data.document for data in shown)),
    )


def report_data(
    told: Mapping[str, Any],
    name: str,
    runs: tuple[RunData, ...],
    cross: tuple[CrossRow, ...],
    document: str,
    problems: tuple[str, ...] = (),
) -> ReportData:
    """Of the content of summary.json and what else is known of the job."""
    remarks = [item for item in told.get("remarks") or () if isinstance(item, Mapping)]
    return ReportData(
        job_name=str(name),
        job_id=str(told.get("job_id") or ""),
        state=str(told.get("state") or ""),
        error=_error(told.get("error")),
        remarks=tuple(f"{item.get('severity', '')}: {item.get('text', '')}" for item in remarks),
        runs=runs,
        cross=cross,
        document=document,
        problems=problems,
        training=str(_mapping(told.get("training")).get("text") or ""),
    )


def run_data(
    values: Mapping[str, Any], steps: Columns, epochs: tuple[Epoch, ...], facts: Mapping[str, str]
) -> RunData:
    """Of one run's entry in summary.json and what it recorded."""
    engine, version = str(values.get("engine") or ""), str(values.get("version") or "")
    repeat = values.get("repeat")
    return RunData(
        run_id=str(values.get("run_id") or ""),
        label=engine_label(engine, version, str(values.get("variant") or "")),
        engine=engine,
        version=version,
        repeat=repeat if isinstance(repeat, int) else 0,
        kind=str(values.get("kind") or ""),
        state=str(values.get("state") or ""),
        error=_error(values.get("error")),
        steps=steps,
        epochs=epochs,
        facts=facts,
        train_seconds=number(values.get("train_seconds")),
        first_step_seconds=number(values.get("first_step_seconds")),
        test_accuracy=number(values.get("test_accuracy")),
        test_loss=number(values.get("test_loss")),
        memory_peak_bytes=_size(values.get("memory_peak_bytes")),
        memory_after_import_bytes=_size(values.get("memory_after_import_bytes")),
        gpu_memory_peak_bytes=_size(values.get("gpu_memory_peak_bytes")),
        ranks=_mapping(values.get("ranks")) or None,
    )


def number(value: Any) -> float | None:
    """The value as a float; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _size(value: Any) -> int | None:
    found = number(value)
    return int(found) if found is not None and np.isfinite(found) and found > 0 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _error(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    return f"{value.get('reason', '')}: {value.get('message', '')}"
