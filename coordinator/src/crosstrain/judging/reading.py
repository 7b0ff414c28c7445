"""Runs, loss traces and recorded steps out of the job store and the artifact store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain.artifacts import ArtifactStore
from crosstrain.compare.certificate import Data, Problem
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.numerics.rounding import half_of, unit_of
from crosstrain.store import Database, JobStore, RunRow
from crosstrain_protos.v1 import coordinator_pb2, data_pb2, run_pb2, service_pb2, training_pb2
from crosstrain_service import convert, weights
from crosstrain_service.errors import CrosstrainError

from .native import with_canonical_constants, with_canonical_layers

Arrays = dict[str, NDArray[Any]]


@dataclass
class Recorded:
    """What the events of a run tell: losses, rates, times and samples by step, facts, and digests of records."""

    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    losses: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    rates: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    samples: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    facts: dict[str, str] = field(default_factory=dict)
    probes: dict[str, dict[int, str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def trace(self) -> LossTrace:
        """The losses with their learning rates."""
        rows = float(np.median(self.samples)) if len(self.samples) else 1.0
        return LossTrace(self.steps, self.losses, self.rates, unit_of(self.facts.get("maths.precision", ""), rows))

    @property
    def median_seconds(self) -> float | None:
        """Median duration of a step after the first; None where there is none."""
        return float(np.median(self.seconds[1:])) if len(self.seconds) > 1 else None


class Reader:
    """Reads one job store and one artifact store; data sets and initial weights are kept for the next problem."""

    def __init__(self, database_url: str, artifacts_url: str) -> None:
        self.jobs = JobStore(Database(database_url))
        self.artifacts = ArtifactStore(artifacts_url)
        self._arrays: dict[str, NDArray[Any]] = {}

    def job(self, job_id: str) -> coordinator_pb2.Job:
        """A job with its runs."""
        return self.jobs.job(job_id)

    def row(self, run_id: str) -> RunRow:
        """A run with its request."""
        return self.jobs.run(run_id)

    def recorded(self, run_id: str) -> Recorded:
        """What a run recorded."""
        return recorded(self._events(run_id))

    def tensors(self, digest: str, what: str) -> Arrays:
        """The tensors of one recorded step; ``what`` names it in errors."""
        try:
            return dict(weights.from_bytes(self.artifacts.get(digest, what))[0])
        except CrosstrainError as error:
            if error.reason == "INVALID_WEIGHTS":
                raise CrosstrainError("INVALID_DATA", f"{what}: {error.message}", what) from error
            raise

    def rates(self, job: coordinator_pb2.Job) -> NDArray[Any]:
        """The learning rate of every step of a job; empty for one that trains nothing."""
        return self._array(job.learning_rates_digest, "learning rates") if job.learning_rates_digest else np.empty(0)

    def problem(self, case: run_pb2.ProbeCase, precision: str, native: bool) -> Problem:
        """What was asked of an engine in one case, in the canonical meaning of its settings."""
        rates = self._array(case.training.learning_rates_digest, "learning rates")
        training = with_canonical_constants(case.training) if native else case.training
        model = with_canonical_layers(convert.model(case.model))
        initial, _ = weights.check_weights(
            weights.from_bytes(self.artifacts.get(case.initial_weights_digest, "initial weights"))[0], model
        )
        return Problem(
            model,
            convert.training(training, rates),
            self._data(case.train, "train"),
            initial,
            np.float64 if precision == "float64" else np.float32,
            self._data(case.test, "test") if case.HasField("test") else None,
            half_of(precision),
        )

    def _data(self, data: data_pb2.Dataset, name: str) -> Data:
        pixels = self._array(data.pixels_digest, f"{name} pixels")
        labels = self._array(data.labels_digest, f"{name} labels")
        return Data(pixels, np.asarray(labels), data.divisor)

    def _array(self, digest: str, what: str) -> NDArray[Any]:
        if digest not in self._arrays:
            if len(self._arrays) > 32:
                self._arrays.clear()
            self._arrays[digest] = self.artifacts.array(digest, what)
        return self._arrays[digest]

    def _events(self, run_id: str) -> Iterator[run_pb2.RunEvent]:
        after = 0
        while events := self.jobs.run_events(run_id, after):
            yield from events
            after = events[-1].sequence


def recorded(events: Iterator[run_pb2.RunEvent]) -> Recorded:
    """What a run's events tell; a later attempt replaces the steps that it executes again."""
    found = Recorded()
    blocks: list[tuple[NDArray[Any], ...]] = []
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "steps":
            blocks.append(_block(event.steps))
        elif kind == "attempt_started":
            resume = event.attempt_started.resume_step
            blocks = [tuple(column[block[0] < resume] for column in block) for block in blocks]
            found.probes, found.errors = {}, {}
        elif kind == "fingerprint":
            found.facts.update(event.fingerprint.facts)
        elif kind == "probe_recorded":
            item = event.probe_recorded
            if item.HasField("error"):
                found.errors[item.case_id] = item.error.message
            else:
                found.probes.setdefault(item.case_id, {})[item.step] = item.digest
    if blocks:
        columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
        found.steps, found.losses, found.rates, found.seconds, found.samples = columns
    return found


def probe_request(row: RunRow) -> service_pb2.ProbeRequest:
    """The request of a probe run."""
    return service_pb2.ProbeRequest.FromString(row.request)


def is_native(execution: training_pb2.Execution) -> bool:
    """Whether the engine was asked to keep its own conventions."""
    return execution.semantics == training_pb2.SEMANTICS_NATIVE


def _block(records: run_pb2.StepRecords) -> tuple[NDArray[Any], ...]:
    count = len(records.loss)
    steps = np.arange(records.first_step, records.first_step + count, dtype=np.int64)
    told = (records.loss, records.learning_rate, records.step_seconds, records.samples)
    columns = [np.asarray(values, np.float64) for values in told]
    return (steps, *(column if len(column) == count else np.zeros(count) for column in columns))
