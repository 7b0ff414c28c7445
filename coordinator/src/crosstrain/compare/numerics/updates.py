"""Update rules with running error bounds.

Four units in the last place, a natural guess, is wrong for rules that amplify their roundings, so the bound
is derived: every number is carried with a bound of its error (``approximate``), each operation adds
one rounding of its result and what its operands bring in. Constants count as rounded once to the run's
type, after 1 - beta and 1 - beta^t were formed exactly; recorded state counts as rounded twice (some
frameworks keep another form of it, such as the momentum buffer without the learning rate). The sum of
squares of a global norm has the bound of an inner product, see ``bounds``. Frameworks evaluate
algebraically equal forms with a few more operations, hence the factor 2 at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from crosstrain.compare.numerics import forms
from crosstrain.compare.numerics.rounding import Arithmetic, Arrays, Bounded
from crosstrain_service.training import Training


def start_of(
    params: Arrays,
    gradients: Arrays,
    state: Arrays,
    step: int,
    arithmetic: Arithmetic,
    gradient_errors: Mapping[str, Any] | None = None,
) -> forms.Start:
    """What an update starts from, in the checking type; ``step`` counts from 0."""
    return forms.Start(
        {name: arithmetic.wide(value) for name, value in params.items()},
        {name: arithmetic.wide(value) for name, value in gradients.items()},
        {name: arithmetic.wide(value) for name, value in state.items()},
        step,
        arithmetic,
        gradient_errors or {},
    )


def expected(
    training: Training,
    params: Arrays,
    gradients: Arrays,
    state: Arrays,
    learning_rate: float,
    step: int,
    arithmetic: Arithmetic,
    gradient_errors: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
    """Parameters and state after one update, with bounds; ``step`` counts from 0.

    ``gradient_errors`` bounds how far the gradients that the update used may be from the recorded ones.
    """
    form = dataclasses.replace(forms.canonical_form(training, step), rate=learning_rate)
    return forms.apply(form, start_of(params, gradients, state, step, arithmetic, gradient_errors))
