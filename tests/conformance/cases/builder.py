"""What a case is, and short ways to write one."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Problem
from crosstrain.compare.certificate.platform_streams import Data
from crosstrain_service import capabilities, weights
from crosstrain_service.model import (
    Convolution,
    Dense,
    Flatten,
    Layer,
    Model,
    Pool,
)
from crosstrain_service.training import Execution, Rule, Training

SGD = Rule("sgd", momentum=0.0, nesterov=False)
EXECUTION = Execution(intra_threads=1)


@dataclass(frozen=True)
class Case:
    """One probe. ``covers`` says which conventions would show; ``double``: also run in float64 where
    declared.
    """

    name: str
    covers: str
    model: Model
    training: Training
    data: Data
    initial: dict[str, np.ndarray]
    test: Data | None = None
    double: bool = False

    @property
    def steps(self) -> list[int]:
        """All steps; every one is recorded."""
        return list(range(len(self.training.learning_rates)))

    def needs(self, precision: str = "float32", execution: Execution = EXECUTION) -> set[str]:
        """Features an engine must have."""
        chosen = dataclasses.replace(execution, precision=precision)
        return (
            capabilities.features_of_model(self.model)
            | capabilities.features_of_training(self.training)
            | capabilities.features_of_execution(chosen)
            | {"probe"}
        )

    def problem(self, precision: str = "float32") -> Problem:
        """The case as the checks take it."""
        dtype = np.float64 if precision == "float64" else np.float32
        return Problem(self.model, self.training, self.data, self.initial, dtype, self.test)


def conv(
    name: str,
    channels: int,
    kernel: Any,
    stride: Any = 1,
    begin: Any = 0,
    end: Any = None,
    bias: bool = True,
    dims: int = 2,
) -> Convolution:
    """A convolution; single numbers mean the same in every dimension, ``end`` is ``begin`` unless given."""
    spread = _spreader(dims)
    return Convolution(
        name,
        channels,
        spread(kernel),
        spread(stride),
        spread(begin),
        spread(begin if end is None else end),
        bias,
    )


def pool(
    name: str,
    kind: str,
    kernel: Any,
    stride: Any,
    begin: Any = 0,
    end: Any = None,
    ceil: bool = False,
    include: bool = False,
    dims: int = 2,
) -> Pool:
    """A pooling layer, written as :func:`conv`."""
    spread = _spreader(dims)
    return Pool(
        name,
        kind,
        spread(kernel),
        spread(stride),
        spread(begin),
        spread(begin if end is None else end),
        "ceil" if ceil else "floor",
        include,
    )


def _spreader(dims: int) -> Any:
    return lambda value: (value,) * dims if isinstance(value, int) else tuple(value)


def case(
    name: str,
    covers: str,
    shape: tuple[int, ...],
    layers: list[Layer],
    *,
    classes: int = 3,
    samples: int = 6,
    batch: int = 3,
    steps: int = 2,
    rule: Rule = SGD,
    rates: Any = 0.1,
    pixels: np.ndarray | None = None,
    labels: Any = None,
    divisor: float = 1.0,
    initial: dict[str, Any] | None = None,
    evaluate: bool = False,
    double: bool = False,
    biases: bool = True,
    scale: float = 1.0,
    **training: Any,
) -> Case:
    """Completes a case: random data (half of it exact zeros where not given) and weights from the case's
    name.

    A flatten and a dense layer with ``classes`` units are added where the last layer is not dense.
    ``initial`` overrides single tensors; ``biases`` draws biases, gammas and betas at random, otherwise they
    keep their usual 0 and 1.
    """
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if not isinstance(layers[-1], Dense):
        layers = [*layers, Flatten("flatten"), Dense("logits", classes)]
    model = Model("case", shape, classes, tuple(layers)).validate()
    if pixels is None:
        pixels = random.uniform(-1, 1, (samples, *shape)) * (random.uniform(size=(samples, *shape)) > 0.3) * scale
        pixels = pixels.astype(np.float32)
    if labels is None:
        labels = random.randint(0, classes, len(pixels))
    tensors = weights.initial_parameters(model, random.randint(1000))
    for key, value in tensors.items():
        if biases and not key.endswith(".weight"):
            tensors[key] = (value + random.uniform(-0.5, 0.5, value.shape)).astype(np.float32)
    for key, value in (initial or {}).items():
        tensors[key] = np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float32), tensors[key].shape))
    seed = training.pop("seed", random.randint(1000))
    per_epoch = -(-len(pixels) // batch)
    settings = Training(
        epochs=-(-steps // per_epoch),
        batch_size=batch,
        seed=seed,
        rule=rule,
        max_steps=steps,
        learning_rates=np.resize(np.asarray(rates, np.float64), steps),
        **training,
    )
    test = None
    if evaluate:
        test = Data(random.uniform(-1, 1, (5, *shape)).astype(np.float32), random.randint(0, classes, 5), divisor)
    return Case(
        name,
        covers,
        model,
        settings,
        Data(pixels, np.asarray(labels, np.int64), divisor),
        tensors,
        test,
        double,
    )
