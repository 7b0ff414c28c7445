"""The learning rate of every step, computed once for all engines.

With steps s = 0, 1, ..., T - 1 of the whole job, w = ``warmup_steps``, and

    base = learning_rate                                     or, with scale_with_batch,
    base = learning_rate * batch_size / base_batch_size      (linear scaling; Goyal et al. 2017)

the learning rate is

    s <  w:  base * (s + 1) / w                              (linear; reaches base at step w - 1)
    s >= w:  base * decay(s - w), with t = s - w:
        constant      1
        step          factor ** floor(t / every)
        exponential   factor ** (t / every)                  (continuous)
        cosine        final + (1 - final) * cos^2(pi/2 * t / (T - w))

``every`` counts steps; ``every_epochs: n`` means n times the steps of an epoch.
``final`` is a share of base, and the cosine would reach it at step T, one after the last.
All is float64; engines only look the rates up.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from .base import MAX_STEPS, Part, Size

#: The batch size that ``learning_rate`` is meant for when ``scale_with_batch`` is on.
BASE_BATCH_SIZE = 256


class _Periodic(Part):
    factor: Annotated[float, Field(gt=0, le=1)]
    every_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    every_epochs: Size | None = None

    @model_validator(mode="after")
    def _one_period(self) -> _Periodic:
        if (self.every_steps is None) == (self.every_epochs is None):
            raise ValueError("give either every_steps or every_epochs")
        return self

    def period(self, steps_per_epoch: int) -> int:
        """Length of a period in steps."""
        return self.every_steps or (self.every_epochs or 1) * steps_per_epoch


class StepDecay(_Periodic):
    """Multiplies the rate by ``factor`` after every period."""


class ExponentialDecay(_Periodic):
    """Multiplies the rate by ``factor`` over every period, a little at each step."""


class CosineDecay(Part):
    """Falls along half a cosine from the base rate to ``final`` times the base rate."""

    final: Annotated[float, Field(ge=0, le=1)] = 0.0


class DecaySpec(Part):
    """Exactly one decay, for example ``{step: {factor: 0.1, every_epochs: 2}}``."""

    step: StepDecay | None = None
    exponential: ExponentialDecay | None = None
    cosine: CosineDecay | None = None

    @model_validator(mode="after")
    def _one(self) -> DecaySpec:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError("give exactly one of step, exponential, cosine; or write decay: constant")
        return self


class ScheduleSpec(Part):
    """How the learning rate changes from step to step."""

    warmup_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    scale_with_batch: bool = False
    base_batch_size: Size = BASE_BATCH_SIZE
    decay: Literal["constant"] | DecaySpec = "constant"


def rates(
    base_rate: float, schedule: ScheduleSpec, batch_size: int, total: int, steps_per_epoch: int
) -> NDArray[np.float64]:
    """Learning rates (total,) float64 by the formulas above; may underflow to 0 in long decays."""
    base = float(base_rate)
    if schedule.scale_with_batch:
        base = base * batch_size / schedule.base_batch_size
    warmup = min(schedule.warmup_steps, total)
    result = np.full(total, base, dtype=np.float64)
    result[:warmup] = base * (np.arange(warmup, dtype=np.float64) + 1.0) / max(1, schedule.warmup_steps)
    time = np.arange(total - warmup, dtype=np.int64)
    result[warmup:] *= _decay(schedule.decay, time, total - warmup, steps_per_epoch)
    return result


def _decay(
    decay: str | DecaySpec, time: NDArray[np.int64], length: int, steps_per_epoch: int
) -> NDArray[np.float64] | float:
    if isinstance(decay, str):
        return 1.0
    if decay.step is not None:
        passed = (time // decay.step.period(steps_per_epoch)).astype(np.float64)
        return np.float64(decay.step.factor) ** passed
    if decay.exponential is not None:
        return np.float64(decay.exponential.factor) ** (time / decay.exponential.period(steps_per_epoch))
    final = decay.cosine.final if decay.cosine is not None else 0.0
    fall = np.cos(np.pi / 2 * time / max(1, length)) ** 2
    return np.asarray(final + (1.0 - final) * fall, dtype=np.float64)
