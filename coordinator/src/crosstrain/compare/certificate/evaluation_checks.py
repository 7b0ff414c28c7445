"""Checks of evaluation mode: logits, and batch norm statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Check, Problem, compare, group
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain_reference import BatchNorm, Network

# Rows at once: their activations stay in the processor's cache.
_ROWS = 16


def check_evaluation(problem: Problem, network: Network, last: Arrays, record: Arrays) -> Iterator[Check]:
    """Logits in evaluation mode, by bounds carried through the whole network, and batch norm statistics."""
    assert problem.test is not None
    arithmetic = problem.arithmetic
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
    parts = []
    for start in range(0, len(problem.test.labels), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(problem.test.labels)))
        x = Bounded(arithmetic.wide(problem.test.inputs(rows)))
        for layer in network.layers:
            x = bounds.forward(layer, x, params, arithmetic, train=False, statistics=statistics.get(layer.name)).output
        parts.append(Bounded(x.value, np.zeros_like(x.value) + x.error))
    wanted = Bounded(np.concatenate([x.value for x in parts]), np.concatenate([x.error for x in parts]))
    yield compare("evaluation", "logits", -1, record.get("logits"), wanted)


def population_statistics(
    problem: Problem, network: Network, params: Arrays, arithmetic: Arithmetic
) -> dict[str, Bounded]:
    """Mean and variance over the training set, each batch (in file order) normalised by its own
    statistics.
    """
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
