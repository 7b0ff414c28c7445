"""The one place where exceptions of the coordinator become gRPC statuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.status import abort


class ErrorInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Gives every failed call a status from the catalogue, also one that fails within a stream.

    Messages over ``message_limit`` bytes are refused here with ``LIMIT_EXCEEDED`` as long as gRPC's
    own limit, which carries no details, is higher.
    """

    def __init__(self, message_limit: int) -> None:
        self._limit = message_limit

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of one call."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        serializers = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._single(handler.unary_unary, False), **serializers)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._single(handler.stream_unary, True), **serializers)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._many(handler.unary_stream, False), **serializers)
        return grpc.stream_stream_rpc_method_handler(self._many(handler.stream_stream, True), **serializers)

    def _single(self, method: Callable[..., Any], streamed: bool) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return method(self._checked(request, streamed), context)
            except Exception as error:  # the boundary: no stack trace leaves the coordinator
                return abort(context, error)

        return call

    def _many(self, method: Callable[..., Any], streamed: bool) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from method(self._checked(request, streamed), context)
            except Exception as error:  # the boundary, as above
                abort(context, error)

        return call

    def _checked(self, request: Any, streamed: bool) -> Any:
        return self._each(request) if streamed else self._small(request)

    def _each(self, requests: Iterable[Any]) -> Iterator[Any]:
        for request in requests:
            yield self._small(request)

    def _small(self, request: Any) -> Any:
        size = request.ByteSize()
        if size > self._limit:
            message = f"a message of {size} bytes is over the limit of {self._limit} bytes"
            raise CrosstrainError("LIMIT_EXCEEDED", message)
        return request
