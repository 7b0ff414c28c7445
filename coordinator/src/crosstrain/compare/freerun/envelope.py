"""How far rounding carries a free run: the spread of runs that start one unit in the last place apart.

The runs differ from an unperturbed one of the same engine by d_m(s) at step s, m = 1..M. They part within
a few steps of one another, and their differences oscillate, so that with a handful of runs the largest at
one step says little. The band is therefore the running maximum

    b(s) = max over m and |t - s| <= w of d_m(t),    w = 10 steps,

over the perturbed runs, pooled with repeated runs of the same engine. A run is outside at s if its distance
from the reference exceeds both b(s) and the rounding of the loss itself.

A run that rounding alone moves is no different from the M others. The chance that it is the farthest of
M + 1 at a step is 1 / (M + 1), so that this is the largest share of steps it is expected outside; with the
window the share is far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import maximum_filter1d

from crosstrain.compare.freerun.rank import RankTest
from crosstrain.compare.freerun.traces import Floats, LossTrace, Steps, distance, noise, shared

#: Steps to either side over which the largest difference counts.
WINDOW = 10
#: Fewer perturbed runs than these decide nothing.
MINIMUM_RUNS = 4


@dataclass(frozen=True, eq=False)
class Envelope:
    """``band[i]`` is the largest distance that rounding explains at ``steps[i]``; ``centre`` the losses of the
    unperturbed run; ``runs`` counts the perturbed ones.
    """

    steps: Steps
    centre: Floats
    band: Floats
    runs: int

    @property
    def low(self) -> Floats:
        """Lower edge, in units of the loss; NaN where both the loss and the band are infinite."""
        with np.errstate(invalid="ignore"):
            return self.centre - self.band

    @property
    def high(self) -> Floats:
        """Upper edge, in units of the loss; NaN as for :attr:`low`."""
        with np.errstate(invalid="ignore"):
            return self.centre + self.band


def envelope(
    unperturbed: LossTrace, perturbed: Sequence[LossTrace], repeats: Sequence[LossTrace] = (), window: int = WINDOW
) -> Envelope:
    """The band of some runs over the steps that all of them have.

    Raises:
        ValueError: a negative window.
    """
    if window < 0:
        raise ValueError(f"envelope: window {window}")
    steps = unperturbed.steps
    runs = [*perturbed, *repeats]
    for run in runs:
        steps, _, _ = shared(LossTrace(steps, np.zeros(len(steps))), run)
    centre = _at(unperturbed, steps)
    band = np.zeros(len(steps))
    for run in runs:
        np.maximum(band, distance(_at(run, steps), centre), out=band)
    return Envelope(steps, centre, running_maximum(band, window), len(perturbed))


def running_maximum(values: Floats, window: int) -> Floats:
    """The largest of the values at most ``window`` places away, for every place."""
    if not len(values):
        return values.copy()
    found: Floats = maximum_filter1d(values, size=2 * window + 1, mode="nearest")
    return found


def outside_share(
    run: LossTrace,
    reference: LossTrace,
    found: Envelope,
    repeats: Sequence[LossTrace] = (),
    window: int = WINDOW,
    since: int = 0,
) -> float | None:
    """Share of the steps at which ``run`` is farther from ``reference`` than the band, 0..1.

    ``repeats`` of ``run`` widen the band by their own spread. Steps count where the band is finite (no
    pooled run diverged); None if there are none. They count from step ``since`` on, where the runs depart, if it is
    followed by as many as a window spans: those before would only dilute what happens later.
    """
    steps, left, right = shared(run, reference)
    if np.array_equal(steps, found.steps):
        band = found.band
    else:
        steps, mine, its = np.intersect1d(steps, found.steps, assume_unique=True, return_indices=True)
        left, right, band = left[mine], right[mine], found.band[its]
    if repeats:
        own = running_maximum(_spread(run, repeats), window)
        band = np.maximum(band, own[np.searchsorted(run.steps, steps)])
    usable = np.isfinite(band)
    later = usable & (steps >= since)
    if np.count_nonzero(later) > 2 * window:
        usable = later
    if not usable.any():
        return None
    outside = distance(left, right) > np.maximum(band, noise(np.maximum(np.abs(left), np.abs(right))))
    return float(np.count_nonzero(outside & usable) / np.count_nonzero(usable))


def stays_inside(share: float | None, runs: int, rank: RankTest | None) -> bool | None:
    """Whether a run stays in the envelope of ``runs`` perturbed runs; None if these are too few to say.

    It leaves if it is outside at more than 1 / (runs + 1) of the steps, unless a conclusive rank test finds
    it no farther out than the perturbed runs are.
    """
    if share is None or runs < MINIMUM_RUNS:
        return None
    if share <= 1 / (runs + 1):
        return True
    return rank is not None and rank.conclusive and not rank.significant


def _spread(run: LossTrace, repeats: Sequence[LossTrace]) -> Floats:
    spread = np.zeros(len(run))
    for repeat in repeats:
        steps, left, right = shared(run, repeat)
        at = np.searchsorted(run.steps, steps)
        spread[at] = np.maximum(spread[at], distance(left, right))
    return spread


def _at(run: LossTrace, steps: Steps) -> Floats:
    if len(run) == len(steps):
        return run.losses
    return run.losses[np.searchsorted(run.steps, steps)]
