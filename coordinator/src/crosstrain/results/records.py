"""What a job recorded, run by run, with superseded records left out.

An attempt that starts at step r voids what earlier attempts recorded from step r on: their step
records with a number of at least r, and their epochs whose last step is at least r.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain.labels import engine_label
from crosstrain.purposes import FOR_THE_VERDICT
from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2, training_pb2

from .ranks import RankSteps, rank_steps

#: Columns of a step record with their types, as they are kept and written.
STEP_COLUMNS: dict[str, str] = {
    "step": "int64",
    "epoch": "int32",
    "loss": "float64",
    "learning_rate": "float64",
    "step_seconds": "float64",
    "data_seconds": "float64",
    "copy_seconds": "float64",
    "compute_seconds": "float64",
    "sync_seconds": "float64",
    "callback_seconds": "float64",
    "samples": "int32",
}

#: Steps that count for the present speed.
_RECENT_STEPS = 50

Columns = dict[str, NDArray[Any]]


@dataclass
class RunRecord:
    """Everything one run reported.

    ``events`` are those for the log: all but step records and samples of resources.
    """

    run_id: str
    engine: str = ""
    version: str = ""
    variant: str = ""
    parallel: training_pb2.Parallel | None = None
    repeat: int = 0
    service: str = ""
    kind: int = run_pb2.RUN_KIND_UNSPECIFIED
    purpose: int = coordinator_pb2.RUN_PURPOSE_UNSPECIFIED
    checked: bool = False
    state: int = run_pb2.RUN_STATE_UNSPECIFIED
    error: errors_pb2.Error | None = None
    run: run_pb2.Run = field(default_factory=run_pb2.Run)
    epochs: list[run_pb2.EpochEnded] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    result: run_pb2.TrainResult | None = None
    setup: run_pb2.SetupDone | None = None
    resources: run_pb2.ResourceSample | None = None
    evaluations: list[run_pb2.Evaluated] = field(default_factory=list)
    events: list[run_pb2.RunEvent] = field(default_factory=list)
    attempts: int = 0
    ranks_lost: int = 0
    _blocks: list[Columns] = field(default_factory=list)
    _rank_blocks: list[RankSteps] = field(default_factory=list)

    @property
    def label(self) -> str:
        """``engine@version``, with the job's settings for this engine in brackets."""
        return engine_label(self.engine, self.version, self.variant)

    @property
    def ranks(self) -> int:
        """Number of ranks that the run was asked to train on."""
        if self.parallel is None:
            return 1
        return max(1, self.parallel.data) * max(1, self.parallel.tensor) * max(1, self.parallel.pipeline)

    @property
    def for_the_verdict(self) -> bool:
        """Whether the run only serves the verdict: nothing of it is a result of the job."""
        return self.purpose in FOR_THE_VERDICT

    @property
    def succeeded(self) -> bool:
        """Whether the run ended with a result."""
        return self.state == run_pb2.RUN_STATE_SUCCEEDED

    @property
    def last_step(self) -> int:
        """Number of the newest step; -1 before the first."""
        return int(self._blocks[-1]["step"][-1]) if self._blocks else -1

    @property
    def last_loss(self) -> float | None:
        """Loss of the newest step."""
        return float(self._blocks[-1]["loss"][-1]) if self._blocks else None

    def steps(self) -> Columns:
        """Columns of :data:`STEP_COLUMNS`, in order of the steps."""
        return {
            name: np.concatenate([block[name] for block in self._blocks] or [np.empty(0)]).astype(kind)
            for name, kind in STEP_COLUMNS.items()
        }

    def rank_steps(self) -> list[RankSteps]:
        """Times of every rank, in order of the steps; empty with one rank."""
        return self._rank_blocks

    def sync_share(self) -> float | None:
        """Share of the newest steps that ranks spent waiting for one another; None with one rank."""
        recent = self._rank_blocks[-_RECENT_STEPS:]
        whole = sum(float(block.columns["step_seconds"].sum()) for block in recent)
        return sum(float(block.columns["sync_seconds"].sum()) for block in recent) / whole if whole > 0 else None

    def samples_per_second(self) -> float | None:
        """Samples per second over the newest steps; None before the first."""
        samples, seconds = self._recent("samples"), self._recent("step_seconds")
        return float(samples.sum() / seconds.sum()) if seconds.sum() > 0 else None

    def seconds_per_step(self) -> float | None:
        """Mean duration of the newest steps; None before the first."""
        seconds = self._recent("step_seconds")
        return float(seconds.mean()) if seconds.size else None

    def _recent(self, name: str) -> NDArray[np.float64]:
        parts = [block[name] for block in self._blocks[-_RECENT_STEPS:]]
        return np.concatenate(parts or [np.empty(0)])[-_RECENT_STEPS:].astype(np.float64)

    def describe(self, record: coordinator_pb2.JobRun) -> None:
        """Takes over what the coordinator says about the run."""
        run = record.run
        self.run.CopyFrom(run)
        self.engine, self.version = run.engine, run.engine_version
        self.variant = record.variant
        self.parallel = record.parallel if record.HasField("parallel") else None
        self.repeat, self.service, self.kind = record.repeat, record.service, run.kind
        self.purpose = record.purpose
        self.checked = bool(record.certificate_digest) or record.HasField("certificate_error")
        self.state = run.state
        self.error = run.error if run.HasField("error") else None
        if record.HasField("result"):
            self.result = record.result

    def add(self, event: run_pb2.RunEvent) -> None:
        """Takes the next event of the run, in order."""
        kind = event.WhichOneof("event")
        if kind == "steps":
            self._add_steps(event.steps)
            return
        if kind == "resources":
            self.resources = event.resources
            return
        self.events.append(event)
        if kind == "state_changed":
            self.state = event.state_changed.state
            if event.state_changed.HasField("error"):
                self.error = event.state_changed.error
        elif kind == "attempt_started":
            self.attempts = max(self.attempts, event.attempt)
            self._void(event.attempt_started.resume_step)
        elif kind == "rank_lost":
            self.ranks_lost += 1
        elif kind == "fingerprint":
            self.facts = dict(event.fingerprint.facts)
        elif kind == "epoch_ended":
            self.epochs.append(event.epoch_ended)
        elif kind == "evaluated":
            self.evaluations.append(event.evaluated)
        elif kind == "result":
            self.result = event.result
        elif kind == "setup_done":
            self.setup = event.setup_done

    def _add_steps(self, records: run_pb2.StepRecords) -> None:
        count = len(records.loss)
        if not count:
            return
        block: Columns = {"step": np.arange(records.first_step, records.first_step + count)}
        for name, kind in STEP_COLUMNS.items():
            if name != "step":
                values = np.asarray(getattr(records, name), dtype=kind)
                block[name] = values if len(values) == count else np.zeros(count, dtype=kind)
        self._blocks.append(block)
        ranks = rank_steps(records)
        if ranks is not None:
            self._rank_blocks.append(ranks)

    def _void(self, resume_step: int) -> None:
        kept = []
        for block in self._blocks:
            before = block["step"] < resume_step
            if before.any():
                kept.append({name: values[before] for name, values in block.items()})
        self._blocks = kept
        left = [block.before(resume_step) for block in self._rank_blocks]
        self._rank_blocks = [block for block in left if block.step.size]
        self.epochs = [epoch for epoch in self.epochs if epoch.last_step < resume_step]
        # What ended an earlier attempt is no result of the run, and its evaluations come again.
        self.evaluations = []


@dataclass
class JobRecord:
    """A job with its runs, built from its events one after the other."""

    job: coordinator_pb2.Job
    runs: dict[str, RunRecord] = field(default_factory=dict)
    last_sequence: int = 0
    state: int = coordinator_pb2.JOB_STATE_RUNNING
    error: errors_pb2.Error | None = None
    verdict: coordinator_pb2.VerdictReached | None = None

    def __post_init__(self) -> None:
        self.update(self.job)

    def update(self, job: coordinator_pb2.Job) -> None:
        """Takes over the coordinator's view of the job."""
        self.job = job
        self.state = job.state
        self.error = job.error if job.HasField("error") else None
        if self.verdict is None and (job.verdict_digest or job.HasField("verdict_error")):
            error = job.verdict_error if job.HasField("verdict_error") else None
            self.verdict = coordinator_pb2.VerdictReached(
                verdict=job.verdict, digest=job.verdict_digest, error=error
            )
        for record in job.runs:
            self._run(record.run.run_id).describe(record)

    def add(self, event: coordinator_pb2.JobEvent) -> None:
        """Takes the next event; one that was seen before is ignored."""
        if event.sequence <= self.last_sequence:
            return
        self.last_sequence = event.sequence
        kind = event.WhichOneof("event")
        if kind == "run_event":
            self._run(event.run_event.run_id).add(event.run_event)
        elif kind == "run_changed":
            self._run(event.run_changed.run.run_id).describe(event.run_changed)
        elif kind == "verdict_reached":
            self.verdict = event.verdict_reached
        elif kind == "state_changed":
            self.state = event.state_changed.state
            if event.state_changed.HasField("error"):
                self.error = event.state_changed.error

    def add_all(self, events: Iterable[coordinator_pb2.JobEvent]) -> JobRecord:
        """Takes several events and returns itself."""
        for event in events:
            self.add(event)
        return self

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state not in (coordinator_pb2.JOB_STATE_UNSPECIFIED, coordinator_pb2.JOB_STATE_RUNNING)

    def training_runs(self) -> list[RunRecord]:
        """Training runs of the job in order of execution; not those that only serve the verdict."""
        runs = self.runs.values()
        return [run for run in runs if run.kind == run_pb2.RUN_KIND_TRAIN and not run.for_the_verdict]

    def evaluation_runs(self) -> list[RunRecord]:
        """Evaluation runs in order of execution."""
        return [run for run in self.runs.values() if run.kind == run_pb2.RUN_KIND_EVALUATE]

    def _run(self, run_id: str) -> RunRecord:
        return self.runs.setdefault(run_id, RunRecord(run_id))
