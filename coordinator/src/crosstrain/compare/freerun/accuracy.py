"""Final accuracies over several seeds: are two engines equivalent within a stated margin?

Two one-sided paired t tests (Schuirmann 1987): with d_r the difference of the accuracies of seed r, mean m,
standard error s / sqrt(R) and margin D, both m + D > 0 and m - D < 0 must hold at level 0.05. The larger of
both p-values is reported.

Power, assuming that the engines are truly equal, from the noncentral t distribution (Phillips 1990):

    power(R) = 2 P(T' > t) - 1,   T' noncentral t with R - 1 degrees of freedom, shift D sqrt(R) / s,

with t the 0.95 quantile of Student's t. The seeds needed are the smallest R with a power of 0.8. Since the
standard deviation of few differences is itself uncertain, its upper 80 % confidence limit
s sqrt((R - 1) / chi2(0.2, R - 1)) is planned with. Fewer seeds than needed are inconclusive whatever the
p-value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05
POWER = 0.8
#: Confidence of the standard deviation that seeds are planned with.
CONFIDENCE = 0.8
#: Fewest seeds that a decision rests on.
MINIMUM_SEEDS = 3
#: Seeds beyond which the search for the number needed ends.
MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Tost:
    """``equivalent`` is None while seeds are too few; ``different`` if the mean difference is beyond the
    margin with significance; ``p_value`` and ``needed_seeds`` are None with a single seed.
    """

    margin: float
    p_value: float | None
    equivalent: bool | None
    seeds: int
    needed_seeds: int | None
    mean_difference: float
    different: bool = False


def tost(a: Mapping[int, float], b: Mapping[int, float], margin: float) -> Tost | None:
    """Tests the accuracies (0..1) of two engines by seed; None without a shared seed.

    Raises:
        ValueError: a margin that is not between 0 and 1.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin {margin}: must be between 0 and 1")
    seeds = sorted(seed for seed in a.keys() & b.keys() if math.isfinite(a[seed]) and math.isfinite(b[seed]))
    if not seeds:
        return None
    differences = np.array([a[seed] - b[seed] for seed in seeds])
    count, mean = len(seeds), float(differences.mean())
    if count < 2:
        return Tost(margin, None, None, count, None, mean)
    deviation = float(differences.std(ddof=1))
    error = deviation / math.sqrt(count)
    p_value = _p(mean, error, margin, count)
    planned = deviation * math.sqrt((count - 1) / float(stats.chi2.ppf(1 - CONFIDENCE, count - 1)))
    needed = needed_seeds(planned, margin)
    enough = needed is not None and count >= needed
    beyond = abs(mean) - margin
    farther = beyond > 0 and (error == 0 or float(stats.t.sf(beyond / error, count - 1)) <= LEVEL)
    return Tost(
        margin, p_value, p_value <= LEVEL if enough else None, count, needed, mean, farther and count >= MINIMUM_SEEDS
    )


def _p(mean: float, error: float, margin: float, count: int) -> float:
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    above = float(stats.t.sf((mean + margin) / error, count - 1))
    below = float(stats.t.cdf((mean - margin) / error, count - 1))
    return max(above, below)


def power(deviation: float, margin: float, seeds: int) -> float:
    """Chance that so many seeds show equivalence of engines that are equal, 0..1.

    ``deviation`` is the standard deviation of the differences of a seed's accuracies.
    """
    if seeds < 2:
        return 0.0
    if deviation == 0:
        return 1.0
    shift = margin * math.sqrt(seeds) / deviation
    quantile = float(stats.t.ppf(1 - LEVEL, seeds - 1))
    # Beyond a shift of 37 the two differ by less than a double resolves, and the tail is certain.
    tail = 1.0 if shift - quantile > 37 else float(stats.nct.sf(quantile, seeds - 1, shift))
    return max(0.0, 2 * tail - 1)


def needed_seeds(deviation: float, margin: float) -> int | None:
    """The smallest number of seeds with a power of 0.8; None beyond 100,000."""
    low, high = MINIMUM_SEEDS - 1, MINIMUM_SEEDS
    while power(deviation, margin, high) < POWER:
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(deviation, margin, middle) >= POWER else (middle, high)
    return high
