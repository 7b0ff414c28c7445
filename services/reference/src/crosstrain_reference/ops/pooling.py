"""Max and average pooling over any number of spatial dimensions.

``kernel``, ``stride`` and the padding before and after are integers or one integer per spatial dimension.
``round_mode`` is "floor" or "ceil"; see :class:`~crosstrain_reference.ops.windows.Geometry` for the clipping
of "ceil".  Padding must be smaller than the kernel, so that every window holds some input.
"""

from typing import Sequence, Tuple

import numpy as np

from .checks import Extent, require_shape, same_dtype, spatial_dims
from .windows import Geometry

_EACH = (slice(None), slice(None))


def pool_output_shape(
    x_shape: Sequence[int],
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
    round_mode: str = "floor",
) -> Tuple[int, ...]:
    """Return the shape that pooling makes of ``x_shape`` ``(N, C, spatial...)``.

    Raises ValueError naming the sizes if the kernel does not fit.
    """
    return tuple(x_shape[:2]) + _geometry(x_shape, kernel, stride, pad_begin, pad_end, round_mode).output


def max_pool(
    x: np.ndarray,
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
    round_mode: str = "floor",
) -> Tuple[np.ndarray, np.ndarray]:
    """Return the largest element of every window and where it was found.

    The second array (int64, the output's shape) is the row-major index into the input's spatial dimensions
    without padding.  Among equal values the first in row-major order of the window is chosen; NaN counts as
    larger than any number; padding is never chosen.
    """
    same_dtype("max_pool", x=x)
    geometry = _geometry(x.shape, kernel, stride, pad_begin, pad_end, round_mode)
    padded = geometry.padded(x, -np.inf)
    best = np.full(x.shape[:2] + geometry.output, -np.inf, dtype=x.dtype)
    chosen = np.full(best.shape, -1, dtype=np.int64)
    for offset in geometry.offsets():
        value = padded[_EACH + geometry.at(offset)]
        index, inside = geometry.positions(offset)
        better = (value > best) | (chosen < 0) | (np.isnan(value) & ~np.isnan(best))
        better &= inside
        np.copyto(best, value, where=better)
        np.copyto(chosen, index, where=better)
    return best, chosen


def max_pool_backward(
    dy: np.ndarray,
    indices: np.ndarray,
    x_shape: Sequence[int],
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
    round_mode: str = "floor",
) -> np.ndarray:
    """Send each window's gradient to the element that ``indices`` names, as returned by :func:`max_pool`.

    Raises ValueError if an index lies outside its window.
    """
    same_dtype("max_pool_backward", dy=dy)
    geometry = _geometry(x_shape, kernel, stride, pad_begin, pad_end, round_mode)
    require_shape("max_pool_backward", "dy", dy, tuple(x_shape[:2]) + geometry.output)
    require_shape("max_pool_backward", "indices", indices, dy.shape)
    padded = geometry.padded(np.zeros(x_shape, dtype=dy.dtype), 0.0)
    zero = dy.dtype.type(0)
    used = 0
    for offset in geometry.offsets():
        index, inside = geometry.positions(offset)
        here = (indices == index) & inside
        used += int(np.count_nonzero(here))
        padded[_EACH + geometry.at(offset)] += np.where(here, dy, zero)
    if used != indices.size:
        raise ValueError(
            f"max_pool_backward: {indices.size - used} of {indices.size} indices lie outside their window"
        )
    return np.ascontiguousarray(padded[geometry.interior()])


def average_pool(
    x: np.ndarray,
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
    round_mode: str = "floor",
    count_include_pad: bool = False,
) -> np.ndarray:
    """Return the mean of every window, padding being 0.

    With ``count_include_pad`` the divisor is the part of the window inside input and padding together;
    otherwise the part inside the input alone.
    """
    same_dtype("average_pool", x=x)
    geometry = _geometry(x.shape, kernel, stride, pad_begin, pad_end, round_mode)
    padded = geometry.padded(x, 0.0)
    total = np.zeros(x.shape[:2] + geometry.output, dtype=x.dtype)
    for offset in geometry.offsets():
        total += padded[_EACH + geometry.at(offset)]
    return total / _divisor(geometry, count_include_pad, x.dtype)


def average_pool_backward(
    dy: np.ndarray,
    x_shape: Sequence[int],
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
    round_mode: str = "floor",
    count_include_pad: bool = False,
) -> np.ndarray:
    """Return the gradient of :func:`average_pool` with respect to its input of shape ``x_shape``."""
    same_dtype("average_pool_backward", dy=dy)
    geometry = _geometry(x_shape, kernel, stride, pad_begin, pad_end, round_mode)
    require_shape("average_pool_backward", "dy", dy, tuple(x_shape[:2]) + geometry.output)
    share = dy / _divisor(geometry, count_include_pad, dy.dtype)
    padded = geometry.padded(np.zeros(x_shape, dtype=dy.dtype), 0.0)
    for offset in geometry.offsets():
        padded[_EACH + geometry.at(offset)] += share
    return np.ascontiguousarray(padded[geometry.interior()])


def _divisor(geometry: Geometry, count_include_pad: bool, dtype: np.dtype) -> np.ndarray:
    divisor = np.ones((), dtype=np.int64)
    for d, count in enumerate(geometry.output):
        start = geometry.stride[d] * np.arange(count, dtype=np.int64)
        low, high = 0, geometry.pad_begin[d] + geometry.input[d] + geometry.pad_end[d]
        if not count_include_pad:
            low, high = geometry.pad_begin[d], geometry.pad_begin[d] + geometry.input[d]
        length = np.minimum(start + geometry.kernel[d], high) - np.maximum(start, low)
        divisor = divisor[..., np.newaxis] * length
    return divisor.astype(dtype)


def _geometry(
    x_shape: Sequence[int],
    kernel: Extent,
    stride: Extent,
    pad_begin: Extent,
    pad_end: Extent,
    round_mode: str,
) -> Geometry:
    spatial_dims("pooling", x_shape)
    geometry = Geometry("pooling", x_shape[2:], kernel, stride, pad_begin, pad_end, round_mode)
    for k, begin, end in zip(geometry.kernel, geometry.pad_begin, geometry.pad_end):
        if max(begin, end) >= k:
            raise ValueError(f"pooling: padding {begin} + {end} must be smaller than the kernel {k}")
    return geometry
