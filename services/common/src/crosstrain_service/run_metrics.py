"""Metrics of runs, taken from the events that the front reads from their spools anyway."""

import collections
from typing import Deque, Dict, Iterable, List

import numpy as np

from crosstrain_protos.v1 import errors_pb2, run_pb2

from .events import ENDED
from .metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Metric, Values

_WHERE = ("engine", "version", "device")
_RUN = ("run", "engine", "version")
STEP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STAGES = ("import", "build")
PHASES = ("data", "copy", "compute", "sync", "callback")

METRICS = (
    Metric("crosstrain_step_duration_seconds", HISTOGRAM,
           "Wall time of training steps, without the first of each process.", _WHERE, STEP_BUCKETS),
    Metric("crosstrain_step_phase_duration_seconds", SUMMARY,
           "Wall time of training steps by phase: data, copy, compute, sync, callback; they sum up to the step.",
           (*_WHERE, "phase")),
    Metric("crosstrain_step_first_duration_seconds", SUMMARY,
           "Wall time of the first step of each process, which may include compilation.", _WHERE),
    Metric("crosstrain_step_samples_total", COUNTER,
           "Samples trained on; those of steps that a resumed run repeats count again.", _WHERE),
    Metric("crosstrain_run_epochs_total", COUNTER, "Epochs completed.", _WHERE),
    Metric("crosstrain_run_setup_duration_seconds", SUMMARY,
           "Time before the first step by stage: import (interpreter and framework), build (network).",
           (*_WHERE, "stage")),
    Metric("crosstrain_run_checkpoint_duration_seconds", SUMMARY, "Wall time of completed checkpoints.", _WHERE),
    Metric("crosstrain_run_restarts_total", COUNTER, "Processes of runs started again after one ended early.", _WHERE),
    Metric("crosstrain_run_ranks_lost_total", COUNTER,
           "Ranks of runs that died, hung or could not be reached any more.", _WHERE),
    Metric("crosstrain_run_ended_total", COUNTER, "Runs that ended, by kind and state.",
           ("engine", "version", "kind", "state")),
    Metric("crosstrain_run_failures_total", COUNTER, "Runs that failed, by the reason in docs/errors.md.",
           ("engine", "version", "reason")),
    Metric("crosstrain_spool_events_total", COUNTER, "Events read from the spools of runs.", ("engine", "version")),
)

#: Gauges of single runs. They disappear after the first scrape that follows the end of the run.
GAUGES = (
    Metric("crosstrain_run_steps", GAUGE, "Training steps done.", _RUN),
    Metric("crosstrain_run_loss", GAUGE, "Mean loss over the batch of the newest step, before its update.", _RUN),
    Metric("crosstrain_run_batch_accuracy_ratio", GAUGE,
           "Correct predictions in the batch of the newest step, where the engine counts them.", _RUN),
    Metric("crosstrain_run_learning_rate", GAUGE, "Learning rate of the newest step.", _RUN),
    Metric("crosstrain_run_epoch_train_loss", GAUGE, "Mean loss over the samples of the newest epoch.", _RUN),
    Metric("crosstrain_run_test_loss", GAUGE, "Mean loss over the test data after the newest epoch.", _RUN),
    Metric("crosstrain_run_test_accuracy_ratio", GAUGE,
           "Share of correct predictions on the test data after the newest epoch.", _RUN),
    Metric("crosstrain_run_ranks", GAUGE, "Ranks that train together in the present attempt.", _RUN),
    Metric("crosstrain_run_sync_ratio", GAUGE,
           "Share of the newest steps that ranks waited for one another, the mean over ranks.", _RUN),
    Metric("crosstrain_run_rank_imbalance_ratio", GAUGE,
           "Compute time of the slowest rank over the mean of all ranks in the newest steps.", _RUN),
    Metric("crosstrain_run_memory_bytes", GAUGE, "Resident memory of the run's process and its ranks.", _RUN),
    Metric("crosstrain_run_memory_peak_bytes", GAUGE, "Peak of that so far.", _RUN),
    Metric("crosstrain_run_memory_after_import_bytes", GAUGE,
           "Resident memory once the framework was imported.", _RUN),
    Metric("crosstrain_run_cpu_seconds", GAUGE, "Processor time used by the run's process so far.", _RUN),
    Metric("crosstrain_run_gpu_memory_peak_bytes", GAUGE, "Peak GPU memory of the run by NVML.", _RUN),
    Metric("crosstrain_run_gpu_utilization_ratio", GAUGE, "GPU utilisation during the run by NVML.", _RUN),
)
_NAMES = tuple(metric.name for metric in GAUGES)
#: Ended runs whose last values are kept for the next scrape.
MAX_ENDED = 100


def device_of(request: object) -> str:
    """Name of the device that a stored request asks for, for example "cpu:0"."""
    device = request.spec.execution.device  # type: ignore[attr-defined]
    return "%s:%d" % ("cuda" if device.kind == 2 else "cpu", device.index)


def _name(enum: object, number: int, prefix: str) -> str:
    return enum.Name(number)[len(prefix):].lower()  # type: ignore[attr-defined,no-any-return]


class RunMetrics:
    """Turns events into values. One thread at a time may report events of a run; runs are independent."""

    def __init__(self, values: Values) -> None:
        self._values = values
        #: First step of the present process of each unfinished run.
        self._first: Dict[str, int] = {}
        self._ended: Deque[run_pb2.Run] = collections.deque()
        self._exposed: List[run_pb2.Run] = []

    def announce(self, engine: str, version: str, devices: Iterable[str]) -> None:
        """Makes the series of an engine visible before its first run: a rate needs the 0 at the start."""
        for device in devices:
            where = (engine, version, device)
            for name in ("crosstrain_step_duration_seconds", "crosstrain_step_first_duration_seconds",
                         "crosstrain_run_checkpoint_duration_seconds"):
                self._values.observe(name, where, ())
            for phase in PHASES:
                self._values.observe("crosstrain_step_phase_duration_seconds", (*where, phase), ())
            for stage in STAGES:
                self._values.observe("crosstrain_run_setup_duration_seconds", (*where, stage), ())
            for name in ("crosstrain_step_samples_total", "crosstrain_run_epochs_total",
                         "crosstrain_run_restarts_total", "crosstrain_run_ranks_lost_total"):
                self._values.add(name, where, 0)
        for kind in ("train", "evaluate", "probe"):
            for state in ENDED:
                self._values.add("crosstrain_run_ended_total",
                                 (engine, version, kind, _name(run_pb2.RunState, state, "RUN_STATE_")), 0)
        self._values.add("crosstrain_spool_events_total", (engine, version), 0)

    def observe(self, run: run_pb2.Run, device: str, event: run_pb2.RunEvent) -> None:
        """Takes one event of a run, in the order of its spool."""
        values = self._values
        where = (run.engine, run.engine_version, device)
        by_run = (run.run_id, run.engine, run.engine_version)
        kind = event.WhichOneof("event")
        values.add("crosstrain_spool_events_total", where[:2])
        if kind == "attempt_started":
            self._first[run.run_id] = event.attempt_started.resume_step
            if event.attempt > 1:
                values.add("crosstrain_run_restarts_total", where)
            if event.attempt_started.ranks:
                values.set("crosstrain_run_ranks", event.attempt_started.ranks, by_run)
        elif kind == "rank_lost":
            values.add("crosstrain_run_ranks_lost_total", where)
        elif kind == "steps":
            self._steps(event.steps, where, by_run)
        elif kind == "setup_done":
            for stage in STAGES:
                values.observe("crosstrain_run_setup_duration_seconds", (*where, stage),
                               getattr(event.setup_done, stage + "_seconds"))
        elif kind == "epoch_ended":
            values.add("crosstrain_run_epochs_total", where)
            values.set("crosstrain_run_epoch_train_loss", event.epoch_ended.train_loss, by_run)
            if event.epoch_ended.HasField("test_accuracy"):
                values.set("crosstrain_run_test_accuracy_ratio", event.epoch_ended.test_accuracy, by_run)
                values.set("crosstrain_run_test_loss", event.epoch_ended.test_loss, by_run)
        elif kind == "checkpoint_saved":
            values.observe("crosstrain_run_checkpoint_duration_seconds", where, event.checkpoint_saved.seconds)
        elif kind == "resources":
            self._resources(event.resources, by_run)
        elif kind == "state_changed" and event.state_changed.state in ENDED:
            self._end(run, event.state_changed)

    def scraped(self) -> None:
        """A scrape begins: forgets the runs whose last values the one before has shown."""
        for run in self._exposed:
            self._forget(run)
        self._exposed = [self._ended.popleft() for _ in range(len(self._ended))]

    def _steps(self, steps: run_pb2.StepRecords, where: tuple, by_run: tuple) -> None:
        values = self._values
        skip = 1 if steps.first_step == self._first.get(by_run[0]) else 0
        if skip:
            values.observe("crosstrain_step_first_duration_seconds", where, steps.step_seconds[0])
        values.observe("crosstrain_step_duration_seconds", where, np.asarray(steps.step_seconds)[skip:])
        for phase in PHASES:
            column = np.asarray(getattr(steps, phase + "_seconds"))
            values.observe("crosstrain_step_phase_duration_seconds", (*where, phase), column[skip:])
        values.add("crosstrain_step_samples_total", where, sum(steps.samples))
        values.set("crosstrain_run_steps", steps.first_step + len(steps.loss), by_run)
        values.set("crosstrain_run_loss", steps.loss[-1], by_run)
        values.set("crosstrain_run_learning_rate", steps.learning_rate[-1], by_run)
        if steps.correct and steps.samples[-1]:
            values.set("crosstrain_run_batch_accuracy_ratio", steps.correct[-1] / steps.samples[-1], by_run)

        if steps.ranks:
            self._ranks(steps, by_run)

    def _ranks(self, steps: run_pb2.StepRecords, by_run: tuple) -> None:
        compute = np.array([sum(times.compute_seconds) for times in steps.ranks])
        sync = sum(sum(times.sync_seconds) for times in steps.ranks)
        whole = sum(sum(times.step_seconds) for times in steps.ranks)
        if whole > 0:
            self._values.set("crosstrain_run_sync_ratio", sync / whole, by_run)
        if compute.mean() > 0:
            self._values.set("crosstrain_run_rank_imbalance_ratio", float(compute.max() / compute.mean()), by_run)

    def _resources(self, sample: run_pb2.ResourceSample, by_run: tuple) -> None:
        for name in ("memory_bytes", "memory_peak_bytes", "memory_after_import_bytes", "cpu_seconds"):
            self._values.set("crosstrain_run_" + name, getattr(sample, name), by_run)
        if sample.HasField("gpu_memory_peak_bytes"):
            self._values.set("crosstrain_run_gpu_memory_peak_bytes", sample.gpu_memory_peak_bytes, by_run)
        if sample.HasField("gpu_utilization_percent"):
            self._values.set("crosstrain_run_gpu_utilization_ratio", sample.gpu_utilization_percent / 100, by_run)

    def _end(self, run: run_pb2.Run, change: run_pb2.StateChanged) -> None:
        engine = (run.engine, run.engine_version)
        self._values.add("crosstrain_run_ended_total", (
            *engine, _name(run_pb2.RunKind, run.kind, "RUN_KIND_"),
            _name(run_pb2.RunState, change.state, "RUN_STATE_")))
        if change.state == run_pb2.RUN_STATE_FAILED:
            reason = _name(errors_pb2.ErrorReason, change.error.reason, "ERROR_REASON_")
            self._values.add("crosstrain_run_failures_total", (*engine, reason))
        self._first.pop(run.run_id, None)
        self._ended.append(run)
        while len(self._ended) > MAX_ENDED:
            self._forget(self._ended.popleft())

    def _forget(self, run: run_pb2.Run) -> None:
        self._values.remove(_NAMES, (run.run_id, run.engine, run.engine_version))
