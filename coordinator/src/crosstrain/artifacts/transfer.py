"""Moves artifacts to and from another process's ArtifactService."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc

from .store import ArtifactStore

#: Digests per Stat call.
STAT_BATCH = 1000
#: Seconds after which a transfer of one artifact is given up.
TRANSFER_TIMEOUT = 600.0


def missing_there(stub: artifact_pb2_grpc.ArtifactServiceStub, digests: Iterable[str]) -> list[str]:
    """Those of some digests that the other side has not stored, each once."""
    wanted = list(dict.fromkeys(digests))
    missing: list[str] = []
    for start in range(0, len(wanted), STAT_BATCH):
        request = artifact_pb2.StatRequest(digests=wanted[start : start + STAT_BATCH])
        missing.extend(stub.Stat(request, timeout=30.0).missing)
    return missing


def write_requests(digest: str, size: int, chunks: Iterable[bytes]) -> Iterator[artifact_pb2.WriteRequest]:
    """The messages that send one artifact."""
    yield artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(digest=digest, size_bytes=size))
    for chunk in chunks:
        yield artifact_pb2.WriteRequest(chunk=chunk)


def send(
    store: ArtifactStore,
    stub: artifact_pb2_grpc.ArtifactServiceStub,
    digests: Iterable[str],
    go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Sends those artifacts that the other side lacks.

    Raises:
        CrosstrainError: ``ARTIFACT_NOT_FOUND`` if one is not stored here either.
        grpc.RpcError: the other side does not answer or refuses.
    """
    for digest in missing_there(stub, digests):
        if not go_on():
            return
        size = store.size(digest)
        # A stream that failed to read here must not look complete over there: the digest tells.
        stub.Write(write_requests(digest, size, store.read(digest)), timeout=TRANSFER_TIMEOUT)


def fetch(store: ArtifactStore, stub: artifact_pb2_grpc.ArtifactServiceStub, digest: str) -> None:
    """Brings one artifact here, unless it is here.

    Raises:
        CrosstrainError: ``ARTIFACT_CORRUPT`` or ``STORAGE_FULL``.
        grpc.RpcError: the other side does not answer or has no such artifact.
    """
    if digest in store:
        return
    stream = iter(stub.Read(artifact_pb2.ReadRequest(digest=digest), timeout=TRANSFER_TIMEOUT))
    first = next(stream, None)
    if first is None:
        store.write(digest, 0, [])
        return

    def chunks() -> Iterator[bytes]:
        assert first is not None
        yield first.chunk
        for response in stream:
            yield response.chunk

    store.write(digest, first.size_bytes, chunks())
