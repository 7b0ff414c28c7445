"""Rows of the job store as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from crosstrain_protos.v1 import coordinator_pb2, run_pb2

from .progress import TERMINAL_RUN_STATES


@dataclass(frozen=True)
class NewRun:
    """A run to be added to a job; ``request`` is a serialized TrainRequest or EvaluateRequest."""

    run_id: str
    kind: run_pb2.RunKind.ValueType
    repeat: int
    service: str
    engine: str
    engine_version: str
    device_key: str
    request: bytes


@dataclass(frozen=True)
class NewJob:
    """A job to be stored. ``job`` holds what is known of it except runs, state and times."""

    job: coordinator_pb2.Job
    body_digest: str
    runs: list[NewRun]
    shared_devices: bool = False
    evaluation_pending: bool = False


@dataclass(frozen=True)
class RunPlace:
    """What scheduling needs to know of a run."""

    run_id: str
    job_id: str
    kind: int
    state: int
    service: str
    device_key: str
    submissions: int

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in TERMINAL_RUN_STATES


@dataclass(frozen=True)
class RunRow:
    """One run with what is needed to submit and follow it."""

    run_id: str
    job_id: str
    kind: int
    state: int
    service: str
    engine: str
    engine_version: str
    device_key: str
    submissions: int
    #: Sequence number, in the service's counting, of the last event stored.
    cursor: int
    request: bytes
    record: coordinator_pb2.JobRun
    cancel_requested: bool

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in TERMINAL_RUN_STATES


@dataclass
class JobPlace:
    """An unfinished job as scheduling sees it, its runs in order."""

    job_id: str
    cancel_requested: bool
    shared_devices: bool
    evaluation_pending: bool
    runs: list[RunPlace] = field(default_factory=list)
