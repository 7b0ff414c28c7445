"""Rows of the job store as plain data."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from crosstrain_protos.v1 import coordinator_pb2, run_pb2, training_pb2

from .progress import TERMINAL_RUN_STATES


class VerdictStage(enum.IntEnum):
    """What is left to do for a job's verdict once its present runs have ended."""

    NONE = 0
    #: Plan the runs that follow from what the first ones found (envelope, decision flips).
    FOLLOW = 1
    #: Judge the job.
    JUDGE = 2
    #: Remove the recorded tensors, which the verdict no longer needs.
    CLEAN = 3


@dataclass(frozen=True)
class NewMember:
    """One of the services that a run spans, the host by which the others reach it, and its number of ranks."""

    service: str
    host: str
    device_key: str
    ranks: int


@dataclass(frozen=True)
class NewRun:
    """A run to be added to a job; ``request`` is a serialized TrainRequest, EvaluateRequest or ProbeRequest.

    ``variant`` and ``parallel`` are as in JobRun. ``members`` are the services that it spans, the one that leads
    first; empty if one has all ranks.
    """

    run_id: str
    kind: run_pb2.RunKind.ValueType
    repeat: int
    service: str
    engine: str
    engine_version: str
    device_key: str
    request: bytes
    purpose: coordinator_pb2.RunPurpose.ValueType = coordinator_pb2.RUN_PURPOSE_UNSPECIFIED
    variant: str = ""
    parallel: training_pb2.Parallel | None = None
    members: tuple[NewMember, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether its records are to be checked."""
        return self.purpose == coordinator_pb2.RUN_PURPOSE_PROBE


@dataclass(frozen=True)
class NewJob:
    """A job to be stored. ``job`` holds what is known of it except runs, state and times."""

    job: coordinator_pb2.Job
    body_digest: str
    runs: list[NewRun]
    shared_devices: bool = False
    evaluation_pending: bool = False
    verdict_stage: VerdictStage = VerdictStage.NONE


def devices_of(key: str) -> frozenset[str]:
    """The single devices of a key: "localhost/cuda:0-1" are "localhost/cuda:0" and "localhost/cuda:1"."""
    name, _, numbers = key.rpartition(":")
    first, dash, last = numbers.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        return frozenset({key})
    return frozenset(f"{name}:{number}" for number in range(int(first), int(last) + 1))


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
    purpose: int = coordinator_pb2.RUN_PURPOSE_UNSPECIFIED
    checks_pending: bool = False
    #: Devices of all services that the run spans; empty if there is one.
    group_keys: frozenset[str] = frozenset()

    @property
    def device_keys(self) -> frozenset[str]:
        """All devices that the run uses."""
        return self.group_keys | devices_of(self.device_key)

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
    #: The services that the run spans, the one that leads first; empty if one has all ranks.
    members: tuple[NewMember, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in TERMINAL_RUN_STATES

    @property
    def variant(self) -> str:
        """What the job adds to the engine's name; tells runs of one engine apart."""
        return self.record.variant


@dataclass
class JobPlace:
    """An unfinished job as scheduling sees it, its runs in order."""

    job_id: str
    cancel_requested: bool
    shared_devices: bool
    evaluation_pending: bool
    verdict_stage: int = VerdictStage.NONE
    runs: list[RunPlace] = field(default_factory=list)
