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
_PURPOSES: dict[int, str] = {
    int(value): name.removeprefix("RUN_PURPOSE_").lower() for name, value in coordinator_pb2.RunPurpose.items() if value
}
_VERDICTS = {int(value) for value in coordinator_pb2.Verdict.values() if value}
_REASONS: dict[int, str] = {
    int(value): name.removeprefix("ERROR_REASON_") for name, value in errors_pb2.ErrorReason.items()
}


def job_state(value: int) -> str:
    """For example ``succeeded``."""
    return _JOB_STATES.get(value, "unspecified")


def run_state(value: int) -> str:
    """For example ``running``."""
    return _RUN_STATES.get(value, "unspecified")


def run_purpose(kind: int, purpose: int) -> str:
    """What a run is for, for example ``envelope``; by its kind where that says all (``train``)."""
    return _PURPOSES.get(purpose) or run_kind(kind)


def verdict_name(value: int) -> str:
    """For example ``MISMATCH``; empty without a verdict."""
    return coordinator_pb2.Verdict.Name(value).removeprefix("VERDICT_") if value in _VERDICTS else ""  # type: ignore[arg-type]


def run_kind(value: int) -> str:
    """For example ``train``."""
    return _RUN_KINDS.get(value, "unspecified")


def error_reason(value: int) -> str:
    """For example ``CHILD_DIED``, as in the catalogue."""
    return _REASONS.get(value, "INTERNAL")
