"""Tries conventions on one failed check: alone, then in pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from crosstrain.compare.causes import data, evaluation, losses
from crosstrain.compare.causes.convention import Convention, Place, stage_of
from crosstrain.compare.causes.operations import Operation, Settings
from crosstrain.compare.causes.table import of_stage
from crosstrain.compare.causes.update_place import UpdatePlace
from crosstrain.compare.certificate.comparison import ratios
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain_reference import BatchNorm

Ids = tuple[str, ...]
#: Errors that mean "this alternative does not apply here".
NOT_HERE = (ValueError, KeyError, IndexError, StopIteration, ZeroDivisionError)


class Match(NamedTuple):
    """One or two conventions that bring a check inside its bound; ``computed`` is the computation under them."""

    ids: Ids
    ratio: float
    computed: Any


def canonical(place: Place, stage: str) -> Any:
    """The computation that a stage's conventions vary."""
    if stage in ("input", "labels", "mask", "weights"):
        return data.reading_of(place)
    if stage == "layer":
        return Operation(place.layer)
    if stage == "loss":
        return losses.LossForm()
    return evaluation.Evaluation() if stage == "evaluation" else None


def evaluate(computed: Any, place: Place) -> Bounded:
    """The value that a computation gives for a place."""
    if isinstance(computed, data.Reading):
        return data.read(computed, place)
    if isinstance(computed, losses.LossForm):
        return losses.evaluate(computed, place)
    if isinstance(computed, evaluation.Evaluation):
        return evaluation.logits(computed, place)
    if isinstance(computed, Operation):
        return _of_layer(computed, place)
    return computed if isinstance(computed, Bounded) else Bounded(np.asarray(computed), 0.0)


def _of_layer(operation: Operation, place: Place) -> Bounded:
    settings = Settings(place.params, place.arithmetic, place.mask)
    if place.check.kind == "forward":
        return operation.forward(Bounded(place.x), settings)
    dx, gradients = operation.backward(Bounded(place.dy), place.x, settings)
    return dx if place.check.kind == "backward" else gradients[place.check.subject]


def ratio_of(computed: Any, place: Place) -> float:
    """The largest error over its bound; infinity where the computation does not apply or has another shape."""
    try:
        wanted = evaluate(computed, place)
    except NOT_HERE:
        return float("inf")
    found = place.found
    if found.shape != wanted.value.shape:
        return float("inf")
    return float(ratios(found, wanted).max()) if found.size else 0.0


def _varied(convention: Convention, stage: str, computed: Any, place: Any) -> Iterator[Any]:
    try:
        yield from convention.vary[stage](computed, place)
    except NOT_HERE:
        return


def narrowed(place: Place) -> Place:
    """The place with two samples of the batch, the worst one among them, where samples are computed one by one."""
    check = place.check
    if stage_of(check) != "layer" or check.kind == "gradient" or isinstance(place.layer, BatchNorm):
        return place
    batch = len(place.found)
    if batch <= 2 or len(place.x) != batch:
        return place
    worst = check.coordinates[0] if check.coordinates else 0
    rows = sorted({worst, (worst + 1) % batch})
    record = {
        name: value[rows] if name.split("/")[0] in ("input", "labels", "output", "output_grad", "mask") else value
        for name, value in place.record.items()
    }
    return Place(place.problem, place.network, {place.step: record}, check)


def search(place: Place, only: Collection[str] | None = None) -> list[Match]:
    """Conventions that explain a check: all single ones that do, or else all pairs that do.

    ``only`` limits the search to some single conventions.
    """
    stage = stage_of(place.check)
    conventions = [item for item in of_stage(stage) if only is None or item.id in only]
    small = narrowed(place)
    start = canonical(place, stage)
    found = []
    for convention in conventions:
        match = _best(place, small, stage, convention, [start])
        if match:
            found.append(Match((convention.id,), *match))
    if found or only is not None or stage not in ("layer", "input", "weights", "loss"):
        return found
    for first in conventions:
        starts = list(_varied(first, stage, start, small))
        for second in conventions:
            if second.id != first.id:
                match = _best(place, small, stage, second, starts)
                ids = tuple(sorted((first.id, second.id)))
                if match and ids not in [item.ids for item in found]:
                    found.append(Match(ids, *match))
    return found


def _best(
    place: Place, small: Place, stage: str, convention: Convention, starts: list[Any]
) -> tuple[float, Any] | None:
    """The alternative of smallest ratio, if it is inside the bound; tried on the small place first."""
    best: tuple[float, Any] | None = None
    for start in starts:
        for computed in _varied(convention, stage, start, small):
            if small is not place and ratio_of(computed, small) > 1:
                continue
            again = _again(convention, stage, start, place, computed) if small is not place else [computed]
            for item in again:
                ratio = ratio_of(item, place)
                if ratio <= 1 and (best is None or ratio < best[0]):
                    best = (ratio, item)
    return best


def _again(convention: Convention, stage: str, start: Any, place: Place, computed: Any) -> Iterator[Any]:
    """The alternative on the whole place: the same one, or a new one where it holds something of the samples."""
    if convention.family == "dropout":
        yield from _varied(convention, stage, start, place)
    else:
        yield computed


def search_update(place: UpdatePlace, only: Collection[Ids] | None = None) -> list[Match]:
    """Conventions that explain all of one step's update and state.

    An alternative must also keep what holds: it is the rule of the whole step. Everything is tried on a sample first.
    """
    found = _update(place, place.sampled(), only)
    if not found:
        loose = place.with_errors(place.local)
        found = _update(loose, loose.sampled(), only)
    return found


def _update(place: UpdatePlace, small: UpdatePlace, only: Collection[Ids] | None) -> list[Match]:
    conventions = of_stage("update")
    start = place.canonical()
    found = []
    singles = {item.id: list(_varied(item, "update", start, small)) for item in conventions}
    for convention in conventions:
        if only is None or (convention.id,) in only:
            match = _best_form(place, small, singles[convention.id], convention.id == "optimizer.other_rule")
            if match:
                found.append(Match((convention.id,), *match))
    if found:
        return found
    for index, first in enumerate(conventions):
        for second in conventions[index + 1 :]:
            ids = tuple(sorted((first.id, second.id)))
            if "optimizer.other_rule" in ids or first.family == second.family == "gradient":
                continue
            if only is not None and ids not in only:
                continue
            # Factors that are read off the data come last.
            one, two = (first, second) if first.id != "rate.scaled" else (second, first)
            forms = [form for middle in singles[one.id] for form in _varied(two, "update", middle, small)]
            match = _best_form(place, small, forms, False)
            if match:
                found.append(Match(ids, *match))
    return found


def _best_form(
    place: UpdatePlace, small: UpdatePlace, forms: list[Any], parameters_only: bool
) -> tuple[float, Any] | None:
    best: tuple[float, Any] | None = None
    for form in dict.fromkeys(forms):
        if small.ratio(form, parameters_only) > 1:
            continue
        ratio = place.ratio(form, parameters_only)
        if ratio <= 1 and (best is None or ratio < best[0]):
            best = (ratio, form)
    return best

