"""Immutable byte strings in a directory, addressed by their SHA-256."""

import errno
import glob
import hashlib
import os
import tempfile
import time
from typing import Iterable, Iterator, Optional, Tuple

import numpy as np

from .convert import check_digest
from .errors import CrosstrainError

#: Bytes per chunk when an artifact is read or sent.
CHUNK = 512 << 10
_INCOMING = ".incoming-"
_ABANDONED_SECONDS = 86400.0


class ArtifactStore:
    """Files ``<root>/<first two hex digits>/<digest>``; written aside, synced, renamed."""

    def __init__(self, root: str) -> None:
        #: The folder.
        self.root = root
        os.makedirs(root, mode=0o700, exist_ok=True)

    def path(self, digest: str) -> str:
        """Where an artifact lies (whether or not it is there)."""
        check_digest(digest, "digest")
        return os.path.join(self.root, digest[:2], digest)

    def __contains__(self, digest: str) -> bool:
        return os.path.exists(self.path(digest))

    def require(self, digest: str, field: str) -> str:
        """The path of an artifact; raises ``ARTIFACT_NOT_FOUND`` naming the field if it is not stored."""
        path = self.path(digest)
        if not os.path.exists(path):
            raise CrosstrainError("ARTIFACT_NOT_FOUND", "%s: no artifact %s is stored here" % (field, digest), field)
        return path

    def put(self, data: bytes) -> str:
        """Stores bytes and returns their digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.write(digest, len(data), [data])
        return digest

    def write(self, digest: str, size: int, chunks: Iterable[bytes]) -> bool:
        """Stores a stream of chunks; returns whether it was there before.

        Raises ``ARTIFACT_CORRUPT`` (as INVALID_ARGUMENT) if the bytes do not have the digest or size and
        ``STORAGE_FULL`` if there is no room; nothing is left behind.
        """
        path = self.path(digest)
        existed = os.path.exists(path)
        if existed and os.path.getsize(path) == size:
            return True
        folder = os.path.dirname(path)
        temporary: Optional[str] = None
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_INCOMING, dir=folder)
            checksum = hashlib.sha256()
            total = 0
            with os.fdopen(handle, "wb") as file:
                for chunk in chunks:
                    total += len(chunk)
                    if total > size:
                        break
                    checksum.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if total != size or checksum.hexdigest() != digest:
                raise CrosstrainError(
                    "ARTIFACT_CORRUPT", "the bytes sent do not have the announced digest and size (%d bytes of %d)"
                    % (total, size), "digest", "INVALID_ARGUMENT")
            os.rename(temporary, path)
            temporary = None
            _sync_directory(folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise CrosstrainError("STORAGE_FULL", "no room to store an artifact of %d bytes" % size) from error
            raise
        finally:
            if temporary is not None:
                try:
                    os.unlink(temporary)
                except OSError:
                    pass
        return False

    def remove_abandoned(self) -> None:
        """Removes what processes that died while writing have left, a day later: others may be writing now."""
        limit = time.time() - _ABANDONED_SECONDS
        for path in glob.glob(os.path.join(glob.escape(self.root), "??", _INCOMING + "*")):
            try:
                if os.path.getmtime(path) < limit:
                    os.unlink(path)
            except OSError:  # another service of the host was faster
                continue

    def remove(self, digest: str) -> int:
        """Removes an artifact and returns the bytes that it took; 0 if it is not stored."""
        path = self.path(digest)
        try:
            size = os.path.getsize(path)
            os.unlink(path)
        except FileNotFoundError:
            return 0
        return size

    def read(self, digest: str, offset: int = 0) -> Iterator[bytes]:
        """Chunks of an artifact from an offset on; raises ``ARTIFACT_NOT_FOUND``."""
        with open(self.require(digest, "digest"), "rb") as file:
            file.seek(offset)
            while True:
                chunk = file.read(CHUNK)
                if not chunk:
                    return
                yield chunk

    def size(self, digest: str) -> int:
        """Length in bytes; raises ``ARTIFACT_NOT_FOUND``."""
        return os.path.getsize(self.require(digest, "digest"))

    def identity(self, digest: str, field: str) -> Tuple[str, int, int, int]:
        """Digest, inode, size and time of change: equal as long as the stored file is untouched."""
        entry = os.stat(self.require(digest, field))
        return digest, entry.st_ino, entry.st_size, entry.st_mtime_ns

    def get(self, digest: str, field: str = "digest") -> bytes:
        """The whole artifact, its digest checked; raises ``ARTIFACT_NOT_FOUND`` or ``ARTIFACT_CORRUPT``."""
        with open(self.require(digest, field), "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != digest:
            raise CrosstrainError("ARTIFACT_CORRUPT", "%s: the stored artifact %s is damaged" % (field, digest), field)
        return data

    def array(self, digest: str, field: str) -> np.ndarray:
        """A ``.npy`` artifact, memory-mapped read-only; never unpickles. Raises ``INVALID_DATA``."""
        path = self.require(digest, field)
        try:
            value = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a hostile header makes NumPy raise many kinds
            raise CrosstrainError("INVALID_DATA", "%s: artifact %s is no .npy file: %s"
                                  % (field, digest, type(error).__name__), field) from error
        if not isinstance(value, np.ndarray):
            raise CrosstrainError("INVALID_DATA", "%s: artifact %s holds no single array" % (field, digest), field)
        return value


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
