"""Local checks: each recorded piece of a training step against the reference on the engine's own inputs of
it.

If every check of a step holds, then by induction the step is the intended function up to rounding, and the
first one that fails names layer and direction with nothing upstream to blame. No tolerance is chosen: the
bounds are derived in ``bounds`` and ``updates``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Check, Problem, compare, group, identical
from crosstrain.compare.certificate.evaluation_checks import check_evaluation
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.certificate.update_checks import check_update
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain.compare.numerics.losses import loss_gradient
from crosstrain_reference import (
    Network,
    cross_entropy,
)


def check_records(problem: Problem, records: Mapping[int, Arrays]) -> Iterator[Check]:
    """Checks all recorded steps of a case, and the evaluation after the last one (step -1) if it is there."""
    network = bounds.network_of(problem.model)
    before: tuple[int, Arrays] | None = None
    for step in sorted(step for step in records if step >= 0):
        record = records[step]
        yield from check_step(problem, network, step, record)
        if step == 0:
            yield from _equal_group(
                "initial weights",
                step,
                record,
                "parameter",
                {name: value.astype(problem.dtype) for name, value in problem.initial.items()},
            )
        if before is not None and before[0] == step - 1:
            yield from _equal_group("continuity", step, record, "parameter", group(before[1], "parameter_after"))
            yield from _equal_group("continuity", step, record, "state", group(before[1], "state_after"))
        before = (step, record)
    if -1 in records and before is not None:
        yield from check_evaluation(problem, network, before[1], records[-1])


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
        dx, own = bounds.backward(layer, Bounded(arithmetic.wide(dy)), traces[layer.name], params, arithmetic)
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
    wanted = loss_gradient(logits, labels, 0.0, arithmetic)
    yield compare("loss gradient", last, step, record.get(f"output_grad/{last}"), wanted)


def _tie_note(layer: Any, x: np.ndarray, found: np.ndarray | None, wanted: Bounded) -> str:
    if found is None or found.shape != wanted.value.shape:
        return ""
    wrong = np.abs(found - wanted.value) > wanted.error
    ties = int(np.count_nonzero(wrong & bounds.tied(layer, x)))
    return f"; {ties} of the {int(np.count_nonzero(wrong))} are at ties or exact zeros" if ties else ""
