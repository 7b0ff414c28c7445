"""What the platform draws for all engines: data order, validation split, dropout masks.

Everything comes from NumPy's ``RandomState``, whose streams are frozen for all versions.
"""

from typing import Dict, List, Tuple, cast

import numpy as np

from .model import Dropout, Model


class EpochOrders:
    """Permutations of an epoch: successive ``RandomState(seed).permutation(samples)``."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._random = np.random.RandomState(seed)
        self._next = 0

    def order(self, epoch: int) -> np.ndarray:
        """Row numbers (samples,) int64 of epoch ``epoch``, from 0; cheapest in ascending order."""
        if epoch < self._next:
            self._random = np.random.RandomState(self._seed)
            self._next = 0
        while True:
            permutation = self._random.permutation(self._samples)
            self._next += 1
            if self._next > epoch:
                return permutation


def validation_split(samples: int, share: float, seed: int) -> Tuple[np.ndarray, np.ndarray]:
    """Row numbers (sorted) to train on and to hold out: the first ``round(samples * share)`` rows,
    but at least one, of ``RandomState(seed + 2).permutation(samples)`` are held out."""
    order = np.random.RandomState(seed + 2).permutation(samples)
    held_out = max(1, int(round(samples * share)))
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def dropout_masks(model: Model, samples: int, step: int, seed: int, dtype: type = np.float32) -> Dict[str, np.ndarray]:
    """Scaled masks (samples, *input shape) of every dropout layer at a step.

    Layer number i (among the dropout layers) draws ``RandomState([seed, step, i]).random_sample``
    in C order; an element is kept where the draw is at least ``rate``, and then 1 / (1 - rate).
    """
    masks = {}
    inputs = None
    for index, layer in enumerate(cast(List[Dropout], model.layers_of(Dropout))):
        inputs = inputs or model.input_shapes()
        random = np.random.RandomState([seed & 0xFFFFFFFF, step, index])
        keep = random.random_sample((samples,) + inputs[layer.name]) >= layer.rate
        masks[layer.name] = keep.astype(dtype) / dtype(1.0 - layer.rate)
    return masks


def steps_per_epoch(samples: int, batch_size: int, drop_last: bool = False) -> int:
    """Number of batches in one epoch."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def batch_rows(order: np.ndarray, batch_size: int, drop_last: bool = False) -> List[np.ndarray]:
    """The rows of every batch of an epoch; the last one may be smaller."""
    count = steps_per_epoch(len(order), batch_size, drop_last)
    return [order[index * batch_size:(index + 1) * batch_size] for index in range(count)]
