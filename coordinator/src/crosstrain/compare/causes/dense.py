"""Conventions of flattening and dense layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.convolution import reorder
from crosstrain.compare.causes.data import Reading, columns, taken
from crosstrain.compare.causes.operations import Operation, Rearranged
from crosstrain_reference import Dense, Flatten
from crosstrain_service import model as plain

_BETWEEN = (plain.Relu, plain.Dropout, plain.BatchNorm)


def _flattened(place: Place, name: str) -> tuple[int, ...] | None:
    """Shape (C, H, W) of what a layer's input was flattened from; None if it was not."""
    shapes = place.problem.model.input_shapes()
    found: tuple[int, ...] | None = None
    for layer in place.problem.model.layers:
        if layer.name == name:
            return tuple(shapes[name]) if isinstance(layer, plain.Flatten) else found
        if isinstance(layer, plain.Flatten):
            found = tuple(shapes[layer.name])
        elif not isinstance(layer, _BETWEEN):
            found = None
    return None


def _orders(shape: tuple[int, ...] | None) -> Iterator[np.ndarray]:
    """Where the elements of a channels-last vector lie in a channels-first one, and the inverse."""
    if shape is None or len(shape) < 2:
        return
    order = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), 0, -1).reshape(-1)
    if not np.array_equal(order, np.arange(order.size)):
        yield order
        yield np.argsort(order)


def _permuted(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if not isinstance(layer, (Dense, Flatten)):
        return
    for order in _orders(_flattened(place, layer.name)):
        if isinstance(layer, Flatten):
            back = np.argsort(order)
            yield Rearranged(operation, columns(order), columns(back))
        else:
            units = np.arange(layer.units)[:, np.newaxis]
            yield reorder(operation, (units * order.size + order).reshape(-1))


def _permuted_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    owner, _, part = place.check.subject.rpartition(".")
    if part == "weight" and place.found.ndim == 2:
        for order in _orders(_flattened(place, owner)):
            yield reading.with_change(columns(order))


def _transposes(shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    index = np.arange(int(np.prod(shape)))
    candidates = [index.reshape(shape[::-1]).T.reshape(-1), index.reshape(shape).T.reshape(-1)]
    for order in candidates:
        if not np.array_equal(order, index):
            yield order


def _transposed(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Dense):
        for order in _transposes(place.params[operation.layer.name + ".weight"].shape):
            yield reorder(operation, order)


def _transposed_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    if place.found.ndim == 2:
        for order in _transposes(place.found.shape):
            yield reading.with_change(taken(order))



CONVENTIONS = (
    Convention(
        "dense.rows_permuted_hwc",
        "Flattened with the channels last",
        "Images become vectors in the order height, width, channel, so that the dense layer's weights meet "
        "other pixels.",
        "TensorFlow and Keras with channels last; Keras's Flatten of channels_first data on Theano; it shows "
        "only with more "
        "than one channel and more than one pixel.",
        "Permute the columns of the next dense weight when loading it: (h W + w) C + c holds what c H W + h "
        "W + w held; or "
        "transpose to (N, C, H, W) before flattening.",
        {"layer": _permuted, "weights": _permuted_tensor},
        2,
    ),
    Convention(
        "dense.transposed",
        "Dense weight transposed",
        "The dense weight's rows are read as columns: inputs and outputs change places.",
        "TensorFlow, Keras and Lasagne store (in, out); PyTorch, Caffe and Torch7 (out, in).",
        "Transpose when loading, w.T; a reshape to the other shape is not a transpose.",
        {"layer": _transposed, "weights": _transposed_tensor},
        3,
    ),
)
