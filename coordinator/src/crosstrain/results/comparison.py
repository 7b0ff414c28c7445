"""How far the recorded losses are from those of the reference engine: numbers, no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crosstrain.labels import engine_label

from .records import RunRecord

REFERENCE = "reference"
#: Steps 0 to 9 are looked at apart: before them rounding has had little time to grow.
EARLY_STEPS = 10
#: Above what float32 rounding of a loss of order 1 gives in the first steps.
THRESHOLD = 1e-6


@dataclass(frozen=True)
class Difference:
    """Absolute differences of one run's losses from the reference's, over the steps both recorded.

    ``early`` covers steps 0 to 9; ``first_above`` is the first step whose difference exceeds 1e-6.
    None where there is no such step. A loss that is not finite counts as infinitely far away.
    """

    engine: str
    version: str
    variant: str
    repeat: int
    steps: int
    early: float | None
    largest: float | None
    step_of_largest: int | None
    first_above: int | None

    @property
    def label(self) -> str:
        """``engine@version``, with the job's settings for this engine in brackets."""
        return engine_label(self.engine, self.version, self.variant)


def compare_with_reference(runs: Sequence[RunRecord]) -> list[Difference]:
    """One entry per training run of another engine; empty without a run of the reference engine."""
    reference = next((run for run in runs if run.engine == REFERENCE and run.last_step >= 0), None)
    if reference is None:
        return []
    base = reference.steps()
    return [
        _difference(run, base["step"], base["loss"])
        for run in runs
        if run.engine != REFERENCE and run.last_step >= 0
    ]


def _difference(run: RunRecord, steps: np.ndarray, losses: np.ndarray) -> Difference:
    own = run.steps()
    common, left, right = np.intersect1d(own["step"], steps, assume_unique=True, return_indices=True)
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.asarray(own["loss"][left], np.float64) - np.asarray(losses[right], np.float64))
    gap[np.isnan(gap)] = np.inf
    early = gap[common < EARLY_STEPS]
    above = np.flatnonzero(gap > THRESHOLD)
    return Difference(
        engine=run.engine,
        version=run.version,
        variant=run.variant,
        repeat=run.repeat,
        steps=len(common),
        early=float(early.max()) if early.size else None,
        largest=float(gap.max()) if gap.size else None,
        step_of_largest=int(common[gap.argmax()]) if gap.size else None,
        first_above=int(common[above[0]]) if above.size else None,
    )
