"""Convolution over any number of spatial dimensions, as machine learning defines it: cross-correlation."""

from typing import Optional, Sequence, Tuple

import numpy as np

from .checks import Extent, require_shape, same_dtype, spatial_dims
from .windows import Geometry


def convolution_output_shape(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Extent = 1,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
) -> Tuple[int, ...]:
    """Return ``(N, O, floor((size + pad_begin + pad_end - kernel) / stride) + 1, ...)``.

    Raises ValueError naming the sizes if ranks or channels disagree or the kernel does not fit.
    """
    return (x_shape[0], w_shape[0]) + _geometry(x_shape, w_shape, stride, pad_begin, pad_end).output


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    b: Optional[np.ndarray] = None,
    stride: Extent = 1,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
) -> np.ndarray:
    """Correlate ``x`` ``(N, I, spatial...)`` with ``w`` ``(O, I, kernel...)`` and add ``b`` ``(O,)``.

    ``stride`` and the zero padding before and after are integers or one integer per spatial dimension.
    Equal windows of the input give bitwise equal outputs, wherever they lie.  All windows are gathered at once, so
    the call needs the memory of ``x`` times the kernel's size.

    Returns an array of the shape that :func:`convolution_output_shape` gives.  Raises TypeError for mixed
    types, ValueError for shapes that do not fit.
    """
    same_dtype("convolution", x=x, w=w, b=b)
    geometry = _geometry(x.shape, w.shape, stride, pad_begin, pad_end)
    # Not np.dot: matrix libraries round a column differently depending on where it lies, so that equal windows of
    # the input get unequal outputs and a pooling layer behind sees no tie where there is one.  Here each
    # output adds up its products one after another, in the same order everywhere and on every machine.
    y = np.einsum("ok,kn->on", w.reshape(w.shape[0], -1), geometry.columns(x))
    if b is not None:
        require_shape("convolution", "bias", b, w.shape[:1])
        y += b[:, np.newaxis]
    return np.ascontiguousarray(y.reshape((w.shape[0], x.shape[0]) + geometry.output).swapaxes(0, 1))


def convolution_backward(
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    stride: Extent = 1,
    pad_begin: Extent = 0,
    pad_end: Extent = 0,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients ``(dx, dw, db)`` for the output gradient ``dy``.

    ``db`` is returned whether or not the forward call had a bias.
    """
    same_dtype("convolution_backward", dy=dy, x=x, w=w)
    geometry = _geometry(x.shape, w.shape, stride, pad_begin, pad_end)
    require_shape("convolution_backward", "dy", dy, (x.shape[0], w.shape[0]) + geometry.output)
    dy_rows = np.ascontiguousarray(dy.swapaxes(0, 1)).reshape(w.shape[0], -1)
    dw = np.dot(dy_rows, geometry.columns(x).T).reshape(w.shape)
    dx = geometry.sum_columns(np.dot(w.reshape(w.shape[0], -1).T, dy_rows), x.shape[0])
    return dx, dw, dy_rows.sum(axis=1)


def _geometry(
    x_shape: Sequence[int], w_shape: Sequence[int], stride: Extent, pad_begin: Extent, pad_end: Extent
) -> Geometry:
    spatial_dims("convolution", x_shape)
    if len(w_shape) != len(x_shape):
        raise ValueError(
            f"convolution: input has shape {tuple(x_shape)} and kernel {tuple(w_shape)}, expected equal ranks"
        )
    if x_shape[1] != w_shape[1]:
        raise ValueError(
            f"convolution: input has {x_shape[1]} channels and the kernel {tuple(w_shape)} takes {w_shape[1]}"
        )
    return Geometry("convolution", x_shape[2:], w_shape[2:], stride, pad_begin, pad_end)
