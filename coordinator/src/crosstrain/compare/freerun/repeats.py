"""Repeated runs of one engine: whether it repeats itself, and how that compares with differences of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crosstrain.compare.freerun.traces import LossTrace, difference, distance, shared


@dataclass(frozen=True)
class Repeats:
    """``runs`` counts all runs of the engine, the first included; a step of -1 means there is none.

    ``own_variance`` and ``cross_variance`` are the mean variance of two runs' losses at a step, of two repeats
    and of the engine and the reference, over the steps that all share; ``cross_variance`` is None without a reference.
    """

    runs: int
    bitwise_equal: bool
    max_difference: float
    first_different_step: int
    own_variance: float
    cross_variance: float | None

    @property
    def non_deterministic(self) -> bool:
        """Whether repeats of the same run differ at all."""
        return not self.bitwise_equal

    @property
    def dominates(self) -> bool:
        """Whether the engine differs from itself at least as much as from the reference."""
        return self.non_deterministic and self.cross_variance is not None and self.own_variance >= self.cross_variance


def repeats(run: LossTrace, others: Sequence[LossTrace], reference: LossTrace | None = None) -> Repeats | None:
    """Compares a run with its repeats (same job, same seed); None without repeats or shared steps."""
    found = [difference(run, other) for other in others]
    if not found or not any(item.steps_compared for item in found):
        return None
    steps = [item.first_different_step for item in found if item.first_different_step >= 0]
    everyone = [run, *others] if reference is None else [run, *others, reference]
    common = run
    for trace in everyone[1:]:
        kept, values, _ = shared(common, trace)
        common = LossTrace(kept, values)
    losses = [trace.losses[np.isin(trace.steps, common.steps)] for trace in everyone]
    own = [_variance(losses[0], other) for other in losses[1 : len(others) + 1]]
    cross = [_variance(mine, losses[-1]) for mine in losses[: len(others) + 1]] if reference is not None else None
    return Repeats(
        len(others) + 1,
        all(item.equal for item in found),
        max(item.max_abs for item in found),
        min(steps, default=-1),
        float(np.mean(own)),
        None if cross is None else float(np.mean(cross)),
    )


def _variance(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over the steps of the (unbiased) variance of two losses, which is half their squared difference."""
    if not len(a):
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.mean(distance(a, b) ** 2) / 2)
