"""Small problems for tests of the comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.compare.certificate import Data, Problem
from crosstrain_service import weights
from crosstrain_service.model import Convolution, Dense, Flatten, Layer, Model, Pool, Relu
from crosstrain_service.training import Rule, Training

SGD = Rule("sgd", momentum=0.0, nesterov=False)
MOMENTUM = Rule("sgd", momentum=0.9, nesterov=False)
NESTEROV = Rule("sgd", momentum=0.9, nesterov=True)
ADAM = Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-5)


def conv(name: str, channels: int, kernel: Any, stride: Any = 1, begin: Any = 0, end: Any = None) -> Convolution:
    """A convolution in two dimensions; numbers mean both of them."""
    end = begin if end is None else end
    return Convolution(name, channels, _two(kernel), _two(stride), _two(begin), _two(end))


def pool(
    name: str, kind: str, kernel: Any, stride: Any, begin: Any = 0, end: Any = None, ceil: bool = False,
    include: bool = False,
) -> Pool:  # fmt: skip
    """A pooling layer, written as :func:`conv`."""
    end = begin if end is None else end
    rounding = "ceil" if ceil else "floor"
    return Pool(name, kind, _two(kernel), _two(stride), _two(begin), _two(end), rounding, include)


def _two(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def problem(
    shape: tuple[int, ...],
    layers: list[Layer],
    *,
    classes: int = 3,
    samples: int = 6,
    batch: int = 3,
    steps: int = 3,
    rule: Rule = SGD,
    rates: Any = 0.1,
    pixels: Any = None,
    labels: Any = None,
    initial: dict[str, Any] | None = None,
    test: bool = False,
    biases: bool = True,
    scale: float = 1.0,
    seed: int = 7,
    dtype: Any = np.float32,
    test_rows: int = 5,
    **training: Any,
) -> Problem:
    """Random data (a third of it exact zeros) and weights; ``flatten`` and ``logits`` are added unless the last
    layer is dense. ``initial`` sets single tensors; ``biases`` draws biases, gammas and betas at random.
    """
    random = np.random.RandomState(seed)
    if not isinstance(layers[-1], Dense):
        layers = [*layers, Flatten("flatten"), Dense("logits", classes)]
    model = Model("small", shape, classes, tuple(layers)).validate()
    if pixels is None:
        pixels = random.uniform(-1, 1, (samples, *shape)) * (random.uniform(size=(samples, *shape)) > 0.3) * scale
    pixels = np.asarray(pixels, np.float32)
    chosen = random.randint(0, classes, len(pixels)) if labels is None else np.asarray(labels)
    tensors = weights.initial_parameters(model, seed)
    for key, value in tensors.items():
        if biases and not key.endswith(".weight"):
            tensors[key] = (value + random.uniform(-0.5, 0.5, value.shape)).astype(np.float32)
    for key, value in (initial or {}).items():
        tensors[key] = np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float32), tensors[key].shape))
    settings = Training(
        epochs=-(-steps // -(-len(pixels) // batch)),
        batch_size=batch,
        seed=seed,
        rule=rule,
        max_steps=steps,
        learning_rates=np.resize(np.asarray(rates, np.float64), steps),
        **training,
    )
    held = Data(random.uniform(-1, 1, (test_rows, *shape)).astype(np.float32), random.randint(0, classes, test_rows))
    data = Data(pixels, np.asarray(chosen, np.int64))
    return Problem(model, settings, data, tensors, dtype, held if test else None)


def small(**settings: Any) -> Problem:
    """A convolution, a ReLU and a dense layer: for update rules."""
    return problem((1, 4, 4), [conv("conv", 2, 3), Relu("relu")], **{"samples": 4, "batch": 4, "steps": 4, **settings})
