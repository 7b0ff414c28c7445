"""Errors with a reason from the catalogue in ``crosstrain/v1/errors.proto``."""

from typing import NamedTuple, Optional

import grpc
from crosstrain_protos.v1 import errors_pb2

#: Domain of every ``google.rpc.ErrorInfo`` sent by Crosstrain.
DOMAIN = "crosstrain"

#: gRPC status code of every reason; tests assert that no reason is missing.
CODES = {
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_MODEL": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_DATA": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_WEIGHTS": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_JOB": grpc.StatusCode.INVALID_ARGUMENT,
    "PATH_OUTSIDE_DATA": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED": grpc.StatusCode.FAILED_PRECONDITION,
    "ENGINE_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "RUN_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "JOB_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ARTIFACT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ARTIFACT_CORRUPT": grpc.StatusCode.DATA_LOSS,
    "ID_REUSED": grpc.StatusCode.ALREADY_EXISTS,
    "STORAGE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "LIMIT_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CHILD_DIED": grpc.StatusCode.INTERNAL,
    "ENGINE_FAILED": grpc.StatusCode.INTERNAL,
    "ENVIRONMENT": grpc.StatusCode.FAILED_PRECONDITION,
    "SERVICE_UNREACHABLE": grpc.StatusCode.UNAVAILABLE,
    "NOT_FINITE": grpc.StatusCode.FAILED_PRECONDITION,
    "CANCELLED": grpc.StatusCode.CANCELLED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "WRONG_STATE": grpc.StatusCode.FAILED_PRECONDITION,
}


class Violation(NamedTuple):
    """One invalid field: its path in the request and what is wrong with its value."""

    field: str
    description: str


class CrosstrainError(Exception):
    """An error a user can act on.

    ``reason`` is a key of :data:`CODES`; ``message`` is for a person and carries no path,
    token or stack trace; ``field`` is the path of the field concerned, or empty.
    ``code`` overrides the reason's usual status code.
    """

    def __init__(self, reason, message, field="", code=None, violations=()):
        # type: (str, str, str, Optional[grpc.StatusCode], tuple) -> None
        if reason not in CODES:
            raise ValueError("unknown error reason %r" % reason)
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.code = code or CODES[reason]
        self.violations = tuple(violations) or ((Violation(field, message),) if field else ())

    def to_proto(self):
        # type: () -> errors_pb2.Error
        """The error as it is stored and shown."""
        return errors_pb2.Error(
            reason=errors_pb2.ErrorReason.Value("ERROR_REASON_" + self.reason),
            message=self.message,
            field=self.field,
        )


def invalid_field(field, message):
    # type: (str, str) -> CrosstrainError
    """An ``INVALID_FIELD`` error for one field."""
    return CrosstrainError("INVALID_FIELD", "%s: %s" % (field, message), field)
