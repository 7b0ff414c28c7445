"""Immutable byte strings under their SHA-256, in a directory or any other storage that fsspec reaches."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import fsspec
import numpy as np
from numpy.typing import NDArray

from crosstrain_service.convert import check_digest
from crosstrain_service.errors import CrosstrainError

#: Bytes per chunk when an artifact is read or sent.
CHUNK = 512 << 10
#: Room that must be there at the start.
_PROBE_BYTES = 256 << 10
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArtifactStore:
    """Artifacts ``<root>/sha256/<first two hex digits>/<digest>``.

    Every artifact is first written to a local temporary file and checked, then published at once:
    by a rename in a directory, by an upload elsewhere (which object stores make visible as a whole).

    Args:
        url: a directory, or an fsspec URL such as ``s3://bucket/prefix`` or ``memory://name``.
        temporary: where artifacts are checked before an upload; by default the system's place.

    Raises:
        CrosstrainError: ``ENVIRONMENT`` if the URL's protocol is unknown or its library is missing.
    """

    def __init__(self, url: str, temporary: Path | None = None) -> None:
        protocol = urlsplit(url).scheme
        self._local = protocol in ("", "file")
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            reason = f"storage of the kind {protocol!r} cannot be used: {type(error).__name__}"
            raise CrosstrainError("ENVIRONMENT", reason) from error
        self._root = f"{root.rstrip('/')}/sha256"
        self._temporary = temporary
        if self._local:
            self._temporary = Path(self._root) / "incoming"
        if self._temporary is not None:
            self._temporary.mkdir(parents=True, exist_ok=True, mode=0o700)

    def check(self) -> None:
        """Writes a small object and removes it, so that storage that cannot be used is found at the start.

        Raises:
            CrosstrainError: ``STORAGE_FULL`` without room, else ``ENVIRONMENT`` with the storage's own words.
        """
        path = f"{self._root}/probe-{uuid.uuid4().hex}"
        try:
            if self._local:
                os.makedirs(self._root, mode=0o700, exist_ok=True)
            try:
                self._fs.pipe_file(path, bytes(_PROBE_BYTES))
            finally:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(path)
        except Exception as error:  # every kind of storage has errors of its own
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise CrosstrainError("STORAGE_FULL", "the artifact storage has no room left") from error
            reason = f"the artifact storage cannot be written to: {type(error).__name__}: {error}"
            raise CrosstrainError("ENVIRONMENT", reason) from error

    def path(self, digest: str) -> str:
        """Where an artifact lies within the storage; ``INVALID_FIELD`` if ``digest`` is none."""
        check_digest(digest, "digest")
        return f"{self._root}/{digest[:2]}/{digest}"

    def __contains__(self, digest: str) -> bool:
        return bool(self._fs.exists(self.path(digest)))

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of some digests that are not stored, each once, in order."""
        return [digest for digest in dict.fromkeys(digests) if digest not in self]

    def size(self, digest: str, field: str = "digest") -> int:
        """Length in bytes; ``ARTIFACT_NOT_FOUND`` if there is none."""
        try:
            return int(self._fs.size(self.path(digest)))
        except FileNotFoundError:
            raise not_found(digest, field) from None

    def put(self, data: bytes) -> str:
        """Stores bytes and returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.write(digest, len(data), [data])
        return digest

    def write(self, digest: str, size: int, chunks: Iterable[bytes]) -> bool:
        """Stores a stream of chunks; returns whether the artifact was there before.

        Raises:
            CrosstrainError: ``ARTIFACT_CORRUPT`` (as INVALID_ARGUMENT) if the bytes do not have the
                digest or size, ``STORAGE_FULL`` without room; nothing is left behind.
        """
        target = self.path(digest)
        if digest in self:
            return True
        with _room(size), self._scratch() as file:
            _fill(file, digest, size, chunks)
            self._publish(file, target)
        return False

    def add_file(self, source: Path, digest: str) -> bool:
        """Stores a local file; in a directory on the same file system as a link to the same bytes."""
        if digest in self:
            return True
        if self._local:
            target = self.path(digest)
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            with contextlib.suppress(OSError):
                os.link(source, target)
                return False
        with open(source, "rb") as file:
            return self.write(digest, source.stat().st_size, iter(lambda: file.read(CHUNK), b""))

    def read(self, digest: str, offset: int = 0, field: str = "digest") -> Iterator[bytes]:
        """Chunks of an artifact from an offset on.

        Raises:
            CrosstrainError: ``ARTIFACT_NOT_FOUND``; after the last chunk of a whole artifact
                ``ARTIFACT_CORRUPT`` (DATA_LOSS) if the stored bytes no longer have the digest.
        """
        try:
            file: IO[bytes] = self._fs.open(self.path(digest), "rb", block_size=CHUNK)
        except FileNotFoundError:
            raise not_found(digest, field) from None
        checksum = hashlib.sha256()
        with file:
            file.seek(offset)
            while chunk := file.read(CHUNK):
                checksum.update(chunk)
                yield chunk
        if offset == 0 and checksum.hexdigest() != digest:
            raise CrosstrainError("ARTIFACT_CORRUPT", f"{field}: the stored artifact {digest} is damaged", field)

    def get(self, digest: str, field: str = "digest") -> bytes:
        """The whole artifact, its digest checked; errors as for :meth:`read`."""
        return b"".join(self.read(digest, 0, field))

    def array_header(self, digest: str, field: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of a ``.npy`` artifact, from its header alone; its size is checked against them.

        Raises:
            CrosstrainError: ``INVALID_DATA`` if it is no complete ``.npy`` file in C order.
        """
        with self._array_file(digest, field) as file:
            return self._header(file, digest, field)

    def array_blocks(self, digest: str, field: str) -> Iterator[NDArray[Any]]:
        """A one-dimensional ``.npy`` artifact in blocks; errors as for :meth:`array_header`."""
        with self._array_file(digest, field) as file:
            shape, dtype = self._header(file, digest, field)
            if len(shape) != 1:
                raise CrosstrainError("INVALID_DATA", f"{field}: the array has {len(shape)} dimensions, not 1", field)
            while block := file.read(CHUNK - CHUNK % dtype.itemsize):
                yield np.frombuffer(block, dtype=dtype)

    def array_head(self, digest: str, rows: int, field: str) -> NDArray[Any]:
        """The first ``rows`` rows of a ``.npy`` artifact; errors as for :meth:`array_header`."""
        with self._array_file(digest, field) as file:
            shape, dtype = self._header(file, digest, field)
            shape = (min(rows, shape[0]), *shape[1:])
            data = file.read(int(np.prod(shape)) * dtype.itemsize)
        return np.frombuffer(data, dtype=dtype).reshape(shape)

    def array(self, digest: str, field: str) -> NDArray[Any]:
        """A whole ``.npy`` artifact, its bytes checked first; mapped into memory where the storage is a folder.

        Raises:
            CrosstrainError: ``ARTIFACT_NOT_FOUND``, ``ARTIFACT_CORRUPT``, or ``INVALID_DATA`` if it is no
                ``.npy`` file.
        """
        if not self._local:
            source: Any = io.BytesIO(self.get(digest, field))
        else:
            for _chunk in self.read(digest, 0, field):
                pass
            source = self.path(digest)
        try:
            found = np.load(source, mmap_mode="r" if self._local else None, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            message = f"{field}: artifact {digest} is no .npy file: {type(error).__name__}"
            raise CrosstrainError("INVALID_DATA", message, field) from error
        if not isinstance(found, np.ndarray):
            raise CrosstrainError("INVALID_DATA", f"{field}: artifact {digest} holds no single array", field)
        return found

    def remove(self, digest: str) -> None:
        """Removes an artifact, if it is stored."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self.path(digest))

    def _array_file(self, digest: str, field: str) -> IO[bytes]:
        try:
            file: IO[bytes] = self._fs.open(self.path(digest), "rb", block_size=CHUNK)
        except FileNotFoundError:
            raise not_found(digest, field) from None
        return file

    def _header(self, file: IO[bytes], digest: str, field: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            version = np.lib.format.read_magic(file)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = reader(file)
            if fortran or dtype.hasobject:
                raise ValueError("not plain C order")
            whole = file.tell() + dtype.itemsize * int(np.prod(shape, dtype=object))
            if whole != self.size(digest, field):
                raise ValueError("truncated")
        except (ValueError, TypeError, EOFError, OverflowError):
            message = f"{field}: artifact {digest} is no complete .npy file in C order"
            raise CrosstrainError("INVALID_DATA", message, field) from None
        return shape, dtype

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[IO[bytes]]:
        handle, name = tempfile.mkstemp(prefix="artifact-", dir=self._temporary)
        try:
            os.close(handle)
            with open(name, "wb") as file:
                yield file
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _publish(self, file: IO[bytes], target: str) -> None:
        if not self._local:
            self._fs.put_file(file.name, target)
            return
        folder = os.path.dirname(target)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.fsync(file.fileno())
        os.rename(file.name, target)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def not_found(digest: str, field: str) -> CrosstrainError:
    """The error for an artifact that is not stored."""
    return CrosstrainError("ARTIFACT_NOT_FOUND", f"{field}: no artifact {digest} is stored here", field)


def _fill(file: IO[bytes], digest: str, size: int, chunks: Iterable[bytes]) -> None:
    checksum = hashlib.sha256()
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > size:
            break
        checksum.update(chunk)
        file.write(chunk)
    file.flush()
    if total != size or checksum.hexdigest() != digest:
        raise CrosstrainError(
            "ARTIFACT_CORRUPT",
            f"the bytes do not have the announced digest and size ({total} bytes of {size})",
            "digest",
            "INVALID_ARGUMENT",
        )


@contextlib.contextmanager
def _room(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise CrosstrainError("STORAGE_FULL", f"no room to store an artifact of {size} bytes") from error
        raise
