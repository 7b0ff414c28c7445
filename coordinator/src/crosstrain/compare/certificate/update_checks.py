"""Local checks of the update rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Check, Problem, compare, group, identical
from crosstrain.compare.certificate.sizes import size
from crosstrain.compare.numerics import bounds, updates
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain.compare.numerics.losses import loss_gradient
from crosstrain_reference import Network

#: How far, relative to its norm, a gradient may be from the recorded one and the update still count as checked.
LARGEST_DISTANCE = 0.01
#: Elements that a factor of a step is told from.
_FEWEST = 16


def check_update(
    problem: Problem,
    network: Network,
    step: int,
    record: Arrays,
    local: Mapping[str, Any],
) -> Iterator[Check]:
    """The update rule applied to the engine's own gradients, state and parameters, which are of the run's type also in
    mixed precision.

    Frameworks compile the training step and the recording pass apart, so that the gradient which was used
    need not be bitwise the recorded one. An update outside the bound for the recorded gradient is judged
    again, first with twice the ``local`` bound of that gradient (kind "update, resummed": the same products
    added in another order), then with the distance of two correct passes ("update, own pass"), for gradients of
    which that distance leaves something to judge by (:data:`LARGEST_DISTANCE`).

    In mixed precision such bounds are wide. An update that is the one of the recorded gradient times a single factor,
    in every element and to float32, has used that gradient and no other: nothing excuses the factor. An update by SGD
    that needs the wider bounds must have the right size as a whole (kind "update, size"). Other rules divide by the
    size of the gradient: its errors have no mean of zero there.

    An update that the engine says it left out, because a gradient overflowed float16, must have changed nothing.
    """
    if "skipped" in record and problem.half == "float16":
        yield from _unchanged(step, record)
        return
    arithmetic = bounds.arithmetic_of(problem.dtype)
    params, gradients = group(record, "parameter"), group(record, "gradient")
    if set(params) != set(gradients):
        yield Check("update", ", ".join(sorted(set(params) ^ set(gradients))), step, np.inf, ": no gradient recorded")
        return
    try:
        open_checks = list(_update(problem, step, record, arithmetic, {}))
    except KeyError as error:
        yield Check("state", str(error), step, np.inf, ": not recorded")
        return
    tiers: list[tuple[str, Callable[[], Mapping[str, Any]]]] = [
        (", resummed", lambda: {name: 2 * value for name, value in local.items()}),
        (", own pass", lambda: _telling(gradient_distance(network, record, problem.arithmetic), gradients)),
    ]
    strict = {(check.kind, check.subject): check for check in open_checks}
    if problem.half and any(not check.holds for check in open_checks):
        factor = _factor(problem, step, record, arithmetic)
        if factor is not None:
            note = f"{factor:.7g} times the step of the recorded gradient, to float32"
            yield from (check if check.holds else dataclasses.replace(check, note=note) for check in open_checks)
            return
    if problem.half and problem.training.rule.name == "sgd":
        loose = {check.subject for check in open_checks if check.kind == "update" and not check.holds}
        yield from _sizes(problem, step, record, arithmetic, tiers[0][1](), loose)
    for suffix, distance in tiers:
        yield from (check for check in open_checks if check.holds)
        subjects = {(check.kind.split(",")[0], check.subject) for check in open_checks if not check.holds}
        if not subjects:
            return
        again = _update(problem, step, record, arithmetic, distance())
        open_checks = [
            dataclasses.replace(check, kind=check.kind + suffix)
            for check in again
            if (check.kind, check.subject) in subjects
        ]
    for check in open_checks:
        yield check if check.holds else strict[check.kind.split(",")[0], check.subject]


def _unchanged(step: int, record: Arrays) -> Iterator[Check]:
    note = "left out: a gradient overflowed float16"
    for kind, before in (("update", "parameter"), ("state", "state")):
        after = group(record, f"{before}_after")
        for name, value in group(record, before).items():
            yield dataclasses.replace(identical(f"{kind}, left out", name, step, after.get(name), value), note=note)


def _update(
    problem: Problem, step: int, record: Arrays, arithmetic: Arithmetic, distance: Mapping[str, np.ndarray]
) -> Iterator[Check]:
    rate = float(problem.training.learning_rates[step])
    after, state_after = updates.expected(
        problem.training, group(record, "parameter"), group(record, "gradient"), group(record, "state"),
        rate, step, arithmetic, distance)  # fmt: skip
    found, found_state = group(record, "parameter_after"), group(record, "state_after")
    for name, wanted in after.items():
        yield compare("update", name, step, found.get(name), wanted)
    for name, wanted in state_after.items():
        yield compare("state", name, step, found_state.get(name), wanted)
    for name in sorted(set(found_state) - set(state_after)):
        yield Check("state", name, step, np.inf, ": is no state of this rule")


def _factor(problem: Problem, step: int, record: Arrays, arithmetic: Arithmetic) -> float | None:
    """The one factor, if there is one, by which the whole step differs from that of the recorded gradient."""
    params, rate = group(record, "parameter"), float(problem.training.learning_rates[step])
    start = (params, group(record, "gradient"), group(record, "state"))
    full, _ = updates.expected(problem.training, *start, rate, step, arithmetic)
    rest, _ = updates.expected(problem.training, *start, 0.0, step, arithmetic)
    found = group(record, "parameter_after")
    if any(found[name].shape != full[name].value.shape for name in full):
        return None
    along = np.concatenate([np.ravel(full[name].value - rest[name].value) for name in full])
    moved = np.concatenate([np.ravel(arithmetic.wide(found[name]) - rest[name].value) for name in full])
    square = float(np.sum(along**2))
    # Of one or two numbers, any are in proportion.
    if np.count_nonzero(along) < _FEWEST or not np.isfinite(moved).all() or not 0 < square < np.inf:
        return None
    factor = float(np.sum(moved * along)) / square
    scaled = dataclasses.replace(problem.training, learning_rates=factor * np.asarray(problem.training.learning_rates))
    again = dataclasses.replace(problem, training=scaled)
    return factor if all(check.holds for check in _update(again, step, record, arithmetic, {})) else None


def _sizes(
    problem: Problem, step: int, record: Arrays, arithmetic: Arithmetic, distance: Mapping[str, np.ndarray],
    names: Collection[str],
) -> Iterator[Check]:  # fmt: skip
    if not names:
        return
    params = group(record, "parameter")
    after, _ = updates.expected(
        problem.training, params, group(record, "gradient"), group(record, "state"),
        float(problem.training.learning_rates[step]), step, arithmetic, distance)  # fmt: skip
    found = group(record, "parameter_after")
    for name in after:
        if name in names:
            start = arithmetic.wide(params[name])
            whole = size("update, size", name, step, found[name], after[name], problem.half_unit, start)
            if whole is not None:
                yield whole


def _telling(distance: Mapping[str, np.ndarray], gradients: Arrays) -> dict[str, np.ndarray]:
    """Distances that are small beside their gradients. In deep networks worst cases add up until they would excuse
    any update.
    """
    return {
        name: value
        for name, value in distance.items()
        if np.linalg.norm(value) <= LARGEST_DISTANCE * np.linalg.norm(gradients[name].astype(value.dtype))
    }


def gradient_distance(network: Network, record: Arrays, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
    """How far two correct computations of every parameter's gradient may be apart: twice the bound of the
    whole forward and backward pass from the recorded input and parameters.
    """
    params = {name: arithmetic.wide(value) for name, value in group(record, "parameter").items()}
    masks = {name: arithmetic.wide(value) for name, value in group(record, "mask").items()}
    x = Bounded(arithmetic.wide(record["input"]))
    inputs, traces = {}, {}
    for layer in network.layers:
        inputs[layer.name] = x.error
        x, traces[layer.name] = bounds.forward(layer, x, params, arithmetic, mask=masks.get(layer.name))
    dy = loss_gradient(x.value, record["labels"], x.error, arithmetic)
    found = {}
    for layer in reversed(network.layers):
        name = layer.name
        dy, own = bounds.backward(layer, dy, traces[name], params, arithmetic, inputs[name])
        found.update({key: 2 * np.asarray(value.error) for key, value in own.items()})
    return found
