"""Engines with one wrong convention of ranks, simulated for two of them, written without the table's own formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from compare.causes.data_faults import DROPPED, SQUARE
from compare.causes.layer_faults import NORM, as_kind, layers, masked
from compare.problems import MOMENTUM, small

from crosstrain.compare.testing import Simulated, reference_update
from crosstrain_reference import BatchNorm, Convolution, Dropout, Network, cross_entropy, cross_entropy_gradient

Arrays = dict[str, np.ndarray]

#: Two ranks have 2 and 1 samples of a batch of 3.
AGAIN = [0, 1, 0]


class SameShare(Simulated):
    """The second rank computes the first one's first sample instead of its own."""

    def network(self) -> Network:
        class FirstShare(Convolution):
            def forward(self, x: np.ndarray, *rest: Any, **named: Any) -> Any:
                return super().forward(np.ascontiguousarray(x[AGAIN]), *rest, **named)

        first, *others = super().network().layers
        return Network([as_kind(first, FirstShare), *others])

    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        return cross_entropy(logits, labels[AGAIN])

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return cross_entropy_gradient(logits, labels[AGAIN])


class LocalNorm(BatchNorm):
    """Normalises the first two samples of four, and the last two, by themselves."""

    def forward(self, x: np.ndarray, params: Any, train: bool = True, *rest: Any, **named: Any) -> Any:
        if not train:
            return super().forward(x, params, train, *rest, **named)
        found = [super(LocalNorm, self).forward(x[part], params, True) for part in (slice(0, 2), slice(2, 4))]
        _, whole = super().forward(x, params, True)
        self.__dict__["traces"] = [trace for _, trace in found]
        return np.concatenate([y for y, _ in found]), whole

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        traces = self.__dict__["traces"]
        found = [super(LocalNorm, self).backward(part, own, params)
                 for part, own in zip((dy[:2], dy[2:]), traces, strict=True)]  # fmt: skip
        gradients = {name: found[0][1][name] + found[1][1][name] for name in found[0][1]}
        return np.concatenate([dx for dx, _ in found]), gradients


class LeftOut(Simulated):
    """The last sample, the second rank's only one, adds nothing to any gradient."""

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found = super().loss_gradient(logits, labels)
        found[2] = 0
        return found


def stepping(weights: list[float]) -> type[Simulated]:
    """An engine whose update is made of the gradients of weighted samples, while it records others."""

    class Weighted(Simulated):
        def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
            net, rows = self.network(), self.rows(step)
            forward = net.forward(self.typed(self.problem.data.inputs(rows)), params, {})
            dy = cross_entropy_gradient(forward.outputs[net.layers[-1].name], self.problem.data.labels[rows])
            dy = self.typed(dy * np.array(weights)[:, None])
            used = {name: self.typed(value) for name, value in net.backward(dy, forward, params).params.items()}
            return reference_update(self.problem.training, params, used, state, rate, step)

    return Weighted


#: What only the training step does wrong, by the convention that names it.
STEPS = {
    "parallel.skipped_rank": (small(rule=MOMENTUM, samples=6, batch=3), stepping([1, 1, 0])),
    "loss.mean_of_means": (small(rule=MOMENTUM, samples=6, batch=3), stepping([0.75, 0.75, 1.5])),
}

FAULTS: dict[str, tuple[Any, Any]] = {
    "parallel.repeated_shards": (SQUARE, SameShare),
    "parallel.local_batch_norm": (NORM, layers(BatchNorm, lambda layer: LocalNorm(layer.name, layer.eps))),
    "parallel.masks_of_one_rank": (
        DROPPED, layers(Dropout, lambda layer: masked(lambda m, _: m[AGAIN])(layer.name, layer.rate))),
    "parallel.skipped_rank": (SQUARE, LeftOut),
}  # fmt: skip
