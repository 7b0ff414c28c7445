"""Short lower-case names of states and kinds, for people and for JSON."""

from __future__ import annotations

from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2

_JOB_STATES: dict[int, str] = {
    int(value): name.removeprefix("JOB_STATE_").lower() for name, value in coordinator_pb2.JobState.items()
}
_RUN_STATES: dict[int, str] = {
    int(value): name.removeprefix("RUN_STATE_").lower() for name, value in run_pb2.RunState.items()
}
_RUN_KINDS: dict[int, str] = {
    int(value): name.removeprefix("RUN_KIND_").lower() for name, value in run_pb2.RunKind.items()
}
_REASONS: dict[int, str] = {
    int(value): name.removeprefix("ERROR_REASON_") for name, value in errors_pb2.ErrorReason.items()
}


def job_state(value: int) -> str:
    """For example ``succeeded``."""
    return _JOB_STATES.get(value, "unspecified")


def run_state(value: int) -> str:
    """For example ``running``."""
    return _RUN_STATES.get(value, "unspecified")


def run_kind(value: int) -> str:
    """For example ``train``."""
    return _RUN_KINDS.get(value, "unspecified")


def error_reason(value: int) -> str:
    """For example ``CHILD_DIED``, as in the catalogue."""
    return _REASONS.get(value, "INTERNAL")
