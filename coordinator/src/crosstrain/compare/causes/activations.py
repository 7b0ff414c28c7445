"""Conventions of ReLU, and of nonlinearities that layers bring along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.operations import InputGradient, Operation, Rectified, Settings, Wrapped
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain_reference import Convolution, Dense, Layer, Relu


class _Identity(Wrapped):
    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return x

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> Any:
        return dy, {}


def _at_zero(slope: float) -> Any:
    def gradient(layer: Layer, dy: Bounded, x: np.ndarray, settings: Settings) -> Bounded:
        return Bounded(np.where(x > 0, 1.0, np.where(x == 0, slope, 0.0)) * dy.value, dy.error)

    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if isinstance(operation.layer, Relu):
            yield InputGradient(operation, gradient)

    return vary


def _missing(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Relu):
        yield _Identity(operation)


def _rectified(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, (Dense, Convolution)):
        yield Rectified(operation)


CONVENTIONS = (
    Convention(
        "relu.half_at_zero",
        "ReLU gradient one half at zero",
        "Where a ReLU's input is exactly 0 the engine passes half of the gradient on, not none.",
        "Theano, and through it Keras and Lasagne: relu is written 0.5 (x + abs(x)); blank images with zero "
        "biases show it.",
        "Theano: T.switch(x > 0, x, 0) in place of T.nnet.relu; rectify in Lasagne likewise.",
        {"layer": _at_zero(0.5)},
        1,
    ),
    Convention(
        "relu.one_at_zero",
        "ReLU gradient one at zero",
        "Where a ReLU's input is exactly 0 the engine passes the whole gradient on, not none.",
        "T.maximum(x, 0) in Theano, and comparisons with >= 0.",
        "Use the framework's own ReLU (gradient 0 at 0 in PyTorch, TensorFlow and Caffe), or compare with > 0.",
        {"layer": _at_zero(1.0)},
        1,
    ),
    Convention(
        "relu.missing",
        "ReLU left out",
        "The layer hands negative values on: the nonlinearity is not there.",
        "Keras and TensorFlow layers have no activation unless named; Lasagne's nonlinearity=None or linear.",
        "Name it: activation=\"relu\", nn.ReLU(), nonlinearity=rectify.",
        {"layer": _missing},
        2,
    ),
    Convention(
        "dense.rectified",
        "A ReLU that nobody asked for",
        "The layer's own output has its negative values cut off: it brings a nonlinearity along.",
        "Lasagne's DenseLayer and Conv2DLayer have nonlinearity=rectify by default.",
        "Lasagne: nonlinearity=lasagne.nonlinearities.linear on every layer whose activation is a layer of its own.",
        {"layer": _rectified},
        2,
    ),
)
