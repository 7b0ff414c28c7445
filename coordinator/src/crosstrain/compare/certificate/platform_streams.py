"""What the platform draws for a step, computed again from its definition.

Written apart from the code that feeds the engines, so that a mistake there cannot hide here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crosstrain_service.model import Dropout, Model
from crosstrain_service.training import Training


class Data(NamedTuple):
    """A data set: ``pixels`` (N, ...) uint8 or float32, ``labels`` (N,) int64; inputs are pixels /
    divisor.
    """

    pixels: np.ndarray
    labels: np.ndarray
    divisor: float = 1.0

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """Network inputs of some rows, float32: one correctly rounded division."""
        return np.asarray(self.pixels[rows].astype(np.float32) / np.float32(self.divisor))


def rows_of_step(samples: int, training: Training, step: int) -> np.ndarray:
    """Row numbers of a step's batch; epoch e takes the e-th permutation of ``RandomState(seed)``."""
    size = training.batch_size
    per_epoch = samples // size if training.drop_last else -(-samples // size)
    epoch, index = divmod(step, per_epoch)
    order = np.arange(samples)
    if not training.keep_order:
        random = np.random.RandomState(training.seed)
        for _ in range(epoch + 1):
            order = random.permutation(samples)
    return order[index * size : (index + 1) * size]


def masks_of_step(model: Model, samples: int, training: Training, step: int) -> dict[str, np.ndarray]:
    """Scaled float32 dropout masks of a step by layer name."""
    shapes = model.input_shapes()
    masks = {}
    layers = [layer for layer in model.layers if isinstance(layer, Dropout)]
    for index, layer in enumerate(layers):
        draws = np.random.RandomState([training.seed, step, index]).random_sample((samples, *shapes[layer.name]))
        scale = np.float32(1) / np.float32(1 - layer.rate)
        masks[layer.name] = np.where(draws >= layer.rate, scale, np.float32(0))
    return masks
