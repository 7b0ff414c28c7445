"""A failed call as an error of the catalogue."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from crosstrain_protos.v1 import errors_pb2
from crosstrain_service.errors import CODES, DOMAIN, CrosstrainError, Violation
from crosstrain_service.status import DETAILS_KEY

#: What a status without details from the catalogue means; all others are defects.
_REASONS = {
    grpc.StatusCode.UNAVAILABLE: "SERVICE_UNREACHABLE",
    grpc.StatusCode.DEADLINE_EXCEEDED: "SERVICE_UNREACHABLE",
    grpc.StatusCode.CANCELLED: "SERVICE_UNREACHABLE",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "LIMIT_EXCEEDED",
}
_TRANSIENT = {"SERVICE_UNREACHABLE", "LIMIT_EXCEEDED"}


def from_rpc(error: grpc.RpcError) -> CrosstrainError:
    """The error that a failed call carries, by its ``google.rpc.ErrorInfo``.

    A status without such details, as gRPC itself makes, becomes ``SERVICE_UNREACHABLE``,
    ``LIMIT_EXCEEDED`` (a message over the limit) or ``INTERNAL`` with gRPC's own text.
    """
    status = _status(error)
    reason, field, violations = "", "", []
    if status is not None:
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            bad = error_details_pb2.BadRequest()
            if detail.Unpack(info) and info.domain == DOMAIN and info.reason in CODES:
                reason, field = info.reason, info.metadata.get("field", "")
            elif detail.Unpack(bad):
                violations = [Violation(item.field, item.description) for item in bad.field_violations]
    if reason and status is not None:
        return CrosstrainError(reason, status.message, field, error.code().name, tuple(violations))
    code = error.code()
    reason = _REASONS.get(code, "INTERNAL")
    if reason == "SERVICE_UNREACHABLE":
        return CrosstrainError(reason, f"the service does not answer ({code.name})")
    return CrosstrainError(reason, f"{code.name}: {error.details() or 'no details'}", code=code.name)


def transient(error: CrosstrainError) -> bool:
    """Whether the same call may succeed later."""
    return error.reason in _TRANSIENT


def unanswered(error: grpc.RpcError) -> bool:
    """Whether a call failed for want of a connection, before anything could answer it."""
    return error.code() == grpc.StatusCode.UNAVAILABLE and _status(error) is None


def lost_run(error: CrosstrainError) -> bool:
    """Whether a service says that it does not know a run."""
    return error.reason == "RUN_NOT_FOUND"


def from_proto(error: errors_pb2.Error) -> CrosstrainError:
    """A stored error as an exception."""
    name = errors_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")
    return CrosstrainError(name if name in CODES else "INTERNAL", error.message, error.field)


def _status(error: grpc.RpcError) -> status_pb2.Status | None:
    trailing: Any = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
            except DecodeError:
                return None
    return None
