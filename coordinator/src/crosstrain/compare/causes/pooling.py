"""Conventions of pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.convolution import fitting_shifts
from crosstrain.compare.causes.operations import InputGradient, Operation, Settings, changed
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain_reference import Layer, Pool
from crosstrain_reference.ops.windows import Geometry


def _pools(kind: str, **fields: Any) -> Any:
    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        layer = operation.layer
        if isinstance(layer, Pool) and layer.kind == kind:
            if any(getattr(layer, name) != value for name, value in fields.items()):
                yield changed(operation, **fields)

    return vary


def _rounding(mode: str) -> Any:
    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if isinstance(operation.layer, Pool) and operation.layer.round_mode != mode:
            yield changed(operation, round_mode=mode)

    return vary


def _other_kind(kind: str) -> Any:
    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if isinstance(operation.layer, Pool) and operation.layer.kind != kind:
            for include in (False, True) if kind == "average" else (False,):
                yield changed(operation, kind=kind, count_include_pad=include)

    return vary


def _origin(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Pool):
        shape = place.found.shape if place.check.kind == "forward" else place.dy.shape
        for other in fitting_shifts(operation, shape[1:], place):
            assert isinstance(other.layer, Pool)
            if other.layer.pad_begin != operation.layer.pad_begin:
                yield other


def _tied(share: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Gradients of a max pool where ``share`` (from marks of the maxima, windows first axis) weighs the tied ones."""

    def gradient(layer: Layer, dy: Bounded, x: np.ndarray, settings: Settings) -> Bounded:
        assert isinstance(layer, Pool)
        geometry = Geometry(
            "ties", x.shape[2:], layer.kernel, layer.stride, layer.pad_begin, layer.pad_end, layer.round_mode
        )
        every = (slice(None), slice(None))
        places = [every + geometry.at(offset) for offset in geometry.offsets()]
        padded = geometry.padded(x, -np.inf)
        best = np.max([padded[at] for at in places], axis=0)
        weights = share(np.stack([padded[at] == best for at in places]))
        total, size = (geometry.padded(np.zeros_like(x), 0.0) for _ in range(2))
        for weight, at in zip(weights, places, strict=True):
            total[at] += weight * dy.value
            size[at] += weight * np.abs(dy.value)
        overlap = math.prod(-(-k // s) for k, s in zip(layer.kernel, layer.stride, strict=True))
        inside = geometry.interior()
        return Bounded(total[inside], settings.arithmetic.sum_of(overlap) * size[inside])

    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if isinstance(operation.layer, Pool) and operation.layer.kind == "max":
            yield InputGradient(operation, gradient)

    return vary


def _last(marks: np.ndarray) -> np.ndarray:
    later = np.cumsum(marks[::-1], axis=0)[::-1]
    return np.asarray(marks & (later == 1), dtype=np.float64)


CONVENTIONS = (
    Convention(
        "pool.ceil_for_floor",
        "Pool output rounded up",
        "A last window that only partly lies on the image counts, which makes the output larger than the job says.",
        "Caffe rounds up unless round_mode is FLOOR; Theano's pool_2d with ignore_border=False; PyTorch with "
        "ceil_mode=True.",
        "Caffe: round_mode: FLOOR; Theano: ignore_border=True; PyTorch: ceil_mode=False; or write round: "
        "ceil in the job.",
        {"layer": _rounding("ceil")},
        1,
    ),
    Convention(
        "pool.floor_for_ceil",
        "Pool output rounded down",
        "A last window that only partly lies on the image is left out although the job counts it.",
        "PyTorch, TensorFlow with VALID, Lasagne and Torch7 round down by default.",
        "PyTorch: ceil_mode=True; elsewhere pad the end with minus infinity (maximum), or write round: floor "
        "in the job.",
        {"layer": _rounding("floor")},
        1,
    ),
    Convention(
        "pool.origin_shifted",
        "Pooling windows start elsewhere",
        "All pooling windows are moved by one element, so that [1, 2, 3, 4] gives 1, 3 instead of 2, 4.",
        "Keras on Theano with \"same\" pooling starts at -1 where TensorFlow starts at 0.",
        "Use explicit padding before pooling without padding; write pad_begin and pad_end in the job.",
        {"layer": _origin},
        3,
    ),
    Convention(
        "pool.average_for_max",
        "Average instead of maximum",
        "The layer takes the mean of each window instead of its maximum.",
        "A layer of the wrong name, or pool: AVE in Caffe.",
        "MaxPool2d, MaxPooling2D, pool: MAX, mode=\"max\".",
        {"layer": _other_kind("average")},
        2,
    ),
    Convention(
        "pool.max_for_average",
        "Maximum instead of average",
        "The layer takes the maximum of each window instead of its mean.",
        "A layer of the wrong name; Caffe and Theano pool by maximum where nothing is said.",
        "AvgPool2d, AveragePooling2D, pool: AVE, mode=\"average_exc_pad\" or \"average_inc_pad\".",
        {"layer": _other_kind("max")},
        2,
    ),
    Convention(
        "pool.divisor_counts_padding",
        "Average counts the padding",
        "Windows at the border are divided by the whole window's size, padding included, so that borders get darker.",
        "PyTorch (count_include_pad=True by default), Caffe, Torch7; Theano's average_inc_pad.",
        "PyTorch: count_include_pad=False; or write count_include_pad: true in the job.",
        {"layer": _pools("average", count_include_pad=True)},
        1,
    ),
    Convention(
        "pool.divisor_excludes_padding",
        "Average leaves the padding out",
        "Windows at the border are divided by the number of image elements only, although the job counts the "
        "padding.",
        "TensorFlow and Keras always; Theano's average_exc_pad.",
        "Pad with zeros before an average without padding; or write count_include_pad: false in the job.",
        {"layer": _pools("average", count_include_pad=False)},
        1,
    ),
    Convention(
        "pool.ties_all",
        "Gradient to every tied maximum",
        "Where elements of a window are equally large, each of them gets the full gradient, not only the first.",
        "Theano on a CPU (MaxPoolGrad: Keras on Theano, Lasagne); blank image regions make thousands of ties.",
        "Theano: take each window's first maximum by argmax and T.switch in place of pool_2d; on a GPU cuDNN "
        "picks one.",
        {"layer": _tied(lambda marks: marks.astype(np.float64))},
        2,
    ),
    Convention(
        "pool.ties_last",
        "Gradient to the last tied maximum",
        "Where elements of a window are equally large, the last of them gets the gradient instead of the first.",
        "Implementations that compare with >= instead of >.",
        "Compare with > so that the first maximum stays chosen.",
        {"layer": _tied(_last)},
        2,
    ),
    Convention(
        "pool.ties_split",
        "Gradient shared among tied maxima",
        "Where elements of a window are equally large, they share the gradient instead of the first taking it.",
        "Gradients of reduce-max operations, as automatic differentiation of amax in PyTorch, TensorFlow and "
        "JAX gives them.",
        "Use the framework's pooling operation, whose gradient goes to one element, not a reshape and a maximum.",
        {"layer": _tied(lambda marks: marks / marks.sum(axis=0))},
        2,
    ),
)
