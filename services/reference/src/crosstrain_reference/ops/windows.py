"""Geometry of sliding windows, for any number of spatial dimensions.

Positions are counted in the padded input: window ``i`` starts at ``i * stride`` and the first input element
lies at ``pad_begin``.
"""

from itertools import product
from typing import Iterator, Sequence, Tuple

import numpy as np

from .checks import Extent, per_dimension

Sizes = Tuple[int, ...]


class Geometry:
    """Checked kernel, stride and padding over one spatial input, all as tuples of integers.

    ``output`` is the number of windows per dimension and ``reach`` the length of padded input that they cover
    (which rounding up makes longer than input and padding together, and rounding down possibly shorter).
    """

    def __init__(
        self,
        operation: str,
        input_size: Sequence[int],
        kernel: Extent,
        stride: Extent,
        pad_begin: Extent,
        pad_end: Extent,
        round_mode: str = "floor",
    ) -> None:
        """Check the arguments and count the windows.

        With ``round_mode`` "ceil" a partial window at the end counts, but only if it starts inside the input
        or its leading padding (as in Caffe and PyTorch; Caffe leaves that condition out where there is no
        padding, which matters only for strides larger than the kernel).

        Raises ValueError for unusable arguments or where no window fits.
        """
        dims = len(input_size)
        self.input = per_dimension(operation + ": input size", input_size, dims, 1)
        self.kernel = per_dimension(operation + ": kernel", kernel, dims, 1)
        self.stride = per_dimension(operation + ": stride", stride, dims, 1)
        self.pad_begin = per_dimension(operation + ": pad_begin", pad_begin, dims, 0)
        self.pad_end = per_dimension(operation + ": pad_end", pad_end, dims, 0)
        if round_mode not in ("floor", "ceil"):
            raise ValueError(f"{operation}: round_mode is {round_mode!r}, expected 'floor' or 'ceil'")
        self.output = tuple(self._count(operation, d, round_mode) for d in range(dims))
        self.reach = tuple((o - 1) * s + k for o, s, k in zip(self.output, self.stride, self.kernel))

    def _count(self, operation: str, d: int, round_mode: str) -> int:
        n, k, s, begin, end = (
            self.input[d],
            self.kernel[d],
            self.stride[d],
            self.pad_begin[d],
            self.pad_end[d],
        )
        room = n + begin + end - k
        if room < 0:
            raise ValueError(
                f"{operation}: kernel {k} does not fit input {n} with padding {begin} + {end} (spatial dimension {d})"
            )
        if round_mode == "floor":
            return room // s + 1
        count = -(-room // s) + 1
        return count - 1 if (count - 1) * s >= n + begin else count

    def offsets(self) -> Iterator[Sizes]:
        """Yield the positions inside a window in row-major order."""
        return product(*(range(k) for k in self.kernel))

    def at(self, offset: Sizes) -> Tuple[slice, ...]:
        """Return slices of the padded input that pick the element at ``offset`` of every window."""
        return tuple(
            slice(start, start + (count - 1) * s + 1, s)
            for start, count, s in zip(offset, self.output, self.stride)
        )

    def positions(self, offset: Sizes) -> Tuple[np.ndarray, np.ndarray]:
        """Return, for the element at ``offset`` of every window, where it lies in the input without padding.

        Two arrays of shape ``output``: the row-major index (int64) and whether it is input and not padding;
        an index is meaningful only where the second is True.
        """
        index = np.zeros((), dtype=np.int64)
        inside = np.ones((), dtype=bool)
        for start, count, s, begin, n in zip(offset, self.output, self.stride, self.pad_begin, self.input):
            place = start + s * np.arange(count, dtype=np.int64) - begin
            index = index[..., np.newaxis] * n + place
            inside = inside[..., np.newaxis] & (place >= 0) & (place < n)
        return index, inside

    def padded(self, x: np.ndarray, value: float) -> np.ndarray:
        """Return ``x`` of shape ``(A, B, input...)`` padded with ``value`` to at least what the windows reach."""
        total = tuple(
            max(n + begin + end, reach)
            for n, begin, end, reach in zip(self.input, self.pad_begin, self.pad_end, self.reach)
        )
        out = np.full(x.shape[:2] + total, value, dtype=x.dtype)
        out[self.interior()] = x
        return out

    def interior(self) -> Tuple[slice, ...]:
        """Return slices of a padded ``(A, B, spatial...)`` array that pick the input without padding."""
        kept = tuple(slice(begin, begin + n) for begin, n in zip(self.pad_begin, self.input))
        return (slice(None), slice(None)) + kept

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return the windows of ``x`` ``(N, C, input...)``, zero-padded, as ``(C * kernel, N * output)``."""
        padded = self.padded(x.swapaxes(0, 1), 0.0)
        step = padded.strides[2:]
        view = np.lib.stride_tricks.as_strided(
            padded,
            shape=padded.shape[:1] + self.kernel + padded.shape[1:2] + self.output,
            strides=padded.strides[:1]
            + step
            + padded.strides[1:2]
            + tuple(b * s for b, s in zip(step, self.stride)),
            writeable=False,
        )
        return view.reshape(padded.shape[0] * int(np.prod(self.kernel)), -1)

    def sum_columns(self, columns: np.ndarray, batch: int) -> np.ndarray:
        """Add up columns into an ``(N, C, input...)`` array: the transpose of :meth:`columns`."""
        parts = columns.reshape((-1,) + self.kernel + (batch,) + self.output)
        total = np.zeros((parts.shape[0], batch) + self.input, dtype=columns.dtype)
        padded = self.padded(total, 0.0)
        for offset in self.offsets():
            padded[(slice(None), slice(None)) + self.at(offset)] += parts[(slice(None),) + offset]
        return np.ascontiguousarray(padded[self.interior()].swapaxes(0, 1))
