"""Padding as an operation of its own."""

from typing import Sequence, Tuple

import numpy as np

from .checks import Extent, per_dimension, require_shape, same_dtype, spatial_dims


def pad_output_shape(x_shape: Sequence[int], pad_begin: Extent, pad_end: Extent) -> Tuple[int, ...]:
    """Return the shape that padding makes of ``x_shape`` ``(N, C, spatial...)``."""
    begin, end = _extents(x_shape, pad_begin, pad_end)
    return tuple(x_shape[:2]) + tuple(n + b + e for n, b, e in zip(x_shape[2:], begin, end))


def pad(x: np.ndarray, pad_begin: Extent, pad_end: Extent, value: float = 0.0) -> np.ndarray:
    """Return ``x`` ``(N, C, spatial...)`` with ``value`` added before and after every spatial dimension.

    Before max pooling ``value`` must be ``-inf``, so that padding is never chosen.
    """
    same_dtype("pad", x=x)
    out = np.full(pad_output_shape(x.shape, pad_begin, pad_end), value, dtype=x.dtype)
    out[_interior(x.shape, pad_begin, pad_end)] = x
    return out


def pad_backward(dy: np.ndarray, x_shape: Sequence[int], pad_begin: Extent, pad_end: Extent) -> np.ndarray:
    """Return the part of ``dy`` that belongs to the input."""
    same_dtype("pad_backward", dy=dy)
    require_shape("pad_backward", "dy", dy, pad_output_shape(x_shape, pad_begin, pad_end))
    return np.ascontiguousarray(dy[_interior(x_shape, pad_begin, pad_end)])


def _extents(
    x_shape: Sequence[int], pad_begin: Extent, pad_end: Extent
) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    dims = spatial_dims("pad", x_shape)
    return per_dimension("pad: pad_begin", pad_begin, dims, 0), per_dimension(
        "pad: pad_end", pad_end, dims, 0
    )


def _interior(x_shape: Sequence[int], pad_begin: Extent, pad_end: Extent) -> Tuple[slice, ...]:
    begin, _ = _extents(x_shape, pad_begin, pad_end)
    return (slice(None), slice(None)) + tuple(slice(b, b + n) for n, b in zip(x_shape[2:], begin))
