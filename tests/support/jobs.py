"""The reference jobs: 5,000 real digits, batch 64, SGD with momentum, from one set of initial tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from crosstrain.compare.certificate.platform_streams import Data, masks_of_step, rows_of_step
from crosstrain.compare.numerics.bounds import network_of
from crosstrain.data.digits import load_digits
from crosstrain_reference import Forward, Optimizer
from crosstrain_service import weights
from crosstrain_service.model import Convolution, Dense, Dropout, Flatten, Layer, Model, Pool, Relu
from crosstrain_service.training import Rule, Training

Arrays = dict[str, np.ndarray]
LEARNING_RATE, MOMENTUM, BATCH, SEED = 0.05, 0.9, 64, 0

#: Losses of cnn2 before the update of steps 0 to 14, computed in float64 apart from this project's code.
CNN2_LOSSES = (
    2.298471045841, 2.282676527561, 2.259146261557, 2.227036756546, 2.220651500448,
    2.230145733738, 2.224316819106, 2.104331521549, 2.036768722234, 1.978830424007,
    1.868746006306, 1.647551688171, 1.706679956918, 1.160843284174, 1.26266933304,
)  # fmt: skip


@functools.cache
def digits() -> Data:
    """All 5,000 digits in the file's order: (5000, 1, 28, 28) bytes, to be divided by 255."""
    rows = load_digits()
    pixels = np.ascontiguousarray(rows[:, 1:].reshape(-1, 1, 28, 28))
    return Data(pixels, rows[:, 0].astype(np.int64), 255.0)


def network(channels: tuple[int, ...], units: tuple[int, ...], rate: float = 0.0) -> Model:
    """3x3 convolutions with ReLU and 2x2 max-pool, then dense layers with ReLU, and dropout where
    ``rate``.
    """
    layers: list[Layer] = []
    for number, width in enumerate(channels, 1):
        layers += [
            Convolution(f"conv{number}", width, (3, 3), (1, 1), (1, 1), (1, 1)),
            Relu(f"relu{number}"),
            Pool(f"pool{number}", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        ]
    layers.append(Flatten("flatten"))
    for number, width in enumerate(units, 1):
        layers += [Dense(f"dense{number}", width), Relu(f"relu_dense{number}")]
        if rate:
            layers.append(Dropout(f"dropout{number}", rate))
    layers.append(Dense(f"dense{len(units) + 1}", 10))
    return Model(f"cnn{len(channels)}", (1, 28, 28), 10, tuple(layers)).validate()


@dataclass(frozen=True)
class Job:
    """A training job on the digits."""

    model: Model
    training: Training
    data: Data
    initial: Arrays

    @property
    def steps(self) -> int:
        """Number of updates."""
        return self.training.max_steps


def job(name: str, steps: int) -> Job:
    """``cnn2``, or ``cnn3`` with its dropout, for some steps."""
    model = network((32, 64), (128,)) if name == "cnn2" else network((64, 128, 256), (512, 256), 0.5)
    training = Training(
        epochs=1,
        batch_size=BATCH,
        seed=SEED,
        rule=Rule("sgd", momentum=MOMENTUM, nesterov=False),
        learning_rates=np.full(steps, LEARNING_RATE),
        max_steps=steps,
    )
    return Job(model, training, digits(), weights.initial_parameters(model, SEED))


class ReferenceStep(NamedTuple):
    """One step of the float64 run: what it saw, its loss, and the parameters after it."""

    step: int
    loss: float
    forward: Forward
    parameters: Arrays


def reference_run(work: Job) -> Iterator[ReferenceStep]:
    """The job in float64, step by step, from the float32 initial tensors, inputs and masks."""
    net = network_of(work.model)
    parameters = {name: value.astype(np.float64) for name, value in work.initial.items()}
    optimizer = Optimizer("sgd", momentum=MOMENTUM)
    state = optimizer.init_state(parameters)
    for step in range(work.steps):
        rows = rows_of_step(len(work.data.labels), work.training, step)
        x = work.data.inputs(rows).astype(np.float64)
        masks = masks_of_step(work.model, len(rows), work.training, step)
        wide = {name: mask.astype(np.float64) for name, mask in masks.items()}
        result = net.loss_and_gradients(x, work.data.labels[rows], parameters, wide)
        parameters, state = optimizer.update(parameters, result.gradients, state, LEARNING_RATE, step + 1)
        yield ReferenceStep(step, float(result.loss), result.forward, parameters)
