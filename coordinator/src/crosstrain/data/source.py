"""Files of the user: which they are, what format they hold, and reading their bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import DataError
from .npy import CHUNK_BYTES

Progress = Callable[[int, int], None]
GZIP_MAGIC = b"\x1f\x8b"
NO_PROGRESS: Progress = lambda done, total: None  # noqa: E731


@dataclass(frozen=True)
class Source:
    """The regular files that make up one dataset, in a fixed order.

    ``name`` is what messages call it: the last part of the path the user gave.
    """

    name: str
    root: Path
    files: tuple[Path, ...]

    def identity(self) -> str:
        """A digest of device, inode, size and times of every file: equal means unchanged.

        Raises:
            DataError: a file has gone or may not be looked at.
        """
        rows = []
        for path in self.files:
            with reading(path):
                stat = path.stat()
            times = [stat.st_mtime_ns, stat.st_ctime_ns]
            rows.append([str(path), stat.st_dev, stat.st_ino, stat.st_size, *times])
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def content_digest(self) -> str:
        """A digest of the names (below the root) and bytes of all files; reads every file."""
        digest = hashlib.sha256()
        for path in self.files:
            name = os.fsencode(path.relative_to(self.root) if path != self.root else path.name)
            digest.update(len(name).to_bytes(8, "little") + name)
            with reading(path), open(path, "rb", buffering=0) as file:
                digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
        return digest.hexdigest()


class reading:
    """Context: a failure to read ``path`` becomes a :class:`DataError` that names the file only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        name = self.path.name
        if isinstance(error, gzip.BadGzipFile | zlib.error):
            raise DataError(name, f"the compressed data is damaged ({error})") from None
        if isinstance(error, EOFError):
            raise DataError(name, "the compressed data is cut short") from None
        if isinstance(error, FileNotFoundError):
            raise DataError(name, "no such file or folder") from None
        if isinstance(error, OSError):
            raise DataError(name, f"cannot be read: {error.strerror or 'input/output error'}") from None


def regular_file(path: Path) -> Path:
    """``path`` itself, checked to be a file with something in it."""
    with reading(path):
        if path.is_dir():
            raise DataError(path.name, "is a folder; a file was expected here")
        if not path.is_file():
            raise DataError(path.name, "is not a regular file" if path.exists() else "no such file or folder")
        if path.stat().st_size == 0:
            raise DataError(path.name, "the file is empty")
    return path


def first_bytes(path: Path, count: int = 4096) -> bytes:
    """Up to ``count`` bytes from the start of a file, decompressed when it is gzip."""
    with reading(path):
        with open(path, "rb") as file:
            start = file.read(count)
        if not start.startswith(GZIP_MAGIC):
            return start
        with gzip.open(path, "rb") as unpacked:
            return unpacked.read(count)


def is_gzip(path: Path) -> bool:
    """Whether the file starts as gzip data does."""
    with reading(path), open(path, "rb") as file:
        return file.read(2) == GZIP_MAGIC


def chunks(path: Path, progress: Progress = NO_PROGRESS, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of a plain or gzip file in pieces of about ``size``, in bounded memory.

    ``progress`` is told the position in the file on disk and that file's size.
    """
    with reading(path), open(path, "rb") as raw:
        total = os.fstat(raw.fileno()).st_size
        file: IO[bytes] = raw
        if is_gzip(path):
            file = gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[assignment]
        while chunk := file.read(size):
            progress(min(raw.tell(), total), total)
            yield chunk
        progress(total, total)
