"""The one table of conventions."""

from __future__ import annotations

from crosstrain.compare.causes import (
    activations,
    clip,
    convolution,
    data,
    decay,
    dense,
    dropout,
    evaluation,
    gradients,
    losses,
    momentum,
    normalisation,
    optimizers,
    pooling,
    precision,
    ranks,
    schedule,
)
from crosstrain.compare.causes.convention import Convention

#: Every convention, in the order of the computation.
CONVENTIONS: tuple[Convention, ...] = (
    *data.CONVENTIONS,
    *convolution.CONVENTIONS,
    *precision.CONVENTIONS,
    *pooling.CONVENTIONS,
    *activations.CONVENTIONS,
    *dense.CONVENTIONS,
    *dropout.CONVENTIONS,
    *normalisation.CONVENTIONS,
    *losses.CONVENTIONS,
    *gradients.CONVENTIONS,
    *ranks.CONVENTIONS,
    *decay.CONVENTIONS,
    *clip.CONVENTIONS,
    *momentum.CONVENTIONS,
    *optimizers.CONVENTIONS,
    *schedule.CONVENTIONS,
    *evaluation.CONVENTIONS,
)
BY_ID = {item.id: item for item in CONVENTIONS}
if len(BY_ID) != len(CONVENTIONS):
    raise ValueError("two conventions have the same id")


def of_stage(stage: str) -> tuple[Convention, ...]:
    """The conventions of one stage, the most specific first."""
    return tuple(sorted((item for item in CONVENTIONS if stage in item.vary), key=lambda item: item.specific))
