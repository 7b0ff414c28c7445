"""Layers with rounding bounds: what the reference gives, and how far a correct engine may be from it.

Every operation is evaluated in a wider type than the engine's (float64 for float32 runs, extended precision
for float64 runs), so that its own rounding does not count. The bound of a sum of n products is

    max(c sqrt(n), 8) u (|W| * |x| + |b|)        element by element, c = 4,

with u the unit roundoff of the run's type: the same operation applied to absolute values. It grows with
sqrt(n) and not with n since roundings are as often up as down (Higham and Mary 2019); 8 u covers the few
roundings of conversions, scaling and adding the bias where n is small. The smallest normal number is added: below it
results lose digits. Operations that only choose or copy have the bound 0.

Errors that come in with the input (:attr:`Bounded.error`) are carried on to first order, which makes bounds
of whole networks from those of their layers.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from crosstrain.compare.numerics import normalisation, products
from crosstrain.compare.numerics.rounding import FLOAT32, FLOAT64, Arithmetic, Arrays, Bounded, arithmetic_of
from crosstrain_reference import (
    LRN,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    Network,
    Pad,
    Pool,
    Relu,
    Trace,
)
from crosstrain_reference.ops.windows import Geometry
from crosstrain_service import model as plain

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "Arithmetic",
    "Arrays",
    "Bounded",
    "Piece",
    "arithmetic_of",
    "backward",
    "forward",
    "network_of",
    "tied",
]


def network_of(model: plain.Model) -> Network:
    """The reference network of a model."""
    return Network([_layer(layer) for layer in model.layers])


def _layer(layer: plain.Layer) -> Layer:
    values = dict(vars(layer))
    name = values.pop("name")
    if isinstance(layer, plain.Convolution):
        return Convolution(name, **values)
    if isinstance(layer, plain.Pool):
        return Pool(name, **values)
    if isinstance(layer, plain.Dense):
        return Dense(name, **values)
    if isinstance(layer, plain.Dropout):
        return Dropout(name, layer.rate)
    if isinstance(layer, plain.BatchNorm):
        if layer.epsilon is None:
            raise ValueError(f"layer {name}: canonical batch norm needs its epsilon")
        return BatchNorm(name, layer.epsilon)
    if isinstance(layer, plain.LocalResponseNorm):
        return LRN(name, layer.size, layer.alpha_sum, layer.beta, layer.k, layer.region)
    if isinstance(layer, plain.Pad):
        return Pad(name, layer.begin, layer.end)
    return Relu(name) if isinstance(layer, plain.Relu) else Flatten(name)


class Piece(NamedTuple):
    """A layer's forward result, and what the backward check needs."""

    output: Bounded
    trace: Trace


def forward(
    layer: Layer,
    x: Bounded,
    params: Arrays,
    arithmetic: Arithmetic,
    train: bool = True,
    mask: np.ndarray | None = None,
    statistics: tuple[np.ndarray, np.ndarray] | None = None,
) -> Piece:
    """One layer applied to ``x``, with the bound of its output. Arguments are in the checking type."""
    if isinstance(layer, Convolution):
        return Piece(products.convolution(layer, x, params, arithmetic), Trace(x.value, train))
    y, trace = layer.forward(x.value, params, train, mask, statistics)
    carried = np.any(x.error)
    error: Any
    if isinstance(layer, Dense):
        absolute = _absolute(layer, params)
        size, _ = layer.forward(np.abs(x.value), absolute, train)
        error = arithmetic.sum_of(_fan_in(layer, params)) * size + arithmetic.tiny
        if carried:
            bias = layer.name + ".bias"
            without = {**absolute, bias: np.zeros_like(absolute[bias])} if layer.bias else absolute
            error = error + layer.forward(x.error, without, train)[0]
    elif isinstance(layer, Pool) and layer.kind == "average":
        size, _ = layer.forward(np.abs(x.value), params, train)
        error = arithmetic.sum_of(math.prod(layer.kernel)) * size + arithmetic.tiny
        if carried:
            error = error + layer.forward(x.error, params, train)[0]
    elif isinstance(layer, Dropout):
        error = arithmetic.floor * np.abs(y) if trace.mask is not None else np.zeros_like(y)
        if carried:
            error = error + layer.forward(x.error, params, train, mask)[0]
    elif isinstance(layer, BatchNorm):
        error = normalisation.batch_norm_error(layer, x, y, trace, params, arithmetic)
    elif isinstance(layer, LRN):
        error = normalisation.lrn_error(layer, x, y, arithmetic)
    elif carried and isinstance(layer, Pool):
        error = _largest(layer, np.zeros_like(x.value) + x.error)
    elif carried and not isinstance(layer, Relu):
        error = layer.forward(x.error, params, train)[0]
    else:
        error = x.error if carried else np.zeros_like(y)
    return Piece(Bounded(y, error), trace)


def backward(
    layer: Layer, dy: Bounded, trace: Trace, params: Arrays, arithmetic: Arithmetic, x_error: Any = 0.0
) -> tuple[Bounded, dict[str, Bounded]]:
    """Gradients of a layer's input and parameters, with bounds.

    ``x_error`` bounds the error of the layer's input ``trace.x``. Where it leaves open which way a ReLU or
    a pooling window decides, the whole gradient at stake is part of the bound.
    """
    if isinstance(layer, Convolution):
        return products.convolution_backward(layer, dy, trace.x, params, arithmetic, x_error)
    dx, gradients = layer.backward(dy.value, trace, params)
    incoming = np.zeros_like(dy.value) + dy.error
    moved = np.zeros_like(trace.x) + x_error
    largest = np.abs(dy.value) + incoming
    if isinstance(layer, BatchNorm):
        return normalisation.batch_norm_backward_error(layer, dy, dx, gradients, trace, params, arithmetic, moved)
    if isinstance(layer, LRN):
        return Bounded(dx, normalisation.lrn_backward_error(layer, dy, trace.x, moved, arithmetic)), {}
    if isinstance(layer, Dense):
        absolute = _absolute(layer, params)
        here = trace._replace(x=np.abs(trace.x))
        sizes = layer.backward(np.abs(dy.value), here, absolute)
        carried = layer.backward(incoming, here, absolute)
        outputs = dy.value.size // dy.value.shape[1]
        inputs = params[layer.name + ".weight"].size // params[layer.name + ".weight"].shape[1]
        bounded = {}
        for name, value in gradients.items():
            error = arithmetic.sum_of(outputs) * sizes[1][name] + carried[1][name] + arithmetic.tiny
            if name.endswith(".weight") and np.any(moved):
                error = error + layer.backward(largest, trace._replace(x=moved), absolute)[1][name]
            bounded[name] = Bounded(value, error)
        return Bounded(dx, arithmetic.sum_of(inputs) * sizes[0] + carried[0] + arithmetic.tiny), bounded
    if isinstance(layer, Pool):
        overlap = math.prod([-(-k // s) for k, s in zip(layer.kernel, layer.stride, strict=True)])
        error = layer.backward(incoming, trace, params)[0]
        if layer.kind == "average" or overlap > 1:
            sizes_of = layer.backward(np.abs(dy.value), trace, params)[0]
            error = error + arithmetic.sum_of(overlap) * sizes_of + arithmetic.tiny
        if layer.kind == "max" and np.any(moved):
            error = error + _open_windows(layer, trace.x, moved, largest)
        return Bounded(dx, error), {}
    error = layer.backward(incoming, trace, params)[0]
    if isinstance(layer, Dropout) and trace.mask is not None:
        error = error + arithmetic.floor * np.abs(dx)
    if isinstance(layer, Relu) and np.any(moved):
        error = np.where((np.abs(trace.x) <= moved) & (moved > 0), largest, error)
    return Bounded(dx, error), {}


def _largest(layer: Pool, error: np.ndarray) -> np.ndarray:
    """The largest error in every window."""
    window = (layer.kernel, layer.stride, layer.pad_begin, layer.pad_end, layer.round_mode)
    geometry = Geometry("largest error", error.shape[2:], *window)
    padded = geometry.padded(error, 0.0)
    every = (slice(None), slice(None))
    return np.asarray(functools.reduce(np.maximum, (padded[every + geometry.at(at)] for at in geometry.offsets())))


def _open_windows(layer: Pool, x: np.ndarray, moved: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """Gradients at every element that an error of the input could make the maximum of a window."""
    window = (layer.kernel, layer.stride, layer.pad_begin, layer.pad_end, layer.round_mode)
    geometry = Geometry("open windows", x.shape[2:], *window)
    every = (slice(None), slice(None))
    low, high = geometry.padded(x - moved, -np.inf), geometry.padded(x + moved, -np.inf)
    offsets = [every + geometry.at(offset) for offset in geometry.offsets()]
    floor = np.max([low[at] for at in offsets], axis=0)
    candidates = [high[at] >= floor for at in offsets]
    # Exact ties of exact values are decided by order, not by rounding.
    uncertain = np.any([c & (high[at] > low[at]) for c, at in zip(candidates, offsets, strict=True)], axis=0)
    uncertain &= np.sum(candidates, axis=0) > 1
    total = np.zeros(high.shape, dtype=x.dtype)
    for candidate, at in zip(candidates, offsets, strict=True):
        total[at] += np.where(candidate & uncertain, largest, 0)
    return np.asarray(total[geometry.interior()])


def _absolute(layer: Layer, params: Arrays) -> Arrays:
    return {name: np.abs(value) for name, value in params.items() if name.startswith(layer.name + ".")}


def _fan_in(layer: Layer, params: Arrays) -> int:
    weight = params[layer.name + ".weight"]
    return int(weight.size // weight.shape[0])


def tied(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Which elements of a layer's input take part in a tie: zeros of a ReLU, equal maxima of a window."""
    if isinstance(layer, Relu):
        return np.asarray(x == 0)
    if not isinstance(layer, Pool) or layer.kind != "max":
        return np.zeros(x.shape, dtype=bool)
    window = (layer.kernel, layer.stride, layer.pad_begin, layer.pad_end, layer.round_mode)
    geometry = Geometry("ties", x.shape[2:], *window)
    best, _ = layer.forward(x, {})
    padded = geometry.padded(x, -np.inf)
    every = (slice(None), slice(None))
    equal = [padded[every + geometry.at(offset)] == best for offset in geometry.offsets()]
    shared = sum(part.astype(int) for part in equal) > 1
    marks = np.zeros(padded.shape, dtype=bool)
    for part, offset in zip(equal, geometry.offsets(), strict=True):
        marks[every + geometry.at(offset)] |= part & shared
    return np.asarray(marks[geometry.interior()])
