"""Loss traces of free runs, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

#: Relative difference of two losses beyond which the curves are no longer together.
HORIZON = 1e-3
#: Relative difference that rounding of the loss itself does not reach: 1e-6 is 17 u of float32 (u = 2^-24).
DEPARTURE = 1e-6
#: Rounding of a loss that is small: 8 u, times 1 + |loss|. The logarithm of a sum of exponentials has an error
#: relative to its terms, however small the loss that is left of them.
LOSS_ROUNDING = 8 * 2.0**-24
#: Unit roundoff of float32, for which these are given.
UNIT = 2.0**-24


@dataclass(frozen=True, eq=False)
class LossTrace:
    """The loss of every step of a run: mean over the batch before the update, without penalties.

    ``steps`` is strictly increasing, ``losses`` has its length and may hold NaN and infinities. ``rates``,
    the learning rates of the same steps, may be missing. ``unit`` is the unit roundoff of the losses: coarser than
    float32's in mixed precision (:func:`crosstrain.compare.numerics.rounding.unit_of`).
    """

    steps: Steps
    losses: Floats
    rates: Floats | None = None
    unit: float = UNIT

    def __post_init__(self) -> None:
        """Raises ValueError where lengths differ or steps are negative or do not increase."""
        steps = np.asarray(self.steps, dtype=np.int64)
        losses = np.asarray(self.losses, dtype=np.float64)
        if steps.ndim != 1 or losses.shape != steps.shape:
            raise ValueError(f"trace: {losses.shape} losses for {steps.shape} steps")
        if len(steps) and (steps[0] < 0 or (len(steps) > 1 and not bool((steps[1:] > steps[:-1]).all()))):
            raise ValueError("trace: steps must count upwards from 0")
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "losses", losses)
        if self.rates is not None:
            rates = np.asarray(self.rates, dtype=np.float64)
            if rates.shape != steps.shape:
                raise ValueError(f"trace: {rates.shape} learning rates for {steps.shape} steps")
            object.__setattr__(self, "rates", rates)

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def of(cls, losses: Mapping[int, float], rates: Mapping[int, float] | None = None) -> LossTrace:
        """A trace from losses by step; rates are kept if every step has one."""
        steps = sorted(losses)
        kept = None
        if rates is not None and all(step in rates for step in steps):
            kept = np.array([rates[step] for step in steps], dtype=np.float64)
        return cls(
            np.array(steps, dtype=np.int64), np.array([losses[step] for step in steps], dtype=np.float64), kept
        )

    def rate_changes(self) -> Steps:
        """Steps whose learning rate is another one than that of the step before."""
        if self.rates is None or len(self) < 2:
            return np.empty(0, dtype=np.int64)
        changes: Steps = self.steps[1:][self.rates[1:] != self.rates[:-1]]
        return changes


@dataclass(frozen=True)
class Difference:
    """How far two traces are apart over the steps that both have; a step of -1 means there is none.

    ``equal`` and ``first_different_step`` go by bits. ``max_abs`` is infinite where one loss is not finite and
    the other is not the same; two NaN are the same.
    """

    steps_compared: int
    equal: bool
    first_different_step: int
    max_abs: float
    max_step: int
    departed_step: int
    horizon_step: int
    lengths: tuple[int, int]

    @property
    def same_steps(self) -> bool:
        """Whether both traces have exactly the steps compared."""
        return self.lengths == (self.steps_compared, self.steps_compared)


def shared(a: LossTrace, b: LossTrace) -> tuple[Steps, Floats, Floats]:
    """The steps that two traces share, with the losses of both."""
    if len(a) == len(b) and np.array_equal(a.steps, b.steps):
        return a.steps, a.losses, b.losses
    steps, left, right = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return steps, a.losses[left], b.losses[right]


def distance(a: Floats, b: Floats) -> Floats:
    """Absolute differences; 0 where both are NaN, infinite where one is not finite and they are not the same."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.abs(a - b)
    odd = ~np.isfinite(found)
    if odd.any():
        left, right = a[odd], b[odd]
        found[odd] = np.where((left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.inf)
    return found


def departure(unit: float) -> float:
    """The relative difference that rounding of a loss does not reach, where it is not small."""
    return DEPARTURE * unit / UNIT


def noise(losses: Floats, unit: float = UNIT) -> Floats:
    """What rounding of the loss itself may do to losses of this size: max(1e-6 |loss|, 8 u (1 + |loss|)) in float32,
    and as much more as the unit roundoff is larger; 0 where they are not finite.
    """
    size = np.abs(losses)
    found: Floats = np.maximum(departure(unit) * size, LOSS_ROUNDING * (1 + size) * (unit / UNIT))
    return np.where(np.isfinite(found), found, 0.0)


def difference(a: LossTrace, b: LossTrace) -> Difference:
    """Compares two traces over the steps they share.

    "Different" means not bitwise equal. Traces depart where they differ by more than :func:`noise` of the larger
    loss, and the horizon is where they also differ by more than 1e-3 of it.
    """
    steps, left, right = shared(a, b)
    lengths = (len(a), len(b))
    if not len(steps):
        return Difference(0, False, -1, 0.0, -1, -1, -1, lengths)
    different = _different(left, right)
    if not different.any():
        return Difference(len(steps), True, -1, 0.0, -1, -1, -1, lengths)
    far = distance(left, right)
    scale = np.maximum(np.abs(left), np.abs(right))
    worst = int(far.argmax())
    with np.errstate(invalid="ignore"):
        infinite = np.isinf(far)
        departed = (far > noise(scale, max(a.unit, b.unit))) | infinite
        beyond = departed & ((far > HORIZON * scale) | infinite)
    return Difference(
        len(steps),
        False,
        _first(steps, different),
        float(far[worst]),
        int(steps[worst]) if far[worst] > 0 else -1,
        _first(steps, departed),
        _first(steps, beyond),
        lengths,
    )


def _different(a: Floats, b: Floats) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.ascontiguousarray(a).view(np.uint64) != np.ascontiguousarray(b).view(np.uint64)
    return found


def _first(steps: Steps, where: NDArray[np.bool_]) -> int:
    at = int(where.argmax())
    return int(steps[at]) if where[at] else -1
