"""Engines with one wrong convention in what they are fed with, in the loss, in gradients of ranks, or in evaluation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from compare.problems import MOMENTUM, NESTEROV, conv, problem, small

from crosstrain.compare.testing import Simulated
from crosstrain_reference import BatchNorm, cross_entropy, cross_entropy_gradient, softmax
from crosstrain_service.model import BatchNorm as PlainBatchNorm
from crosstrain_service.model import Dense, Dropout, Flatten, Relu
from crosstrain_service.training import WeightDecay

Arrays = dict[str, np.ndarray]


def reads(change: Any) -> type[Simulated]:
    class Changed(Simulated):
        def read(self, x: np.ndarray) -> np.ndarray:
            return np.ascontiguousarray(change(x))

    return Changed


class CountsFromOne(Simulated):
    def labels(self, labels: np.ndarray) -> np.ndarray:
        return (labels + 1) % self.problem.model.classes


class SameOrder(Simulated):
    def rows(self, step: int) -> np.ndarray:
        return np.arange(3 * (step % 2), 3 * (step % 2) + 3)


class Double(Simulated):
    def records(self) -> dict[int, Arrays]:
        wide = Simulated(dataclasses.replace(self.problem, dtype=np.float64)).records()
        return wide


class OwnWeights(Simulated):
    def initial(self) -> Any:
        random = np.random.RandomState(3)
        return {name: random.uniform(-0.3, 0.3, value.shape) for name, value in self.problem.initial.items()}


class Clipped(Simulated):
    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        share = np.clip(softmax(logits), np.float32(1e-7), np.float32(1 - 1e-7))
        return -np.log(share[np.arange(len(labels)), labels]).mean()

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        chosen = softmax(logits)[np.arange(len(labels)), labels]
        inside = (chosen > 1e-7) & (chosen < np.float32(1 - 1e-7))
        return np.where(inside[:, None], cross_entropy_gradient(logits, labels), np.float32(0))


class Saturated(Simulated):
    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        share = softmax(logits)[np.arange(len(labels)), labels]
        return -np.log(np.maximum(share, np.finfo(np.float32).tiny)).mean()


class Summed(Simulated):
    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        return cross_entropy(logits, labels) * np.float32(len(labels))

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return cross_entropy_gradient(logits, labels) * np.float32(len(labels))


class MeanOfMeans(Simulated):
    """Two ranks, the first of which has a sample more than the second."""

    def _weights(self, count: int) -> np.ndarray:
        sizes = np.array([(count + 1) // 2, count // 2])
        return np.repeat(count / 2 / sizes, sizes).astype(np.float32)

    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        rows = range(len(labels))
        each = np.array([cross_entropy(logits[row : row + 1], labels[row : row + 1]) for row in rows])
        return (each * self._weights(len(labels))).mean()

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return cross_entropy_gradient(logits, labels) * self._weights(len(labels))[:, None]


class Twice(Simulated):
    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        return cross_entropy(softmax(logits), labels)

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        p = softmax(logits)
        outer = cross_entropy_gradient(p, labels)
        jacobian = np.einsum("ni,ij->nij", p, np.eye(p.shape[1], dtype=p.dtype)) - np.einsum("ni,nj->nij", p, p)
        return np.einsum("nij,nj->ni", jacobian, outer)


class WithPenalty(Simulated):
    def reported(self, loss: Any, before: Arrays, after: Arrays, batch: tuple[Any, ...]) -> Any:
        decay = self.problem.training.weight_decay
        assert decay is not None
        squares = sum(float(np.square(value).sum()) for name, value in before.items() if name.endswith(".weight"))
        return np.float32(loss) + np.float32(decay.rate / 2 * squares)


class AfterUpdate(Simulated):
    def reported(self, loss: Any, before: Arrays, after: Arrays, batch: tuple[Any, ...]) -> Any:
        x, labels, masks = batch
        net = self.network()
        return cross_entropy(net.forward(x, after, masks).outputs[net.layers[-1].name], labels)


class MeanSoFar(Simulated):
    def __init__(self, problem_: Any) -> None:
        super().__init__(problem_)
        self.seen: list[Any] = []

    def reported(self, loss: Any, before: Arrays, after: Arrays, batch: tuple[Any, ...]) -> Any:
        self.seen.append(loss)
        return np.mean(self.seen, dtype=np.float32)


def multiplied(factor: float) -> type[Simulated]:
    class Changed(Simulated):
        def gradients(self, gradients: Arrays) -> Arrays:
            return {name: value * np.float32(factor) for name, value in gradients.items()}

    return Changed


def averaged(momentum: float, inverse: bool = False) -> type[Simulated]:
    """Running averages from (0, 1) of the batch's mean and unbiased variance, or inverse deviation."""

    class Changed(Simulated):
        def statistics(self, params: Arrays, seen: list[Any]) -> Any:
            layers = [layer for layer in self.network().layers if isinstance(layer, BatchNorm)]
            found = {}
            for layer in layers:
                mean, second = np.float32(0), np.float32(1)
                for forward in seen:
                    x = forward.traces[layer.name].x
                    batch_mean, variance = forward.statistics[layer.name]
                    count = x.size // x.shape[1]
                    new = 1 / np.sqrt(variance + layer.eps) if inverse else variance * np.float32(count / (count - 1))
                    mean = momentum * mean + (1 - momentum) * batch_mean
                    second = momentum * second + (1 - momentum) * new
                if inverse:
                    second = 1 / np.square(second) - layer.eps
                found[layer.name] = (self.typed(mean), self.typed(second))
            return found

    return Changed


class BatchByBatch(Simulated):
    def logits(self, params: Arrays, x: np.ndarray, statistics: Any) -> np.ndarray:
        net = self.network()
        return net.forward(x, params, train=True).outputs[net.layers[-1].name]


class StillDropping(Simulated):
    def logits(self, params: Arrays, x: np.ndarray, statistics: Any) -> np.ndarray:
        net = self.network()
        random = np.random.RandomState(12)
        masks = {"drop": self.typed((random.uniform(size=(len(x), 32)) >= 0.5) * 2.0)}
        return net.forward(x, params, masks, train=True).outputs[net.layers[-1].name]


def _cut(value: np.ndarray, drop: int) -> np.ndarray:
    raw = np.ascontiguousarray(value, np.float32).view(np.uint32)
    return ((raw + np.uint32(1 << (drop - 1))) >> np.uint32(drop) << np.uint32(drop)).view(np.float32)


IMAGES = problem((3, 4, 5), [conv("conv", 2, 3)], pixels=np.random.RandomState(4).uniform(0, 1, (6, 3, 4, 5)))
SQUARE = problem((1, 5, 5), [conv("conv", 2, 3)], pixels=np.random.RandomState(4).uniform(0, 1, (6, 1, 5, 5)))
LOGITS = np.array([[14.4, 50.1, 3.5], [1.0, 2.0, 3.0], [-60.0, 40.0, 5.0]], np.float32).reshape(3, 3, 1, 1)
LARGE = problem(
    (3, 1, 1), [Flatten("flatten"), Dense("logits", 3)], pixels=LOGITS, labels=[0, 1, 0], keep_order=True, steps=1,
    initial={"logits.weight": np.eye(3), "logits.bias": 0},
)  # fmt: skip
NORM = problem(
    (2, 4, 4), [conv("conv", 3, 3), PlainBatchNorm("norm", 1e-3), Relu("relu")], samples=8, batch=4, test=True)
DROPPED = problem(
    (1, 3, 4), [Flatten("flatten"), Dense("dense", 32), Relu("relu"), Dropout("drop", 0.5), Dense("logits", 3)],
    test=True, test_rows=40,
)  # fmt: skip

FAULTS: dict[str, tuple[Any, Any]] = {
    "input.scale_255": (SQUARE, reads(lambda x: x * np.float32(255))),
    "input.rescaled": (SQUARE, reads(lambda x: (x - np.float32(0.1307)) / np.float32(0.3081))),
    "input.channel_order": (IMAGES, reads(lambda x: x[:, ::-1])),
    "input.spatial_transposed": (SQUARE, reads(lambda x: x.swapaxes(2, 3))),
    "input.rounded_tf32": (SQUARE, reads(lambda x: _cut(x, 13))),
    "input.rounded_bfloat16": (SQUARE, reads(lambda x: _cut(x, 16))),
    "input.labels_off_by_one": (SQUARE, CountsFromOne),
    "input.other_rows": (SQUARE, SameOrder),
    "input.other_dtype": (SQUARE, Double),
    "weights.other_initial": (SQUARE, OwnWeights),
    "loss.clipped_probabilities": (LARGE, Clipped),
    "loss.saturated_log": (LARGE, Saturated),
    "loss.summed": (SQUARE, Summed),
    "loss.double_softmax": (SQUARE, Twice),
    "loss.includes_penalty": (small(weight_decay=WeightDecay(0.1)), WithPenalty),
    "loss.mean_of_means": (SQUARE, MeanOfMeans),
    "loss.running_mean": (small(batch=2), MeanSoFar),
    "loss.after_update": (small(rule=NESTEROV), AfterUpdate),
    "gradient.summed_over_ranks": (small(rule=MOMENTUM), multiplied(3.0)),
    "gradient.divided_twice": (small(rule=MOMENTUM), multiplied(0.25)),
    "batch_norm.running_statistics": (NORM, averaged(0.9)),
    "batch_norm.inverse_deviation": (NORM, averaged(0.9, inverse=True)),
    "evaluation.batch_statistics": (NORM, BatchByBatch),
    "evaluation.dropout_on": (DROPPED, StillDropping),
}
