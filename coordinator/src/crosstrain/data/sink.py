"""Takes decoded samples block by block and turns them into arrays of the cache and statistics."""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cache import DataCache, writing
from .npy import CHUNK_BYTES

ROW_HASH_BYTES = 16


@dataclass(frozen=True)
class StoredPixels:
    """What the sink knows about the samples once all were taken."""

    pixels_digest: str
    rows_digest: str
    samples: int
    dtype: str
    minimum: float
    maximum: float
    duplicates: int
    conflicting: int


class SampleSink:
    """Streams samples of one shape into the cache.

    Pixels are stored as uint8 for as long as every value is an integer 0..255; the first other value
    converts what was written to float32. Memory stays at a few blocks plus 24 bytes per sample (its
    label and a hash of its pixels).

    Args:
        cache: where the arrays go.
        key: name of the import, whose lock is held.
        sample_shape: (C, H, W) or (C, L).
    """

    def __init__(self, cache: DataCache, key: str, sample_shape: tuple[int, ...]) -> None:
        self.sample_shape = sample_shape
        self.values_per_sample = math.prod(sample_shape)
        self._cache, self._key = cache, key
        self._labels = array("q")
        self._hashes: list[bytes] = []
        self._minimum, self._maximum = math.inf, -math.inf
        with writing():
            self._pixels = cache.writer(key, "uint8", "|u1", sample_shape)

    @property
    def samples(self) -> int:
        """Samples taken so far."""
        return self._pixels.samples

    def labels(self) -> NDArray[np.int64]:
        """(N,) labels so far, as they were in the source."""
        return np.frombuffer(self._labels.tobytes(), dtype=np.int64)

    def add(self, pixels: NDArray[Any], labels: NDArray[np.int64]) -> None:
        """Take n samples.

        Args:
            pixels: (n, values per sample), finite, any real dtype within the range of float32.
            labels: (n,) as they were in the source.

        Raises:
            DataError: the cache has no room.
        """
        if not len(pixels):
            return
        block, byte_rows = _as_stored(pixels)
        if block.dtype != np.uint8 and self._pixels.dtype == np.uint8:
            self._widen()
        stored = block.astype(self._pixels.dtype, copy=False)
        self._minimum = min(self._minimum, float(stored.min()))
        self._maximum = max(self._maximum, float(stored.max()))
        self._labels.frombytes(np.ascontiguousarray(labels, dtype=np.int64).tobytes())
        self._hashes.append(_row_hashes(block, byte_rows))
        with writing():
            self._pixels.append(stored)

    def finish(self) -> StoredPixels:
        """Move the arrays into the cache and return what they hold; at least one sample is needed."""
        hashes = np.frombuffer(b"".join(self._hashes), dtype=np.uint8).reshape(-1, ROW_HASH_BYTES)
        duplicates, conflicting = count_duplicates(hashes, self.labels())
        dtype = self._pixels.dtype.name
        samples = self.samples
        with writing():
            pixels_digest = self._cache.adopt(self._pixels)
            rows_digest = store_array(self._cache, self._key, "rows", hashes)
        return StoredPixels(
            pixels_digest=pixels_digest,
            rows_digest=rows_digest,
            samples=samples,
            dtype=dtype,
            minimum=self._minimum,
            maximum=self._maximum,
            duplicates=duplicates,
            conflicting=conflicting,
        )

    def abandon(self) -> None:
        """Remove every file of this import that is not in the cache yet."""
        self._pixels.abandon()
        self._cache.clear_temporary(self._key)

    def _widen(self) -> None:
        """Rewrite the samples so far as float32, in bounded memory."""
        narrow = self._pixels
        with writing():
            wide = self._cache.writer(self._key, "float32", "<f4", self.sample_shape)
            self._pixels = wide
            try:
                for block in narrow.written(max(1, CHUNK_BYTES // self.values_per_sample)):
                    wide.append(block.astype(np.float32))
            finally:
                narrow.abandon()


def store_array(cache: DataCache, key: str, name: str, values: NDArray[Any]) -> str:
    """Store one whole array under its digest; call inside ``writing()``."""
    writer = cache.writer(key, name, values.dtype.str, values.shape[1:])
    try:
        writer.append(values)
        return cache.adopt(writer)
    finally:
        writer.abandon()


def count_duplicates(hashes: NDArray[np.uint8], labels: NDArray[np.int64]) -> tuple[int, int]:
    """(samples whose pixels repeat an earlier sample's, those of them with a label that differs).

    Args:
        hashes: (N, 16) row hashes.
        labels: (N,) labels; a conflict is counted against the first sample of the same pixels.
    """
    low, high = row_keys(hashes).T
    order = np.lexsort((low, high))  # stable: equal rows stay in their order of appearance
    low, high, sorted_labels = low[order], high[order], labels[order]
    repeats = np.zeros(len(labels), dtype=bool)
    repeats[1:] = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
    first = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(labels))))
    conflicts = repeats & (sorted_labels != sorted_labels[first])
    return int(repeats.sum()), int(conflicts.sum())


def row_keys(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The (N, 16) row hashes as (N, 2) integers that sort and compare fast."""
    return np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)


def _as_stored(pixels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """The block as uint8 if it can be, else as float32 with a mask of the rows that could be."""
    if pixels.dtype == np.uint8:
        return pixels, None
    fits: NDArray[np.bool_]
    if pixels.dtype.kind in "biu":
        fits = (pixels >= 0) & (pixels <= 255)
    else:
        fits = pixels == np.floor(pixels)
        fits &= pixels >= 0
        fits &= pixels <= 255
    if fits.all():
        return pixels.astype(np.uint8), None
    # Adding zero turns -0.0 into 0.0, so that equal values have equal bytes.
    stored = pixels.astype(np.float32)
    stored += np.float32(0)
    return stored, np.asarray(fits.all(axis=1))


def _row_hashes(block: NDArray[Any], byte_rows: NDArray[np.bool_] | None) -> bytes:
    """16 bytes per sample, the same for the same values whatever dtype the whole array has."""
    out = []
    for index, row in enumerate(np.ascontiguousarray(block)):
        if byte_rows is not None and byte_rows[index]:
            row = row.astype(np.uint8)
        out.append(hashlib.sha256(row.data).digest()[:ROW_HASH_BYTES])
    return b"".join(out)
