"""Artifacts from and to files of the client."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc
from crosstrain_service.errors import CrosstrainError

#: Bytes per message of a stream.
CHUNK = 512 << 10


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file in chunks."""
    while chunk := file.read(CHUNK):
        yield chunk


def digest_of(file: IO[bytes]) -> tuple[str, int]:
    """SHA-256 and length of a file."""
    checksum, size = hashlib.sha256(), 0
    for chunk in blocks(file):
        checksum.update(chunk)
        size += len(chunk)
    return checksum.hexdigest(), size


def upload(
    stub: artifact_pb2_grpc.ArtifactServiceStub, digest: str, size: int, file: IO[bytes]
) -> None:
    """Sends a whole file, unless it is stored on the other side."""
    if not stub.Stat(artifact_pb2.StatRequest(digests=[digest]), timeout=60.0).missing:
        return

    def messages() -> Iterator[artifact_pb2.WriteRequest]:
        yield artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(digest=digest, size_bytes=size))
        file.seek(0)
        for chunk in blocks(file):
            yield artifact_pb2.WriteRequest(chunk=chunk)

    stub.Write(messages())


def download(stub: artifact_pb2_grpc.ArtifactServiceStub, digest: str) -> Iterator[bytes]:
    """The chunks of an artifact; raises ``ARTIFACT_CORRUPT`` after the last one if they lack the digest."""
    checksum = hashlib.sha256()
    for response in stub.Read(artifact_pb2.ReadRequest(digest=digest)):
        checksum.update(response.chunk)
        yield response.chunk
    if checksum.hexdigest() != digest:
        raise CrosstrainError("ARTIFACT_CORRUPT", f"artifact {digest} arrived damaged", "digest")


def save(chunks: Iterable[bytes], path: Path) -> None:
    """Writes chunks aside and renames the file when all have come."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
