"""Dropout that ranks draw themselves: the verdict tells equal seeds from seeds of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compare.causes.layer_faults import as_kind
from compare.problems import problem

from crosstrain.compare.causes import explain
from crosstrain.compare.certificate import certify
from crosstrain.compare.testing import Simulated
from crosstrain_reference import Dropout, Network
from crosstrain_service.model import Dense, Flatten, Relu
from crosstrain_service.model import Dropout as PlainDropout

#: Batches of 7 and of 2; shares of 4 and 3 on two ranks, of 3, 2 and 2 on three.
NET = problem(
    (1, 3, 4), [Flatten("flatten"), Dense("dense", 32), Relu("relu"), PlainDropout("drop", 0.25), Dense("logits", 3)],
    samples=9, batch=7, steps=4,
)  # fmt: skip


def drawing(seed_of: Callable[[int], int], ranks: int, other: bool = False) -> type[Simulated]:
    """An engine whose ranks draw masks from ``seed_of(rank)``; with ``other``, others than recorded for the update."""
    generators = [np.random.RandomState(seed_of(rank)) for rank in range(ranks)]

    def draw(mask: np.ndarray, rate: float) -> np.ndarray:
        parts = [generator.uniform(size=part.shape) >= rate
                 for generator, part in zip(generators, np.array_split(mask, ranks), strict=True)]  # fmt: skip
        return np.concatenate(parts) / (1 - rate)

    class Drawn(Dropout):
        def forward(self, x: np.ndarray, params: Any, train: bool = True, mask: Any = None, *rest: Any) -> Any:
            if train and mask is not None:
                mask = draw(mask, self.rate).astype(x.dtype)
            return super().forward(x, params, train, mask)

    class Ranks(Simulated):
        def network(self) -> Network:
            layers = super().network().layers
            return Network([as_kind(item, Drawn) if type(item) is Dropout else item for item in layers])

        def update(self, params: Any, gradients: Any, state: Any, rate: float, step: int) -> Any:
            # Another mask in the training step, and so another gradient.
            random = np.random.RandomState(step)
            used = {name: self.typed(value * random.uniform(0.5, 2, value.shape)) for name, value in gradients.items()}
            return super().update(params, used if other else gradients, state, rate, step)

        def reported(self, loss: Any, *rest: Any) -> Any:
            return loss * 1.1 if other else loss

    return Ranks


def named(engine: type[Simulated]) -> list[tuple[str, ...]]:
    records = engine(NET).records()
    certificate = certify(NET, records)
    assert not certificate.holds
    return [cause.ids for cause in explain(NET, records, certificate)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("other", [False, True], ids=["same mask in the step", "another mask in the step"])
def test_equal_seeds_are_named(ranks: int, other: bool) -> None:
    assert named(drawing(lambda rank: 5, ranks, other)) == [("parallel.masks_of_one_rank",)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_seeds_of_their_own_are_not(ranks: int) -> None:
    assert named(drawing(lambda rank: 5 + rank, ranks)) == [("dropout.own_mask",)]
