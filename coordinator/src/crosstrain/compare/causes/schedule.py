"""Conventions of the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.numerics.forms import Form


def _neighbour(form: Form, place: Any) -> Iterator[Form]:
    rates = place.rates
    for step in (place.step - 1, place.step + 1):
        if 0 <= step < len(rates) and rates[step] != form.rate:
            yield replace(form, rate=float(rates[step]))


def _scaled(form: Form, place: Any) -> Iterator[Form]:
    """The factor that the engine's steps show: a step is linear in its rate."""
    try:
        full = place.evaluate(form)[0]
        rest = place.evaluate(replace(form, rate=0.0))[0]
    except (KeyError, ValueError):
        return
    found = place.found[0]
    along = np.concatenate([np.ravel(full[name].value - rest[name].value) for name in full])
    moved = np.concatenate([np.ravel(place.start.arithmetic.wide(found[name]) - rest[name].value) for name in full])
    square = float(np.square(along).sum())
    if not square or not np.isfinite(moved).all():
        return
    factor = float((moved * along).sum()) / square
    if abs(factor) < 1e-12:
        return
    short = float(f"{factor:.3g}")
    inverse = 1 / float(f"{1 / factor:.3g}")
    for value in dict.fromkeys((short, inverse, factor)):
        # A factor this close to 1 would only imitate rounding.
        if abs(value - 1.0) > 1e-3:
            yield replace(form, rate=form.rate * value)


def _list(value: Any, place: Any) -> Iterator[Any]:
    rates = place.problem.training.learning_rates
    for step in (place.step - 1, place.step + 1):
        if 0 <= step < len(rates):
            yield np.asarray(rates[step])


CONVENTIONS = (
    Convention(
        "rate.previous_step",
        "Learning rate of a neighbouring step",
        "The update uses the learning rate of the step before (or after), so that every change comes one "
        "step late (or early).",
        "Schedulers stepped before the optimizer, or once per epoch; counters from 1 instead of 0.",
        "Look the rate up by the number of updates done so far: optimizer.step(), then scheduler.step().",
        {"update": _neighbour, "rate": _list},
        1,
    ),
    Convention(
        "rate.scaled",
        "Learning rate times a factor",
        "Every step is the right one times one factor.",
        "Rates scaled by the number of ranks or by the batch size (Horovod's recipe), lr_mult in Caffe, a "
        "decay option left on.",
        "Pass the job's rates unchanged; set lr_mult: 1 and decay=0.",
        {"update": _scaled},
        3,
    ),
)
