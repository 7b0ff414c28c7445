"""The small networks, data and settings in which the planted faults show.

They hold what hides or reveals a convention: blank borders and zero biases (ties, exact zeros), two channels,
odd and even sizes, strides, a smaller last batch, a learning rate that changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from crosstrain_service.model import BatchNorm, Dense, Dropout, Flatten, LocalResponseNorm, Relu
from crosstrain_service.training import Rule, WeightDecay
from tests.conformance.cases.builder import Case, case, conv, pool

MOMENTUM = Rule("sgd", momentum=0.9, nesterov=False)
NESTEROV = Rule("sgd", momentum=0.8, nesterov=True)
ADAM = Rule("adam", beta1=0.8, beta2=0.9, epsilon=1e-4)
RMSPROP = Rule("rmsprop", rho=0.9, epsilon=0.01)
ADAGRAD = Rule("adagrad", epsilon=0.01, initial_accumulator=0.0)
ADADELTA = Rule("adadelta", rho=0.9, epsilon=1e-3)
_DROP = [0.1, 0.1, 0.02, 0.02]

_NETS: dict[str, Callable[[str], Case]] = {}


def net(name: str) -> Case:
    """The case of a network, made once; its model's name is the network's."""
    return _cached(name)


@functools.cache
def _cached(name: str) -> Case:
    return _NETS[name](name)


def names() -> list[str]:
    """All networks."""
    return list(_NETS)


def _images(shape: tuple[int, ...], samples: int, seed: int = 3) -> np.ndarray:
    """Images with a blank border of one pixel and about a third exact zeros, float32 within 0 to 1."""
    random = np.random.RandomState(seed)
    pixels = random.uniform(0, 1, (samples, *shape)) * (random.uniform(size=(samples, *shape)) > 0.3)
    pixels[:, :, 0], pixels[:, :, -1] = 0, 0
    pixels[..., 0], pixels[..., -1] = 0, 0
    return pixels.astype(np.float32)


def _net(name: str, shape: tuple[int, ...], layers: list[Any], **options: Any) -> None:
    values = {"classes": 4, "samples": 10, "batch": 4, "steps": 4, "biases": False, "rates": 0.1, **options}
    if "pixels" not in values:
        values["pixels"] = _images(shape, values["samples"])
    _NETS[name] = lambda chosen: case(chosen, "", shape, layers, **values)


def _convolutional(last: list[Any] | None = None) -> list[Any]:
    return [
        conv("conv1", 3, 3, begin=1), Relu("relu1"), pool("pool1", "max", 2, 2), Flatten("flatten"),
        Dense("dense1", 6), Relu("relu2"), *(last or []), Dense("dense2", 4),
    ]  # fmt: skip


def _flat(units: int = 5) -> list[Any]:
    return [conv("conv1", 2, 2), Relu("relu1"), Flatten("flatten"), Dense("dense1", 4)]


def _update(name: str, rule: Rule, rates: Any = 0.1, **options: Any) -> None:
    """A network for update rules: two layers with parameters, biases not zero."""
    values = {"samples": 8, "biases": True, **options}
    _net(name, (1, 3, 4), _flat(), rule=rule, rates=rates, **values)


_net("plain", (2, 6, 6), _convolutional())
_net("plain_rates", (2, 6, 6), _convolutional(), rates=[0.1, 0.05, 0.2, 0.01])
_net("small_values", (2, 6, 6), _convolutional(), pixels=_images((2, 6, 6), 10) * np.float32(2e-5))
_net("odd_batch", (2, 6, 6), _convolutional(), batch=5)
_net("labels_low", (2, 6, 6), _convolutional(), labels=np.arange(10) % 3)
_net("labels_high", (2, 6, 6), _convolutional(), labels=np.arange(10) % 3 + 1)
_net("bytes", (2, 6, 6), _convolutional(), divisor=255.0,
     pixels=(_images((2, 6, 6), 10) * 255).astype(np.uint8))  # fmt: skip
_net("stride2", (1, 8, 8), [conv("conv1", 3, 3, stride=2, begin=0, end=1), Relu("relu1")],
     pixels=_images((1, 8, 8), 10) + np.float32(0.1))  # fmt: skip
_net("odd_pool", (2, 7, 7), [conv("conv1", 3, 3, begin=1), Relu("relu1"), pool("pool1", "max", 2, 2)])
_net("average", (2, 6, 6), [conv("conv1", 3, 3, begin=1), Relu("relu1"), pool("pool1", "average", 2, 2)])
_net("average_excluding", (2, 5, 5), [conv("conv1", 3, 3, begin=1), pool("pool1", "average", 3, 2, begin=1)])
_net("average_including", (2, 5, 5),
     [conv("conv1", 3, 3, begin=1), pool("pool1", "average", 3, 2, begin=1, include=True)])  # fmt: skip
_net("ties", (1, 6, 6), [conv("conv1", 3, 3, begin=1), pool("pool1", "max", 2, 2)])
_net("zeros", (1, 6, 6), [conv("conv1", 3, 3, begin=1), Relu("relu1"), Flatten("flatten"), Dense("dense1", 4)])
_net("square_dense", (1, 2, 3), [Flatten("flatten"), Dense("dense1", 6), Relu("relu1"), Dense("dense2", 4)],
     pixels=np.random.RandomState(2).uniform(0, 1, (10, 1, 2, 3)).astype(np.float32))  # fmt: skip
_net("dropout", (1, 4, 4), [Flatten("flatten"), Dense("dense1", 24), Relu("relu1"), Dropout("drop1", 0.25),
     Dense("dense2", 4)], evaluate=True, biases=True)  # fmt: skip
_net("norm", (2, 5, 5), [conv("conv1", 3, 3), BatchNorm("norm1", 1e-5), Relu("relu1")], biases=True)
_net("norm_large_epsilon", (2, 5, 5), [conv("conv1", 3, 3), BatchNorm("norm1", 0.02), Relu("relu1")], biases=True)
_net("norm_evaluated", (2, 5, 5), [conv("conv1", 3, 3), BatchNorm("norm1", 1e-3, 0.9), Relu("relu1")], biases=True,
     evaluate=True)  # fmt: skip
_net("lrn", (2, 4, 4), [conv("conv1", 6, 3, begin=1), LocalResponseNorm("lrn1", 5, 0.5, 0.75, 1.0)], biases=True)
_net("extreme", (1, 1, 3), [Flatten("flatten"), Dense("dense1", 3)], classes=3, samples=4, steps=2,
     initial={"dense1.weight": np.eye(3)}, labels=[0, 1, 2, 0], rates=0.001,
     pixels=np.array([[14.4, 50.1, 3.5], [1, 2, 0.5], [4, 3, 1], [0.5, 1, 2]],
                     np.float32).reshape(4, 1, 1, 3))  # fmt: skip
_net("saturated", (1, 1, 3), [Flatten("flatten"), Dense("dense1", 3)], classes=3, samples=4, steps=2,
     initial={"dense1.weight": np.eye(3)}, labels=[0, 1, 2, 0], rates=0.001,
     pixels=np.array([[0.5, 120, 3.5], [1, 2, 0.5], [4, 3, 1], [0.5, 1, 2]],
                     np.float32).reshape(4, 1, 1, 3))  # fmt: skip

_update("sgd", Rule("sgd", momentum=0.0, nesterov=False), 0.01)
_update("momentum", MOMENTUM)
_update("momentum_drop", MOMENTUM, _DROP)
_update("nesterov", NESTEROV)
_update("adam", ADAM, 0.01)
_update("rmsprop", RMSPROP, 0.01)
_update("adagrad", ADAGRAD, 0.05)
_update("adadelta", ADADELTA, 1.0)
_update("decay", Rule("sgd", momentum=0.0, nesterov=False), weight_decay=WeightDecay(0.1))
_update("decay_momentum", MOMENTUM, weight_decay=WeightDecay(0.1))
_update("decay_everything", MOMENTUM, weight_decay=WeightDecay(0.1, include_biases=True))
_update("decay_adam", ADAM, 0.02, weight_decay=WeightDecay(0.2))
_update("decay_decoupled", ADAM, 0.02, weight_decay=WeightDecay(0.2, decoupled=True))
_update("clip", Rule("sgd", momentum=0.0, nesterov=False), clip_norm=0.2)
_update("clip_decay", Rule("sgd", momentum=0.0, nesterov=False), clip_norm=0.2, weight_decay=WeightDecay(0.3))
