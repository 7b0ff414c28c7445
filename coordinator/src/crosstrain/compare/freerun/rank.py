"""Rank test: is an engine's run farther from the unperturbed run than the perturbed runs are?

If rounding alone sets the engine apart, its run and the M perturbed ones are exchangeable given the
unperturbed run, whatever the losses' distribution and however correlated the steps are. So each run is
reduced to one number T, the mean over the steps of log10(max(distance, noise) / noise) with the noise that
rounding of the loss itself makes, and

    p = #{runs with T at least the engine's, itself included} / (M + 1)

is exact: P(p <= a) <= a for every M (a permutation test over which of the runs is the engine's). It cannot
be smaller than 1 / (M + 1): below 19 runs no result reaches 0.05, and the test concludes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crosstrain.compare.freerun.traces import LossTrace, distance, noise, shared

#: Level below which a p-value is significant.
LEVEL = 0.05


@dataclass(frozen=True)
class RankTest:
    """``statistic`` is the engine's mean distance in decades above the noise; ``runs`` the perturbed runs."""

    statistic: float
    p_value: float
    runs: int

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that so many runs can give."""
        return 1 / (self.runs + 1)

    @property
    def conclusive(self) -> bool:
        """Whether there are enough runs for a significant result to be possible."""
        return self.smallest_p <= LEVEL

    @property
    def significant(self) -> bool:
        """Whether the engine's run is farther out than rounding explains."""
        return self.p_value <= LEVEL


def decades(run: LossTrace, centre: LossTrace) -> float | None:
    """The statistic T of one run; None without shared steps.

    Infinite distances count as the largest number.
    """
    steps, left, right = shared(run, centre)
    if not len(steps):
        return None
    least = np.maximum(noise(right), np.finfo(np.float64).tiny)
    far = np.minimum(distance(left, right), np.finfo(np.float64).max)
    return float((np.log10(np.maximum(far, least)) - np.log10(least)).mean())


def rank_test(
    run: LossTrace, unperturbed: LossTrace, perturbed: Sequence[LossTrace], known: Sequence[float] | None = None
) -> RankTest | None:
    """Tests one run against the perturbed runs; None without runs or shared steps.

    ``known`` are the statistics of the perturbed runs where they were computed before. A run without some of the
    unperturbed run's steps is tested over those that it has, the perturbed runs too.
    """
    if known is not None and np.isin(unperturbed.steps, run.steps).all():
        others = known
    else:
        steps, _, losses = shared(run, unperturbed)
        others = statistics(LossTrace(steps, losses), perturbed)
    own = decades(run, unperturbed)
    if own is None or not others:
        return None
    as_far = 1 + sum(other >= own for other in others)
    return RankTest(own, as_far / (len(others) + 1), len(others))


def statistics(unperturbed: LossTrace, perturbed: Sequence[LossTrace]) -> list[float]:
    """The statistics of the perturbed runs that share steps with the unperturbed one."""
    found = (decades(run, unperturbed) for run in perturbed)
    return [value for value in found if value is not None]
