"""Tries conventions on one failed check: alone, then in pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from crosstrain.compare.causes import data, evaluation, losses
from crosstrain.compare.causes.convention import Convention, Place, stage_of
from crosstrain.compare.causes.defaults import changed, frameworks_of
from crosstrain.compare.causes.operations import Operation, Settings
from crosstrain.compare.causes.table import BY_ID, of_stage
from crosstrain.compare.causes.update_place import UpdatePlace, tells
from crosstrain.compare.certificate.comparison import ratios
from crosstrain.compare.certificate.sizes import SIZE, size
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain.compare.numerics.forms import Form
from crosstrain_reference import BatchNorm

Ids = tuple[str, ...]
#: Errors that mean "this alternative does not apply here".
_PAIRED = ("layer", "input", "weights", "loss")
# Products of one evaluation up to which pairs are tried.
_LARGEST = 20_000_000
# A framework's own form of an update is often one of the first with the second, and anything else comes on top.
_EPSILON_PLACES = ("rmsprop.epsilon_inside", "adagrad.epsilon_inside", "adam.epsilon_hat")
_SHORT = "optimizer.constants_in_float32"
NOT_HERE = (ValueError, KeyError, IndexError, StopIteration, ZeroDivisionError)


class Match(NamedTuple):
    """One to three conventions that bring a check inside its bound; ``computed`` is the computation under them."""

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
    worst = float(ratios(found, wanted).max()) if found.size else 0.0
    if place.check.kind == SIZE:
        whole = size(SIZE, place.check.subject, place.check.step, found, wanted, place.problem.half_unit)
        worst = max(worst, whole.ratio) if whole is not None else worst
    return worst


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


def search(place: Place, only: Collection[str] | None = None, pairs: bool = True) -> list[Match]:
    """Conventions that explain a check: all single ones that do, or else, with ``pairs``, all pairs that do.

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
    if found or only is not None or not pairs or stage not in _PAIRED or _work(small) > _LARGEST:
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


def search_pairs(place: Place, only: Collection[Ids]) -> list[Match]:
    """Those of some pairs that explain a check."""
    stage = stage_of(place.check)
    small, start = narrowed(place), canonical(place, stage)
    found: list[Match] = []
    for ids in only:
        for one, two in (ids, ids[::-1]):
            first, second = BY_ID[one], BY_ID[two]
            if stage in first.vary and stage in second.vary and ids not in [item.ids for item in found]:
                match = _best(place, small, stage, second, list(_varied(first, stage, start, small)))
                if match:
                    found.append(Match(ids, *match))
    return found


def _work(place: Place) -> int:
    """Products of one evaluation of a layer; thousands of them are formed for pairs."""
    if stage_of(place.check) != "layer":
        return 0
    weight = place.params.get(place.layer.name + ".weight")
    outputs = place.dy.size if place.check.kind != "forward" else place.found.size
    return outputs * (1 if weight is None else weight.size // len(weight))


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
    if convention.family in ("dropout", "parallel"):
        yield from _varied(convention, stage, start, place)
    else:
        yield computed


def search_update(place: UpdatePlace, only: Collection[Ids] | None = None, most: int = 2) -> list[Match]:
    """Conventions that explain all of one step's update and state: single ones, or else up to ``most`` together.

    An alternative must also keep what holds: it is the rule of the whole step. As in the checks, the gradient that was
    used may be the recorded one, or differ by another order of summation, or come from a pass of its own. Everything
    is tried on a sample first.
    """
    for tried in (_singles, _pairs, _triples)[:most]:
        for whole in _tiers(place):
            found = tried(whole, whole.sampled(), only)
            if found:
                return found
    return []


def holds(place: UpdatePlace, form: Form) -> bool:
    """Whether a form explains one step's update and state, with the gradients that :func:`search_update` allows."""
    return any(whole.ratio(form) <= 1 for whole in _tiers(place))


def _tiers(place: UpdatePlace) -> Iterator[UpdatePlace]:
    yield place
    yield place.with_errors(place.local)
    if tells(place.start.gradients, place.own_pass):
        yield place.with_errors(place.own_pass)


def _singles(place: UpdatePlace, small: UpdatePlace, only: Collection[Ids] | None) -> list[Match]:
    start = place.canonical()
    found = []
    for convention in of_stage("update"):
        if only is None or (convention.id,) in only:
            forms = list(_varied(convention, "update", start, small))
            match = _best_form(place, small, forms, convention.id == "optimizer.other_rule")
            if match:
                found.append(Match((convention.id,), *match))
    return found


def _pairs(place: UpdatePlace, small: UpdatePlace, only: Collection[Ids] | None) -> list[Match]:
    # Which rank did not do its part are many alternatives; with a second departure they stay unknown.
    alone = ("optimizer.other_rule", "parallel.skipped_rank")
    conventions = [item for item in of_stage("update") if item.id not in alone]
    start = place.canonical()
    singles = {item.id: list(_varied(item, "update", start, small)) for item in conventions}
    found = []
    for index, first in enumerate(conventions):
        for second in conventions[index + 1 :]:
            ids = tuple(sorted((first.id, second.id)))
            if first.family == second.family == "gradient" or (only is not None and ids not in only):
                continue
            # Factors that are read off the data come last.
            one, two = (first, second) if first.id != "rate.scaled" else (second, first)
            forms = [form for middle in singles[one.id] for form in _varied(two, "update", middle, small)]
            match = _best_form(place, small, forms, False)
            if match:
                found.append(Match(ids, *match))
    return found


def _triples(place: UpdatePlace, small: UpdatePlace, only: Collection[Ids] | None) -> list[Match]:
    """Another place of epsilon with float32 constants, and one more convention."""
    start, short = place.canonical(), BY_ID[_SHORT]
    found = []
    for epsilon in (BY_ID[item] for item in _EPSILON_PLACES):
        bases = [form for middle in _varied(epsilon, "update", start, small)
                 for form in _varied(short, "update", middle, small)]  # fmt: skip
        for third in of_stage("update") if bases else ():
            ids = tuple(sorted((epsilon.id, _SHORT, third.id)))
            if third.id in (epsilon.id, _SHORT, "optimizer.other_rule") or (only is not None and ids not in only):
                continue
            forms = [form for base in bases for form in _varied(third, "update", base, small)]
            match = _best_form(place, small, forms, False)
            if match:
                found.append(Match(ids, *match))
    return found


def _best_form(
    place: UpdatePlace, small: UpdatePlace, forms: list[Any], parameters_only: bool
) -> tuple[float, Any] | None:
    """The form inside the bound with the fewest other constants, rather those of one framework; then the nearest."""
    asked = place.problem.training.rule
    best: tuple[int, bool, float] | None = None
    chosen: Any = None
    for form in dict.fromkeys(forms):
        if small.ratio(form, parameters_only) > 1:
            continue
        ratio = place.ratio(form, parameters_only)
        constants = changed(form.rule, asked)
        rank = (len(constants), not frameworks_of(asked.name, constants | place.own_start), ratio)
        if ratio <= 1 and (best is None or rank < best):
            best, chosen = rank, form
    return None if best is None else (best[2], chosen)

