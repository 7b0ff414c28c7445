"""Local checks: each recorded piece of a training step against the reference on the engine's own inputs of it.

If every check of a step holds, then by induction the step is the intended function up to rounding, and the
first one that fails names layer and direction with nothing upstream to blame. No tolerance is chosen: the
bounds are derived in ``bounds`` and ``updates``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from crosstrain_reference import (
    BatchNorm,
    Network,
    cross_entropy,
    cross_entropy_gradient,
    softmax,
)
from crosstrain_service.model import Model
from crosstrain_service.training import Training

from . import bounds, updates
from .bounds import Arithmetic, Arrays, Bounded
from .platform_streams import Data, masks_of_step, rows_of_step


@dataclass(frozen=True)
class Check:
    """One comparison. ``ratio`` is the largest error over its bound: at most 1 holds, 0 is bitwise equal or exact."""

    kind: str
    subject: str
    step: int
    ratio: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the engine agrees within the bound."""
        return self.ratio <= 1.0

    def __str__(self) -> str:
        return f"step {self.step}, {self.kind} of {self.subject}: {self.ratio:.3g} of the bound{self.detail}"


@dataclass(frozen=True)
class Problem:
    """What was asked of the engine."""

    model: Model
    training: Training
    data: Data
    initial: Mapping[str, np.ndarray]
    dtype: Any
    test: Data | None = None


def compare(
    kind: str, subject: str, step: int, found: np.ndarray | None, wanted: Bounded, note: str = ""
) -> Check:
    """Compares element by element; a missing, misshapen or not finite value fails."""
    if found is None:
        return Check(kind, subject, step, np.inf, ": not recorded")
    value = np.asarray(wanted.value)
    if found.shape != value.shape:
        return Check(kind, subject, step, np.inf, f": shape {found.shape}, expected {value.shape}")
    error = np.abs(found.astype(value.dtype) - value)
    limit = np.broadcast_to(np.asarray(wanted.error, dtype=value.dtype), value.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / limit)
    ratio = np.where(np.isfinite(found) | (found == value), ratio, np.inf)
    if ratio.size == 0:
        return Check(kind, subject, step, 0.0)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    if worst <= 1.0:
        return Check(kind, subject, step, worst)
    count = int(np.count_nonzero(ratio > 1))
    place = ", ".join(str(int(index)) for index in at)
    detail = (
        f": {count} of {ratio.size} elements; at ({place}) found {found[at]!r}, expected {float(value[at])!r}"
        f" within {float(limit[at]):.3g}{note}"
    )
    return Check(kind, subject, step, worst, detail)


def identical(kind: str, subject: str, step: int, found: np.ndarray | None, wanted: np.ndarray) -> Check:
    """Compares bitwise (type, shape and every bit)."""
    if found is not None and found.dtype == wanted.dtype and found.shape == wanted.shape:
        if np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(wanted).tobytes():
            return Check(kind, subject, step, 0.0)
        return compare(kind, subject, step, found, Bounded(wanted, 0.0), " (must be bitwise equal)")
    shown = "nothing" if found is None else f"{found.dtype} {found.shape}"
    return Check(kind, subject, step, np.inf, f": found {shown}, expected {wanted.dtype} {wanted.shape}")


def check_records(problem: Problem, records: Mapping[int, Arrays]) -> Iterator[Check]:
    """Checks all recorded steps of a case, and the evaluation after the last one (step -1) if it is there."""
    network = bounds.network_of(problem.model)
    before: tuple[int, Arrays] | None = None
    for step in sorted(step for step in records if step >= 0):
        record = records[step]
        yield from check_step(problem, network, step, record)
        if step == 0:
            yield from _equal_group("initial weights", step, record, "parameter", {
                name: value.astype(problem.dtype) for name, value in problem.initial.items()})
        if before is not None and before[0] == step - 1:
            yield from _equal_group("continuity", step, record, "parameter", group(before[1], "parameter_after"))
            yield from _equal_group("continuity", step, record, "state", group(before[1], "state_after"))
        before = (step, record)
    if -1 in records and before is not None:
        yield from check_evaluation(problem, network, before[1], records[-1])


def group(record: Arrays, prefix: str) -> Arrays:
    """The tensors of a record below a prefix, by the rest of their names."""
    start = prefix + "/"
    return {name[len(start) :]: value for name, value in record.items() if name.startswith(start)}


def _equal_group(kind: str, step: int, record: Arrays, prefix: str, wanted: Arrays) -> Iterator[Check]:
    found = group(record, prefix)
    for name, value in wanted.items():
        yield identical(kind, name, step, found.get(name), value)


def check_step(problem: Problem, network: Network, step: int, record: Arrays) -> Iterator[Check]:
    """All local checks of one recorded step."""
    arithmetic = bounds.arithmetic_of(problem.dtype)
    yield from _check_batch(problem, step, record)
    params = {name: arithmetic.wide(value) for name, value in group(record, "parameter").items()}
    missing = sorted(set(problem.model.parameter_shapes()) ^ set(params))
    if missing:
        yield Check("parameters", ", ".join(missing), step, np.inf, ": missing or not of the model")
        return
    masks = group(record, "mask")
    outputs, gradients = group(record, "output"), group(record, "output_grad")
    parameter_gradients = group(record, "gradient")
    x = record["input"]
    traces = {}
    for layer in network.layers:
        mask = masks.get(layer.name)
        piece = bounds.forward(
            layer, Bounded(arithmetic.wide(x)), params, arithmetic,
            mask=None if mask is None else arithmetic.wide(mask))  # fmt: skip
        traces[layer.name] = piece.trace
        found = outputs.get(layer.name)
        yield compare("forward", layer.name, step, found, piece.output)
        if found is None or found.shape != piece.output.value.shape:
            return
        x = found
    yield from _check_loss(network, step, record, arithmetic)
    local: dict[str, Any] = {}
    for index in range(len(network.layers) - 1, -1, -1):
        layer = network.layers[index]
        dy = gradients.get(layer.name)
        if dy is None or dy.shape != outputs[layer.name].shape:
            continue
        dx, own = bounds.backward(
            layer, Bounded(arithmetic.wide(dy)), traces[layer.name], params, arithmetic)
        if index:
            below = network.layers[index - 1].name
            found = gradients.get(below)
            note = _tie_note(layer, traces[layer.name].x, found, dx)
            yield compare("backward", layer.name, step, found, dx, note)
        for name, wanted in own.items():
            local[name] = wanted.error
            yield compare("gradient", name, step, parameter_gradients.get(name), wanted)
    yield from check_update(problem, network, step, record, local, arithmetic)


def _check_batch(problem: Problem, step: int, record: Arrays) -> Iterator[Check]:
    rows = rows_of_step(len(problem.data.labels), problem.training, step)
    wanted = problem.data.inputs(rows).astype(problem.dtype)
    yield identical("input", "batch", step, record.get("input"), wanted)
    yield identical("input", "labels", step, record.get("labels"), problem.data.labels[rows])
    masks = masks_of_step(problem.model, len(rows), problem.training, step)
    for name, mask in masks.items():
        yield identical("input", f"mask of {name}", step, record.get(f"mask/{name}"), mask.astype(problem.dtype))
    rate = np.float64(problem.training.learning_rates[step])
    yield identical("input", "learning rate", step, record.get("learning_rate"), np.asarray(rate))


def _check_loss(network: Network, step: int, record: Arrays, arithmetic: Arithmetic) -> Iterator[Check]:
    last = network.layers[-1].name
    logits, labels = arithmetic.wide(record[f"output/{last}"]), record["labels"]
    loss = np.asarray(cross_entropy(logits, labels))
    largest = np.abs(logits).max()
    error = arithmetic.floor * (1 + abs(loss) + largest)
    yield compare("loss", "training step", step, record.get("loss"), Bounded(loss, error))
    yield compare("loss", "recording pass", step, record.get("probe_loss"), Bounded(loss, error))
    wanted = _loss_gradient(logits, labels, 0.0, arithmetic)
    yield compare("loss gradient", last, step, record.get(f"output_grad/{last}"), wanted)


def _loss_gradient(
    logits: np.ndarray, labels: np.ndarray, incoming: Any, arithmetic: Arithmetic
) -> Bounded:
    """(softmax - one hot) / N for logits with an error.

    softmax = exp(z - log sum exp): an absolute error of the exponent is a relative one of the result, and the
    exponent is rounded at the size of its operands. The label's element is a difference with 1.
    """
    share = softmax(logits)
    moved = np.zeros_like(logits) + incoming
    top = np.abs(logits).max(axis=1, keepdims=True)
    size = arithmetic.floor * (1 + top + np.sqrt(logits.shape[1]))
    size = share * (size + moved + (share * moved).sum(axis=1, keepdims=True))
    wanted = cross_entropy_gradient(logits, labels)
    return Bounded(wanted, size / len(labels) + arithmetic.floor * np.abs(wanted) + arithmetic.tiny)


def _tie_note(layer: Any, x: np.ndarray, found: np.ndarray | None, wanted: Bounded) -> str:
    if found is None or found.shape != wanted.value.shape:
        return ""
    wrong = np.abs(found - wanted.value) > wanted.error
    ties = int(np.count_nonzero(wrong & bounds.tied(layer, x)))
    return f"; {ties} of the {int(np.count_nonzero(wrong))} are at ties or exact zeros" if ties else ""


def check_update(
    problem: Problem, network: Network, step: int, record: Arrays, local: Mapping[str, Any], arithmetic: Arithmetic
) -> Iterator[Check]:
    """The update rule applied to the engine's own gradients, state and parameters.

    Frameworks compile the training step and the recording pass apart, so that the gradient which was used need
    not be bitwise the recorded one. An update outside the bound for the recorded gradient is judged again, first
    with twice the ``local`` bound of that gradient (kind "update, resummed": the same products added in another
    order), then with the distance of two correct passes ("update, own pass").
    """
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
        (", own pass", lambda: gradient_distance(network, record, arithmetic)),
    ]
    strict = {(check.kind, check.subject): check for check in open_checks}
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


def _update(
    problem: Problem, step: int, record: Arrays, arithmetic: Arithmetic, distance: Mapping[str, np.ndarray]
) -> Iterator[Check]:
    rate = float(problem.training.learning_rates[step])
    after, state_after = updates.expected(
        problem.training, group(record, "parameter"), group(record, "gradient"), group(record, "state"), rate, step,
        arithmetic, distance)  # fmt: skip
    found, found_state = group(record, "parameter_after"), group(record, "state_after")
    for name, wanted in after.items():
        yield compare("update", name, step, found.get(name), wanted)
    for name, wanted in state_after.items():
        yield compare("state", name, step, found_state.get(name), wanted)
    for name in sorted(set(found_state) - set(state_after)):
        yield Check("state", name, step, np.inf, ": is no state of this rule")


def gradient_distance(network: Network, record: Arrays, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
    """How far two correct computations of every parameter's gradient may be apart: twice the bound of the whole
    forward and backward pass from the recorded input and parameters."""
    params = {name: arithmetic.wide(value) for name, value in group(record, "parameter").items()}
    masks = {name: arithmetic.wide(value) for name, value in group(record, "mask").items()}
    x = Bounded(arithmetic.wide(record["input"]))
    inputs, traces = {}, {}
    for layer in network.layers:
        inputs[layer.name] = x.error
        x, traces[layer.name] = bounds.forward(layer, x, params, arithmetic, mask=masks.get(layer.name))
    dy = _loss_gradient(x.value, record["labels"], x.error, arithmetic)
    found = {}
    for layer in reversed(network.layers):
        name = layer.name
        dy, own = bounds.backward(layer, dy, traces[name], params, arithmetic, inputs[name])
        found.update({key: 2 * np.asarray(value.error) for key, value in own.items()})
    return found


def check_evaluation(problem: Problem, network: Network, last: Arrays, record: Arrays) -> Iterator[Check]:
    """Logits in evaluation mode, by bounds carried through the whole network, and batch norm statistics."""
    assert problem.test is not None
    arithmetic = bounds.arithmetic_of(problem.dtype)
    params = {name: arithmetic.wide(value) for name, value in group(last, "parameter_after").items()}
    found = group(record, "statistic")
    normalised = [layer.name for layer in network.layers if isinstance(layer, BatchNorm)]
    statistics = {}
    for name in normalised:
        pair = (found.get(f"{name}.running_mean"), found.get(f"{name}.running_var"))
        if pair[0] is None or pair[1] is None:
            yield Check("statistics", name, -1, np.inf, ": not recorded")
            return
        statistics[name] = (arithmetic.wide(pair[0]), arithmetic.wide(pair[1]))
    if normalised:
        for name, wanted in population_statistics(problem, network, params, arithmetic).items():
            yield compare("statistics", name, -1, found.get(name), wanted)
    x = Bounded(arithmetic.wide(problem.test.inputs(np.arange(len(problem.test.labels)))))
    for layer in network.layers:
        x = bounds.forward(
            layer, x, params, arithmetic, train=False, statistics=statistics.get(layer.name)).output
    yield compare("evaluation", "logits", -1, record.get("logits"), x)


def population_statistics(
    problem: Problem, network: Network, params: Arrays, arithmetic: Arithmetic
) -> dict[str, Bounded]:
    """Mean and variance over the training set, each batch (in file order) normalised by its own statistics."""
    totals: dict[str, Any] = {}
    samples, size = len(problem.data.labels), problem.training.batch_size
    for start in range(0, samples, size):
        rows = np.arange(start, min(start + size, samples))
        x = Bounded(arithmetic.wide(problem.data.inputs(rows)))
        for layer in network.layers:
            if isinstance(layer, BatchNorm):
                part = _moments(x, arithmetic)
                totals[layer.name] = totals.get(layer.name, 0.0) + len(rows) * part
            mask = None
            train = isinstance(layer, BatchNorm)
            x = bounds.forward(layer, x, params, arithmetic, train=train, mask=mask).output
    result = {}
    for name, total in totals.items():
        mean, mean_error, square, square_error = total / samples
        variance = square - mean**2
        result[f"{name}.running_mean"] = Bounded(mean, mean_error + arithmetic.floor * np.abs(mean))
        error = square_error + 2 * np.abs(mean) * mean_error + arithmetic.floor * variance
        result[f"{name}.running_var"] = Bounded(variance, error)
    return result


def _moments(x: Bounded, arithmetic: Arithmetic) -> np.ndarray:
    """Rows: mean, its error, mean square, its error, each (C,).

    The mean square is made of the engine's variance and mean: the error of the former is that of a sum of
    squares of centred values.
    """
    axes = (0, *range(2, x.value.ndim))
    rounding = arithmetic.sum_of(x.value.size // x.value.shape[1])
    mean = x.value.mean(axis=axes)
    square = np.square(x.value).mean(axis=axes)
    incoming = np.zeros_like(x.value) + x.error
    mean_error = rounding * np.abs(x.value).mean(axis=axes) + incoming.mean(axis=axes)
    square_error = rounding * square + 2 * (np.abs(x.value) * incoming).mean(axis=axes) + 2 * np.abs(mean) * mean_error
    return np.stack([mean, mean_error, square, square_error])
