"""Errors as gRPC statuses with ``google.rpc`` details."""

import logging
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from .errors import DOMAIN, CrosstrainError

_LOG = logging.getLogger("crosstrain.service")
#: Name of the trailing metadata entry that carries ``google.rpc.Status``.
DETAILS_KEY = "grpc-status-details-bin"


def details(error: CrosstrainError) -> bytes:
    """The serialised ``google.rpc.Status`` of an error."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code), message=error.message)
    parts: list = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if error.field:
        parts[0].metadata["field"] = error.field
    if error.violations:
        bad = error_details_pb2.BadRequest()
        for violation in error.violations:
            bad.field_violations.add(field=violation.field, description=violation.description)
        parts.append(bad)
    for part in parts:
        wrapped = any_pb2.Any()
        wrapped.Pack(part)
        status.details.append(wrapped)
    return status.SerializeToString()  # type: ignore[no-any-return]


def abort(context: grpc.ServicerContext, error: BaseException) -> Any:
    """Ends a call with the status of an error; what is not from the catalogue becomes ``INTERNAL``."""
    if not isinstance(error, CrosstrainError):
        if not context.is_active():
            raise error
        _LOG.exception("defect while serving a call", exc_info=error)
        error = CrosstrainError("INTERNAL", "a defect in the service (%s); its log says more" % type(error).__name__)
    context.set_trailing_metadata(((DETAILS_KEY, details(error)),))
    context.abort(getattr(grpc.StatusCode, error.code), error.message)
