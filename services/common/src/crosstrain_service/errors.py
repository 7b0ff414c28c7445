"""Errors with a reason from the catalogue in ``crosstrain/v1/errors.proto``."""

import re
from typing import NamedTuple, Optional

from crosstrain_protos.v1 import errors_pb2

#: Domain of every ``google.rpc.ErrorInfo`` sent by Crosstrain.
DOMAIN = "crosstrain"

#: Name of the gRPC status code of every reason; tests assert that no reason is missing.
#: (Names, since the child process of a run does not import gRPC.)
CODES = {
    "INVALID_FIELD": "INVALID_ARGUMENT",
    "INVALID_MODEL": "INVALID_ARGUMENT",
    "INVALID_DATA": "INVALID_ARGUMENT",
    "INVALID_WEIGHTS": "INVALID_ARGUMENT",
    "INVALID_JOB": "INVALID_ARGUMENT",
    "PATH_OUTSIDE_DATA": "INVALID_ARGUMENT",
    "UNSUPPORTED": "FAILED_PRECONDITION",
    "ENGINE_NOT_FOUND": "NOT_FOUND",
    "RUN_NOT_FOUND": "NOT_FOUND",
    "JOB_NOT_FOUND": "NOT_FOUND",
    "ARTIFACT_NOT_FOUND": "NOT_FOUND",
    "ARTIFACT_CORRUPT": "DATA_LOSS",
    "ID_REUSED": "ALREADY_EXISTS",
    "STORAGE_FULL": "RESOURCE_EXHAUSTED",
    "LIMIT_EXCEEDED": "RESOURCE_EXHAUSTED",
    "CHILD_DIED": "INTERNAL",
    "ENGINE_FAILED": "INTERNAL",
    "ENVIRONMENT": "FAILED_PRECONDITION",
    "SERVICE_UNREACHABLE": "UNAVAILABLE",
    "NOT_FINITE": "FAILED_PRECONDITION",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
    "WRONG_STATE": "FAILED_PRECONDITION",
    "RANK_LOST": "INTERNAL",
    "RANK_DIVERGED": "INTERNAL",
}


#: An absolute path: it helps nobody elsewhere and may tell about the machine's users.
_PATH = re.compile(r"(?<![\w.>])/[^\s,:;'\"()\[\]]+")


def without_paths(text: str) -> str:
    """The text with every absolute path replaced by "<path>"."""
    return _PATH.sub("<path>", text)


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

    def __init__(self, reason: str, message: str, field: str = "", code: Optional[str] = None,
                 violations: tuple = ()) -> None:
        if reason not in CODES:
            raise ValueError("unknown error reason %r" % reason)
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.code = code or CODES[reason]
        self.violations = tuple(violations) or ((Violation(field, message),) if field else ())

    def to_proto(self) -> errors_pb2.Error:
        """The error as it is stored and shown."""
        return errors_pb2.Error(
            reason=errors_pb2.ErrorReason.Value("ERROR_REASON_" + self.reason),
            message=self.message,
            field=self.field,
        )


def invalid_field(field: str, message: str) -> CrosstrainError:
    """An ``INVALID_FIELD`` error for one field."""
    return CrosstrainError("INVALID_FIELD", "%s: %s" % (field, message), field)
