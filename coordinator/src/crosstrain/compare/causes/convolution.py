"""Conventions of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.data import Reading, taken
from crosstrain.compare.causes.operations import Operation, OtherWeight, changed
from crosstrain_reference import Convolution, Pool

Sizes = tuple[int, ...]


def flipped(weight: np.ndarray) -> np.ndarray:
    """A kernel turned by 180 degrees: all spatial axes reversed."""
    return np.flip(weight, tuple(range(2, weight.ndim)))


def _flip(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Convolution):
        yield OtherWeight(operation, flipped, flipped)


def _flip_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    if len(place.found.shape) > 2:
        yield reading.with_change(flipped)


def _orders(shape: Sizes) -> Iterator[np.ndarray]:
    """Flat index permutations that mistake one kernel layout for another."""
    index = np.arange(int(np.prod(shape))).reshape(shape)
    spatial = tuple(range(2, len(shape)))
    if len(shape) == 4 and shape[2] == shape[3]:
        yield index.swapaxes(2, 3)
    if shape[0] == shape[1]:
        yield index.swapaxes(0, 1)
    # A buffer written as (kernel..., I, O) or (O, kernel..., I), read as (O, I, kernel...), and the reverse.
    for axes in ((*spatial, 1, 0), (0, *spatial, 1)):
        written = index.transpose(axes)
        yield written.reshape(shape)
        yield index.reshape(written.shape).transpose(np.argsort(axes))


def permutations(shape: Sizes) -> Iterator[np.ndarray]:
    """Those orders that change anything, as flat permutations."""
    for order in _orders(shape):
        flat = np.ascontiguousarray(order).reshape(-1)
        if not np.array_equal(flat, np.arange(flat.size)):
            yield flat


def reorder(operation: Operation, order: np.ndarray) -> Operation:
    """The operation with its weight's elements in another order."""
    back = np.argsort(order)
    return OtherWeight(operation, taken(order), taken(back))


def _transpose(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Convolution):
        for order in permutations(place.params[operation.layer.name + ".weight"].shape):
            yield reorder(operation, order)


def _transpose_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    if len(place.found.shape) > 2:
        for order in permutations(place.found.shape):
            yield reading.with_change(taken(order))


def shifts(begin: Sizes, end: Sizes) -> Iterator[tuple[Sizes, Sizes]]:
    """Paddings with one element more or less before, after, or both: in all dimensions, or in one of them."""
    if begin != end:
        yield end, begin
    dims = len(begin)
    chosen = [tuple(range(dims)), *((d,) for d in range(dims) if dims > 1)]
    for before, after in product((0, 1, -1), repeat=2):
        for moved in chosen:
            if before or after:
                first = tuple(size + before * (d in moved) for d, size in enumerate(begin))
                last = tuple(size + after * (d in moved) for d, size in enumerate(end))
                if min(first + last) >= 0:
                    yield first, last


def _padding(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if isinstance(layer, Convolution) and place.check.kind != "forward":
        yield from _fitting(operation, place.dy.shape[1:], place)
    elif isinstance(layer, Convolution):
        yield from _fitting(operation, place.found.shape[1:], place)


def _fitting(operation: Operation, shape: Sizes, place: Place) -> Iterator[Operation]:
    """Shifted paddings that give the output shape that the engine has."""
    layer = operation.layer
    assert isinstance(layer, (Convolution, Pool))
    for begin, end in shifts(tuple(layer.pad_begin), tuple(layer.pad_end)):
        try:
            other = changed(operation, pad_begin=begin, pad_end=end)
            fits = other.layer.output_shape(place.x.shape[1:]) == tuple(shape)
        except ValueError:
            continue
        if fits:
            yield other


fitting_shifts = _fitting


CONVENTIONS = (
    Convention(
        "convolution.kernel_flipped",
        "Kernel flipped",
        "The engine turns every kernel by 180 degrees before sliding it: true convolution instead of "
        "cross-correlation.",
        "Theano (Keras 1 and 2 on Theano, Lasagne: always in 0.1, by default later, flip_filters).",
        "Flip the kernels when loading them, w[..., ::-1, ::-1], and flip their gradients on the way out; in "
        "Lasagne 0.2 "
        "flip_filters=False, in Theano conv2d filter_flip=False.",
        {"layer": _flip, "weights": _flip_tensor},
        1,
    ),
    Convention(
        "convolution.padding_shifted",
        "Convolution padded elsewhere",
        "The zeros around the image lie on other sides than the job says, so that all windows are moved by "
        "one element.",
        "\"same\" padding: TensorFlow and Keras put the odd element after, Theano's \"half\" pads k // 2 on "
        "both sides, "
        "Caffe and Torch7 know symmetric padding only; it shows with stride 2 or even kernels.",
        "Pad explicitly before a convolution without padding: torch.nn.functional.pad, tf.pad, ZeroPadding2D "
        "with four numbers.",
        {"layer": _padding},
        3,
    ),
    Convention(
        "weights.kernel_transposed",
        "Kernel axes in another order",
        "The kernel's numbers are read in another order of axes: height and width, or input and output "
        "channels, swapped.",
        "TensorFlow and Keras store (height, width, in, out); PyTorch, Caffe and Theano (out, in, height, width).",
        "Transpose when loading: w.transpose(2, 3, 1, 0) from (out, in, h, w) to (h, w, in, out), (3, 2, 0, "
        "1) back; never reshape.",
        {"layer": _transpose, "weights": _transpose_tensor},
        3,
    ),
)
