"""Local checks: each recorded piece of a training step against the reference on the engine's own inputs of
it.

If every check of a step holds, then by induction the step is the intended function up to rounding, and the
first one that fails names layer and direction with nothing upstream to blame. No tolerance is chosen: the
bounds are derived in ``bounds`` and ``updates``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Check, Problem, compare, group, identical, ratios
from crosstrain.compare.certificate.evaluation_checks import check_evaluation
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.certificate.sizes import SIZE, size
from crosstrain.compare.certificate.update_checks import check_update
from crosstrain.compare.numerics import bounds, products
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain.compare.numerics.losses import loss_gradient
from crosstrain_reference import Convolution, Layer, Network, Relu, cross_entropy


def check_records(problem: Problem, records: Mapping[int, Arrays]) -> Iterator[Check]:
    """Checks all recorded steps of a case, and the evaluation after the last one (step -1) if it is there.

    Within a step in the order of computation: input, what the step starts from, forward from the first layer,
    loss, loss gradient, backward and gradients from the last layer, update, state.
    """
    network = bounds.network_of(problem.model)
    before: tuple[int, Arrays] | None = None
    for step in sorted(step for step in records if step >= 0):
        record = records[step]
        yield from _check_batch(problem, step, record)
        if step == 0:
            initial = {name: value.astype(problem.dtype) for name, value in problem.initial.items()}
            yield from _equal_group("initial weights", step, record, "parameter", initial)
            yield from _equal_group("initial state", step, record, "state", initial_state(problem))
        if before is not None and before[0] == step - 1:
            yield from _equal_group("continuity", step, record, "parameter", group(before[1], "parameter_after"))
            yield from _equal_group("continuity", step, record, "state", group(before[1], "state_after"))
        labels = record.get("labels")
        if labels is not None and labels.size and not 0 <= labels.min() <= labels.max() < problem.model.classes:
            # Classes that do not exist have no loss: what follows is judged by the job's labels.
            rows = rows_of_step(len(problem.data.labels), problem.training, step)
            yield from check_step(problem, network, step, {**record, "labels": problem.data.labels[rows]}, loss=False)
        else:
            yield from check_step(problem, network, step, record)
        before = (step, record)
    if -1 in records and before is not None:
        yield from check_evaluation(problem, network, before[1], records[-1])


def initial_state(problem: Problem) -> Arrays:
    """The optimizer's state before the first step, by canonical name, in the run's type."""
    rule = problem.training.rule
    parts = {
        "sgd": ("velocity",) if rule.momentum else (),
        "rmsprop": ("mean_square",),
        "adagrad": ("accumulator",),
        "adam": ("m", "v"),
        "adadelta": ("mean_square", "mean_update"),
    }[rule.name]
    start = float(rule.initial_accumulator or 0.0) if rule.name == "adagrad" else 0.0
    shapes = problem.model.parameter_shapes()
    return {f"{name}.{part}": np.full(shape, start, problem.dtype) for name, shape in shapes.items() for part in parts}


def _equal_group(kind: str, step: int, record: Arrays, prefix: str, wanted: Arrays) -> Iterator[Check]:
    found = group(record, prefix)
    for name, value in wanted.items():
        yield identical(kind, name, step, found.get(name), value)


def check_step(
    problem: Problem, network: Network, step: int, record: Arrays, loss: bool = True
) -> Iterator[Check]:
    """The local checks of what one recorded step computes, with or without those of ``loss`` and its gradient."""
    arithmetic, backward = problem.arithmetic, problem.backward_arithmetic
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
        yield with_fast(layer, compare("forward", layer.name, step, found, piece.output, layer=layer.name), found,
                        piece.output)
        if found is None or found.shape != piece.output.value.shape:
            return
        x = found
    if loss:
        yield from _check_loss(network, step, record, arithmetic, backward)
    local: dict[str, Any] = {}
    for index in range(len(network.layers) - 1, -1, -1):
        layer = network.layers[index]
        dy = gradients.get(layer.name)
        if dy is None or dy.shape != outputs[layer.name].shape:
            continue
        dx, own = bounds.backward(layer, Bounded(arithmetic.wide(dy)), traces[layer.name], params, backward)
        if index:
            below = network.layers[index - 1].name
            found = gradients.get(below)
            yield with_fast(layer, _backward(layer, step, traces[layer.name].x, found, dx), found, dx)
        for name, wanted in own.items():
            local[name] = wanted.error
            found = parameter_gradients.get(name)
            yield with_fast(layer, compare("gradient", name, step, found, wanted, layer=layer.name), found, wanted)
            if problem.half and found is not None:
                whole = size(SIZE, name, step, found, wanted, problem.half_unit, layer=layer.name)
                if whole is not None:
                    yield whole
    yield from check_update(problem, network, step, record, local)


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


def _check_loss(
    network: Network, step: int, record: Arrays, arithmetic: Arithmetic, backward: Arithmetic
) -> Iterator[Check]:
    last = network.layers[-1].name
    logits, labels = arithmetic.wide(record[f"output/{last}"]), record["labels"]
    loss = np.asarray(cross_entropy(logits, labels))
    largest = np.abs(logits).max()
    error = arithmetic.floor * (1 + abs(loss) + largest)
    yield compare("loss", "training step", step, record.get("loss"), Bounded(loss, error))
    yield compare("loss", "recording pass", step, record.get("probe_loss"), Bounded(loss, error))
    wanted = loss_gradient(logits, labels, 0.0, backward)
    yield compare("loss gradient", last, step, record.get(f"output_grad/{last}"), wanted)


def _backward(layer: Layer, step: int, x: np.ndarray, found: np.ndarray | None, wanted: Bounded) -> Check:
    """The gradient that a layer hands down, with the number of wrong elements at ties or zeros of its input."""
    check = compare("backward", layer.name, step, found, wanted, layer=layer.name)
    if check.holds or found is None or found.shape != wanted.value.shape:
        return check
    number = int(np.count_nonzero((ratios(found, wanted) > 1) & bounds.tied(layer, x)))
    if not number:
        return check
    detail = f"{check.detail}; {number} of the {check.count} are at ties or exact zeros"
    zeros = number if isinstance(layer, Relu) else 0
    return dataclasses.replace(check, detail=detail, zeros=zeros, ties=number - zeros)


def with_fast(layer: Layer, check: Check, found: np.ndarray | None, wanted: Bounded) -> Check:
    """Judges a failed convolution again by the bound of fast algorithms, which is rounding with a note."""
    if check.holds or not isinstance(layer, Convolution) or found is None or found.shape != wanted.value.shape:
        return check
    if found.ndim < 3 or math.prod(layer.kernel) == 1:
        return check
    again = compare(
        check.kind, check.subject, check.step, found, Bounded(wanted.value, products.spread_of(wanted.error)),
        layer=check.layer)  # fmt: skip
    note = f"fast algorithm: {check.count} elements are outside the bound of plain sums ({check.ratio:.3g} of it)"
    return dataclasses.replace(again, note=note) if again.holds else check
