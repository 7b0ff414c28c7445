"""Conventions of how gradients of several ranks, or batches, come together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.losses import LossForm, multiples, whole_ratio
from crosstrain.compare.causes.operations import Operation, Scaled, Settings
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain.compare.numerics.forms import Form

_NUMBERS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def _layers(inverse: bool) -> Any:
    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if place.check.kind == "gradient":
            settings = Settings(place.params, place.arithmetic, place.mask)
            _, gradients = operation.backward(Bounded(place.dy), place.x, settings)
            wanted = gradients[place.check.subject].value
            factor = whole_ratio(place.arithmetic.wide(place.found), wanted, inverse)
            if factor:
                yield Scaled(operation, factor)

    return vary


def _loss(inverse: bool) -> Any:
    def vary(form: LossForm, place: Place) -> Iterator[LossForm]:
        yield from multiples(form, place, 2, inverse)

    return vary


def _update(inverse: bool) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        for number in dict.fromkeys((*_NUMBERS, place.batch)):
            if number > 1:
                factor = 1 / number if inverse else float(number)
                yield replace(form, gradient_factor=form.gradient_factor * factor)

    return vary


CONVENTIONS = (
    Convention(
        "gradient.summed_over_ranks",
        "Gradients summed over ranks",
        "Gradients are a whole number of times too large: those of several ranks (or repeated passes) are "
        "added, not averaged.",
        "torch.nn.DataParallel with a summed loss, all_reduce without division, Horovod with op=Sum, "
        "gradient accumulation.",
        "Divide by the number of ranks or passes: DistributedDataParallel, op=hvd.Average, loss / "
        "accumulation steps.",
        {"layer": _layers(False), "loss": _loss(False), "update": _update(False)},
        4,
    ),
    Convention(
        "gradient.divided_twice",
        "Gradients divided once too often",
        "Gradients are a whole number of times too small: an average is divided by the number of ranks or "
        "samples again.",
        "Averaging by hand after DistributedDataParallel, per-replica means in TensorFlow's strategies, "
        "Caffe's iter_size.",
        "Divide once: a mean loss on every rank, then one average over ranks.",
        {"layer": _layers(True), "loss": _loss(True), "update": _update(True)},
        4,
    ),
)
