"""Small helpers for the tests of engine packages."""

from typing import Any, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from .engine import Batch, Epoch, Loop
from .model import Convolution, Dense, Dropout, Flatten, Layer, Model, Pool, Relu
from .streams import dropout_masks


class _ListEpoch(Epoch):
    def __init__(self, index: int, batches: Sequence[Batch]) -> None:
        self.index = index
        self.steps = len(batches)
        self._batches = batches

    def batches(self) -> Iterator[Batch]:
        return iter(self._batches)


class ListLoop(Loop):
    """A loop over given batches, ``per_epoch`` to an epoch; collects losses in ``losses``."""

    def __init__(self, batches: Sequence[Batch], per_epoch: Optional[int] = None) -> None:
        self._batches = list(batches)
        self._per_epoch = per_epoch or max(1, len(self._batches))
        self.step = self._batches[0].step if self._batches else 0
        self.losses: List[float] = []

    def epochs(self) -> Iterator[Epoch]:
        for index, start in enumerate(range(0, len(self._batches), self._per_epoch)):
            yield _ListEpoch(index, self._batches[start:start + self._per_epoch])

    def step_done(self, loss: Any, correct: Optional[Any] = None, sync_seconds: float = 0.0,
                  copy_seconds: float = 0.0) -> None:
        self.losses.append(float(loss))
        self.step += 1

    def learning_rate(self, step: int) -> float:
        return next(batch.learning_rate for batch in self._batches if batch.step == step)


def make_batches(model: Model, count: int, batch_size: int, learning_rate: float = 0.05, seed: int = 0,
                 sparse: bool = True) -> List[Batch]:
    """Random batches for ``model``; ``sparse`` leaves a blank border and half the pixels exactly 0."""
    random = np.random.RandomState(seed)
    batches = []
    for step in range(count):
        x = random.uniform(0, 1, (batch_size,) + model.input_shape)
        if sparse:
            x *= random.uniform(0, 1, x.shape) > 0.5
            x[..., :1] = 0
        labels = random.randint(0, model.classes, batch_size)
        masks = dropout_masks(model, batch_size, step, seed)
        batches.append(Batch(step, np.ascontiguousarray(x, np.float32), labels.astype(np.int64), learning_rate, masks))
    return batches


def cnn2(input_shape: Tuple[int, ...] = (1, 28, 28), classes: int = 10, channels: Tuple[int, ...] = (32, 64),
         units: int = 128, dropout: float = 0.0) -> Model:
    """The built-in network cnn2, or a smaller one of the same form."""
    layers: List[Layer] = []
    for number, width in enumerate(channels, 1):
        layers += [
            Convolution("conv%d" % number, width, (3, 3), (1, 1), (1, 1), (1, 1)),
            Relu("relu%d" % number),
            Pool("pool%d" % number, "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        ]
    layers += [Flatten("flatten"), Dense("dense1", units), Relu("relu_dense1")]
    if dropout:
        layers.append(Dropout("dropout1", dropout))
    layers.append(Dense("dense2", classes))
    return Model("cnn2", tuple(input_shape), classes, tuple(layers)).validate()
