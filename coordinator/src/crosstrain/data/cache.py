"""The content-addressed store of imported arrays.

<root>/data/sha256/ab/<digest>     .npy files named by the SHA-256 of their bytes
<root>/data/index/<key>.json       what each source was imported as (see index.py)
<root>/data/locks/<key>.lock       held while a source is imported
<root>/data/tmp/                   files being written; renamed when whole and synced
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .errors import DataError
from .npy import ArrayWriter, file_digest, open_mapped

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DataCache:
    """Imported arrays under one directory, shared safely by processes of one machine.

    Args:
        root: directory of the cache; created when it is missing.

    Raises:
        DataError: the directory cannot be created.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        data = self.root / "data"
        self._arrays, self.index_dir, self._locks, self._tmp = (
            data / name for name in ("sha256", "index", "locks", "tmp")
        )
        with writing():
            for folder in (self._arrays, self.index_dir, self._locks, self._tmp):
                folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def default(cls) -> DataCache:
        """The user's cache: ``$CROSSTRAIN_CACHE``, else ``$XDG_CACHE_HOME/crosstrain``."""
        stated = os.environ.get("CROSSTRAIN_CACHE")
        if stated:
            return cls(stated)
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(Path(base) / "crosstrain")

    def path(self, digest: str) -> Path:
        """Where the array of this digest is, or would be.

        Raises:
            DataError: ``digest`` is not 64 lower-case hexadecimal digits.
        """
        if not DIGEST.match(digest):
            raise DataError("digest", "not a SHA-256 in lower-case hexadecimal", value=digest)
        return self._arrays / digest[:2] / digest

    def open(self, digest: str, *, verify: bool = False) -> NDArray[Any]:
        """Map one array read-only, without pickle.

        The length is always checked against the header; ``verify`` also recomputes the digest, which
        reads the whole file.

        Raises:
            DataError: the array is missing, truncated or (with ``verify``) altered.
        """
        path = self.path(digest)
        try:
            array = open_mapped(path)
            intact = not verify or file_digest(path) == digest
        except FileNotFoundError:
            raise DataError("cache", f"array {digest[:12]} is not in the cache; import its source") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"array {digest[:12]} is damaged: {reason}; import its source again"
            raise DataError("cache", message) from None
        if not intact:
            raise DataError("cache", f"array {digest[:12]} is damaged: its bytes have another digest")
        return array

    def writer(self, key: str, name: str, dtype: str, sample_shape: tuple[int, ...]) -> ArrayWriter:
        """A new temporary array file of the import ``key``; pass it to :meth:`adopt` when it is whole."""
        return ArrayWriter(self._tmp / f"{key}.{name}", dtype, sample_shape)

    def adopt(self, writer: ArrayWriter) -> str:
        """Finish a written array, move it to its content address and return its digest."""
        digest = writer.finish()
        target = self.path(digest)
        target.parent.mkdir(exist_ok=True)
        # An existing file of this name has the same content, unless it was damaged: replace it.
        os.replace(writer.path, target)
        sync_folder(target.parent)
        return digest

    def clear_temporary(self, key: str) -> None:
        """Remove what a killed import of ``key`` left behind; call with its lock held."""
        for path in self._tmp.glob(f"{key}.*"):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the import of ``key`` alone among all processes; waits for another holder."""
        with writing():
            file = open(self._locks / f"{key}.lock", "ab")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise DataError("cache", f"its file system cannot lock files: {error.strerror}") from None
            yield

    def write_text(self, path: Path, text: str) -> None:
        """Replace a small file of the cache atomically and durably."""
        temporary = self._tmp / f"{path.name}.{os.getpid()}.json"
        try:
            with writing():
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
                sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Turn a failure to write into the cache into a :class:`DataError` without a path."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            message = "no space left for the data cache; nothing was kept of this import"
            raise DataError("cache", message) from None
        raise DataError("cache", f"the data cache cannot be written: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
