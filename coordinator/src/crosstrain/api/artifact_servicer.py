"""ArtifactService over the coordinator's store."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from crosstrain.artifacts import ArtifactStore
from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc
from crosstrain_service.convert import check_digest
from crosstrain_service.errors import invalid_field

MAX_DIGESTS = 1000
MAX_CHUNK = 1 << 20


class ArtifactServicer(artifact_pb2_grpc.ArtifactServiceServicer):
    """Errors are raised; the interceptor turns them into statuses."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def Write(
        self, request_iterator: Iterator[artifact_pb2.WriteRequest], context: grpc.ServicerContext
    ) -> artifact_pb2.WriteResponse:
        """Stores one artifact."""
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise invalid_field("header", "the first message must be a header")
        header = first.header
        check_digest(header.digest, "header.digest")
        if header.size_bytes < 0:
            raise invalid_field("header.size_bytes", f"{header.size_bytes} is negative")
        existed = self._store.write(header.digest, header.size_bytes, _chunks(request_iterator))
        return artifact_pb2.WriteResponse(digest=header.digest, size_bytes=header.size_bytes, existed=existed)

    def Read(
        self, request: artifact_pb2.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[artifact_pb2.ReadResponse]:
        """Sends one artifact in chunks."""
        size = self._store.size(request.digest)
        if not 0 <= request.offset <= size:
            raise invalid_field("offset", f"{request.offset} is not within 0 to {size}")
        first = True
        for chunk in self._store.read(request.digest, request.offset):
            yield artifact_pb2.ReadResponse(chunk=chunk, size_bytes=size if first else 0)
            first = False
        if first:
            yield artifact_pb2.ReadResponse(size_bytes=size)

    def Stat(self, request: artifact_pb2.StatRequest, context: grpc.ServicerContext) -> artifact_pb2.StatResponse:
        """Says what is missing."""
        if len(request.digests) > MAX_DIGESTS:
            raise invalid_field("digests", f"{len(request.digests)} digests, at most {MAX_DIGESTS}")
        return artifact_pb2.StatResponse(missing=self._store.missing(request.digests))


def _chunks(requests: Iterator[artifact_pb2.WriteRequest]) -> Iterator[bytes]:
    for message in requests:
        if message.WhichOneof("part") != "chunk":
            raise invalid_field("chunk", "every message after the first must be a chunk")
        if len(message.chunk) > MAX_CHUNK:
            raise invalid_field("chunk", f"{len(message.chunk)} bytes, at most {MAX_CHUNK}")
        yield message.chunk
