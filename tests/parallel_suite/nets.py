"""The networks, data and settings on which ranks are compared.

Batches of 13, so that shares are unequal; a last batch of 8 or of a single sample, so that shares are empty.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Problem
from crosstrain.compare.certificate.platform_streams import Data
from crosstrain_service import capabilities, weights
from crosstrain_service.model import BatchNorm, Dense, Flatten, Layer, LocalResponseNorm, Model, Relu
from crosstrain_service.training import Execution, Rule, WeightDecay
from tests.conformance.cases.builder import Case, case, conv, pool
from tests.support.jobs import digits, network

BATCH = 13
#: The case that is trained for real as well.
TRAINED = "clip_decay"
#: Cases of every strategy, and of every strategy in mixed precision.
BUILT_IN = ("cnn2", "cnn3")
EVERY = (*BUILT_IN, TRAINED)
MIXED = (*BUILT_IN, "adam")
MOMENTUM = Rule("sgd", momentum=0.9, nesterov=False)
_DROP = (0.1, 0.1, 0.1, 0.02, 0.02, 0.02)


@dataclass(frozen=True)
class Sampled(Case):
    """A case of which only some steps are recorded."""

    recorded: tuple[int, ...] = ()

    @property
    def steps(self) -> list[int]:
        """The recorded steps."""
        return list(self.recorded)

    def problem(self, precision: str = "float32") -> Problem:
        """The case as the checks take it, in mixed precision as well."""
        half = precision.removeprefix("mixed_") if precision.startswith("mixed_") else ""
        return dataclasses.replace(super().problem(precision), half=half)

    def needs_of(self, execution: Execution) -> set[str]:
        """Features that an engine must have for it on some ranks."""
        return self.needs(execution.precision or "float32", execution) | capabilities.features_of_both(
            self.model, execution
        )


def _sampled(made: Case, recorded: tuple[int, ...]) -> Sampled:
    values = {item.name: getattr(made, item.name) for item in dataclasses.fields(Case)}
    return Sampled(**values, recorded=recorded)


def _built_in(name: str, model: Model, samples: int, recorded: tuple[int, ...]) -> Sampled:
    data = digits()
    pixels = np.ascontiguousarray(data.pixels[::97][:samples])
    made = case(name, "", model.input_shape, list(model.layers), samples=samples, batch=BATCH, steps=6, rule=MOMENTUM,
                rates=0.05, classes=10, pixels=pixels, labels=data.labels[::97][:samples], divisor=255.0,
                seed=7)  # fmt: skip
    model = dataclasses.replace(model, name=name)
    made = dataclasses.replace(made, model=model, initial=weights.initial_parameters(model, 0),
                               data=Data(pixels, data.labels[::97][:samples], 255.0))  # fmt: skip
    return _sampled(made, recorded)


def _small(name: str, layers: list[Layer], *, samples: int = 34, **options: Any) -> Sampled:
    made = case(name, "", (2, 8, 8), layers, classes=4, samples=samples, batch=BATCH, steps=6, **options)
    return _sampled(made, (0, 2, 5))


def layers() -> list[Layer]:
    """A convolution with pooling, and two dense layers."""
    return [conv("conv1", 6, 3, begin=1), Relu("relu1"), pool("pool1", "max", 2, 2), Flatten("flatten"),
            Dense("dense1", 12), Relu("relu2"), Dense("dense2", 4)]  # fmt: skip


@functools.cache
def cases() -> tuple[Sampled, ...]:
    """All of them."""
    norm = [conv("conv1", 6, 3), BatchNorm("norm1", 1e-5), Relu("relu1"), conv("conv2", 4, 3, begin=1),
            BatchNorm("norm2", 1e-3), Relu("relu2")]  # fmt: skip
    lrn = [conv("conv1", 6, 3, begin=1), Relu("relu1"), LocalResponseNorm("lrn1", 5, 0.5, 0.75, 1.0),
           pool("pool1", "average", 2, 2)]  # fmt: skip
    return (
        _built_in("cnn2", network((32, 64), (128,)), 60, (0, 4, 5)),
        _built_in("cnn3", network((64, 128, 256), (512, 256), 0.5), 60, (0, 4, 5)),
        _small("batch_norm", norm, rule=MOMENTUM, rates=_DROP, evaluate=True),
        _small("clip_decay", layers(), rule=MOMENTUM, rates=_DROP, clip_norm=0.3, weight_decay=WeightDecay(0.1)),
        _small("adam", layers(), rule=Rule("adam", beta1=0.8, beta2=0.9, epsilon=1e-4), rates=0.01, evaluate=True),
        _small("one_sample", layers(), samples=27, rule=MOMENTUM, rates=_DROP),
        _small("response_norm", lrn, rule=MOMENTUM, rates=0.1),
    )
