"""Convolutions and their gradients with rounding bounds, by matrix products.

The reference sums a convolution in one fixed order, so that equal windows give equal values; a value that is only
compared within a bound does not need that, and a matrix library is many times faster. Sizes of bounds need few digits:
they are formed in the run's own type where nothing can overflow, with the smallest normal number added to every sum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crosstrain.compare.numerics.rounding import Arithmetic, Arrays, Bounded
from crosstrain_reference import Convolution
from crosstrain_reference.ops.windows import Geometry

# Above this, products of sizes could overflow float32.
_SAFE = 1e30


def geometry_of(layer: Convolution, spatial: tuple[int, ...]) -> Geometry:
    """Windows of a convolution; raises ``ValueError`` where the kernel does not fit."""
    return Geometry("convolution", spatial, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end)


def _rough(arithmetic: Arithmetic, *arrays: np.ndarray) -> Any:
    """The type in which sizes are formed."""
    if arithmetic.work is not np.float64:
        return np.float64
    product = math.prod(float(np.abs(array).max(initial=0.0)) for array in arrays)
    largest = max((float(np.abs(array).max(initial=0.0)) for array in arrays), default=0.0)
    return np.float32 if max(product * arrays[0].size, largest) < _SAFE else np.float64


def _rows(values: np.ndarray) -> np.ndarray:
    """(N, O, ...) as (O, N * ...)."""
    return np.ascontiguousarray(values.swapaxes(0, 1)).reshape(values.shape[1], -1)


def _images(rows: np.ndarray, batch: int, output: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape((rows.shape[0], batch, *output)).swapaxes(0, 1))


def convolution(layer: Convolution, x: Bounded, params: Arrays, arithmetic: Arithmetic) -> Bounded:
    """Output (N, O, ...) of a convolution, with the bound of its sums and what ``x.error`` brings in."""
    geometry = geometry_of(layer, x.value.shape[2:])
    weight = params[layer.name + ".weight"]
    flat = weight.reshape(weight.shape[0], -1)
    batch = x.value.shape[0]
    relative = arithmetic.sum_of(flat.shape[1])
    value = flat @ geometry.columns(x.value)
    kind = _rough(arithmetic, x.value, flat)
    size = (relative * np.abs(x.value) + x.error).astype(kind)
    error = (np.abs(flat).astype(kind) @ geometry.columns(size)).astype(arithmetic.work)
    error += arithmetic.tiny * flat.shape[1]
    if layer.bias:
        bias = params[layer.name + ".bias"][:, np.newaxis]
        value += bias
        error += relative * np.abs(bias)
    return Bounded(_images(value, batch, geometry.output), _images(error, batch, geometry.output))


def convolution_backward(
    layer: Convolution, dy: Bounded, x: np.ndarray, params: Arrays, arithmetic: Arithmetic, x_error: Any = 0.0
) -> tuple[Bounded, dict[str, Bounded]]:
    """Gradients of a convolution's input and parameters, with bounds; ``x_error`` bounds the error of ``x``."""
    geometry = geometry_of(layer, x.shape[2:])
    weight = params[layer.name + ".weight"]
    flat = weight.reshape(weight.shape[0], -1)
    batch = x.shape[0]
    rows = _rows(dy.value)
    incoming = _rows(np.zeros_like(dy.value) + dy.error)
    columns = geometry.columns(x)
    kind = _rough(arithmetic, dy.value, flat)
    inputs = weight.size // weight.shape[1]
    size = (arithmetic.sum_of(inputs) * np.abs(rows) + incoming).astype(kind)
    dx = geometry.sum_columns(flat.T @ rows, batch)
    dx_error = geometry.sum_columns(np.abs(flat).astype(kind).T @ size, batch).astype(arithmetic.work)
    kind = _rough(arithmetic, dy.value, x)
    summed = arithmetic.sum_of(rows.shape[1])
    size = (summed * np.abs(rows) + incoming).astype(kind)
    dw_error = (size @ np.abs(columns).astype(kind).T).astype(arithmetic.work)
    if np.any(x_error):
        moved = geometry.columns(np.zeros_like(x) + x_error).astype(kind)
        dw_error = dw_error + (np.abs(rows) + incoming).astype(kind) @ moved.T
    result = {
        layer.name + ".weight": Bounded(
            (rows @ columns.T).reshape(weight.shape), dw_error.reshape(weight.shape) + arithmetic.tiny * rows.shape[1]
        )
    }
    if layer.bias:
        error = summed * np.abs(rows).sum(axis=1) + incoming.sum(axis=1)
        result[layer.name + ".bias"] = Bounded(rows.sum(axis=1), error)
    return Bounded(dx, dx_error + arithmetic.tiny * inputs), result


def spread_of(error: np.ndarray) -> np.ndarray:
    """The bound of a fast algorithm from that of the plain sums: the largest of the same two leading indices.

    Winograd and FFT transform whole tiles, so that the error of one element is relative to the largest sum
    of products of the tile (Lavin and Gray 2016); the tile is taken to be the whole plane.
    """
    axes = tuple(range(2, error.ndim))
    return np.broadcast_to(error.max(axis=axes, keepdims=True), error.shape)
