"""Streaming writer of ``.npy`` files whose length is known only at the end.

The bytes are those of ``numpy.save``: version 1.0, a header of 128 bytes, C order. The header is
built here so that the digest of the same data is the same whatever the version of NumPy.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"\x93NUMPY\x01\x00"
HEADER_BYTES = 128
CHUNK_BYTES = 1 << 20


def header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The 128 bytes before the data of an array of dtype ``descr`` (``|u1``, ``<f4``, ``<i8``)."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape!r}, }}".encode("ascii")
    room = HEADER_BYTES - len(MAGIC) - 2
    if len(text) >= room:
        raise ValueError("the shape does not fit a header of 128 bytes")
    return MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


class ArrayWriter:
    """Appends blocks of samples to one new file.

    Args:
        path: file to create; must not exist.
        dtype: little-endian or single-byte dtype of the stored values.
        sample_shape: shape of one sample, so the array is (N, *sample_shape).
    """

    def __init__(self, path: Path, dtype: str, sample_shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.sample_shape = sample_shape
        self.samples = 0
        self._file = open(path, "xb")  # noqa: SIM115  (closed by finish or abandon)
        self._file.write(header(self.dtype.str, (0, *sample_shape)))

    def append(self, block: NDArray[Any]) -> None:
        """Write ``block``, of shape (n, ...) with the size of n samples, already of the stored dtype."""
        if block.dtype != self.dtype:
            raise ValueError(f"block of {block.dtype} for an array of {self.dtype}")
        self._file.write(np.ascontiguousarray(block).data)
        self.samples += len(block)

    def written(self, step: int) -> Iterator[NDArray[Any]]:
        """What was appended so far, ``step`` samples at a time, read back without mapping the file."""
        self._file.flush()
        per_sample = math.prod(self.sample_shape)
        with open(self.path, "rb") as file:
            file.seek(HEADER_BYTES)
            for start in range(0, self.samples, step):
                count = min(step, self.samples - start)
                data = file.read(count * per_sample * self.dtype.itemsize)
                yield np.frombuffer(data, dtype=self.dtype).reshape(count, *self.sample_shape)

    def finish(self) -> str:
        """Write the true header, sync the file, close it, and return the SHA-256 of its bytes (hex)."""
        with self._file:
            self._file.seek(0)
            self._file.write(header(self.dtype.str, (self.samples, *self.sample_shape)))
            self._file.flush()
            os.fsync(self._file.fileno())
        return file_digest(self.path)

    def abandon(self) -> None:
        """Close and remove the file; never raises for a full disk."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read in chunks."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def open_mapped(path: Path) -> NDArray[Any]:
    """Map a ``.npy`` file for reading.

    Raises:
        ValueError: not such a file, or its length is not what its header says.
    """
    size = path.stat().st_size
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError("it is cut short or is not an array file") from error
    if size != HEADER_BYTES + array.nbytes:
        raise ValueError(f"it has {size} bytes where {HEADER_BYTES + array.nbytes} were expected")
    return array
