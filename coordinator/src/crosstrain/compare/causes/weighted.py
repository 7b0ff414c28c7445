"""Gradients of one step in which the losses of the samples do not all count the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import group
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain.compare.numerics.forms import Gradients
from crosstrain_reference import BatchNorm, Network, Trace


class WeightedSamples:
    """Gradients from the engine's own outputs and their gradients, which are linear in what a sample's loss counts.

    The error admitted is that of the same products added in another order. Batch normalisation ties the samples
    of a batch together, so that weights do not pass through it: such networks raise ``ValueError``.
    """

    def __init__(self, network: Network, record: Arrays, arithmetic: Arithmetic) -> None:
        self._network = network
        self._record = record
        self._arithmetic = arithmetic
        self._picks: Mapping[str, np.ndarray] = {}
        self._each: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None

    def __call__(self, weights: tuple[float, ...], picks: Mapping[str, np.ndarray]) -> Gradients:
        """Gradients by parameter with bounds; with ``picks`` only these flat indices of each."""
        if any(isinstance(layer, BatchNorm) for layer in self._network.layers):
            raise ValueError("batch normalisation")
        factors = np.asarray(weights, dtype=np.float64)
        if len(factors) != len(self._record["labels"]):
            raise ValueError("another number of samples")
        if not picks:
            return self._gradients(slice(None), factors, {})
        if self._each is None or self._picks is not picks:
            self._each, self._picks = self._of_samples(picks), picks
        values, errors = self._each
        rounding = 2 * self._arithmetic.sum_of(len(factors))
        return (
            {name: np.tensordot(factors, value, 1) for name, value in values.items()},
            {name: np.tensordot(np.abs(factors), error + rounding * np.abs(values[name]), 1)
             for name, error in errors.items()},
        )  # fmt: skip

    def _of_samples(self, picks: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Values and errors of every sample's addend at the picked elements, (samples, elements) by parameter."""
        samples = len(self._record["labels"])
        found = [self._gradients(slice(row, row + 1), np.ones(1), picks) for row in range(samples)]
        return (
            {name: np.stack([values[name] for values, _ in found]) for name in found[0][0]},
            {name: np.stack([errors[name] for _, errors in found]) for name in found[0][1]},
        )

    def _gradients(self, rows: slice, factors: np.ndarray, picks: Mapping[str, np.ndarray]) -> Gradients:
        arithmetic = self._arithmetic
        params = {name: arithmetic.wide(value) for name, value in group(self._record, "parameter").items()}
        values: dict[str, np.ndarray] = {}
        errors: dict[str, Any] = {}
        before = "input"
        for layer in self._network.layers:
            if any(name.startswith(layer.name + ".") for name in params):
                x = arithmetic.wide(self._record[before])[rows]
                dy = arithmetic.wide(self._record[f"output_grad/{layer.name}"])[rows]
                dy = dy * factors.reshape(-1, *[1] * (dy.ndim - 1))
                _, own = bounds.backward(layer, Bounded(dy), Trace(x, True), params, arithmetic)
                for name, gradient in own.items():
                    error = np.broadcast_to(2 * np.asarray(gradient.error), gradient.value.shape)
                    values[name], errors[name] = gradient.value, error
                    if picks:
                        values[name] = gradient.value.reshape(-1)[picks[name]]
                        errors[name] = error.reshape(-1)[picks[name]]
            before = f"output/{layer.name}"
        return values, errors
