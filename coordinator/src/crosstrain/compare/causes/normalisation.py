"""Conventions of batch normalisation and local response normalisation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.operations import Gradients, Operation, Settings, Wrapped, changed, times
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain_reference import LRN, BatchNorm

EPSILONS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-2, 1e-12)


class _UnbiasedVariance(Wrapped):
    """Variance divided by n - 1: gamma (x - m) / sqrt(v n / (n - 1) + eps) is the canonical form with gamma times
    r = sqrt((n - 1) / n) and epsilon times r^2.
    """

    def _changed(self, x: np.ndarray, settings: Settings) -> tuple[Operation, Settings, float]:
        count = x.size // x.shape[1]
        ratio = (count - 1) / count
        layer = self.layer
        assert isinstance(layer, BatchNorm)
        gamma = layer.name + ".gamma"
        root = float(np.sqrt(ratio))
        params = {**settings.params, gamma: settings.params[gamma] * root}
        inner = self.inner.with_layer(dataclasses.replace(layer, eps=layer.eps * ratio))
        return inner, settings.changed(params=params), root

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        inner, other, _ = self._changed(x.value, settings)
        return inner.forward(x, other)

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        inner, other, root = self._changed(x, settings)
        dx, gradients = inner.backward(dy, x, other)
        gamma = self.layer.name + ".gamma"
        return dx, {**gradients, gamma: times(gradients[gamma], root, settings.arithmetic)}


class _OutsideRoot(Wrapped):
    """gamma (x - m) / (sqrt(v) + eps)."""

    def _factor(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        layer = self.layer
        assert isinstance(layer, BatchNorm)
        axes = (0, *range(2, x.ndim))
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean = x.mean(axis=axes).reshape(shape)
        variance = np.square(x - mean).mean(axis=axes).reshape(shape)
        deviation = np.sqrt(variance)
        return mean, deviation, np.sqrt(variance + layer.eps) / (deviation + layer.eps)

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        gamma, beta = (settings.params[f"{self.layer.name}.{part}"] for part in ("gamma", "beta"))
        _, _, factor = self._factor(x.value)
        scaled = {**settings.params, f"{self.layer.name}.gamma": gamma * factor.reshape(-1)}
        value = self.inner.forward(x, settings.changed(params=scaled))
        shape = (1, -1) + (1,) * (x.value.ndim - 2)
        return Bounded(value.value, 2 * np.asarray(value.error) + settings.arithmetic.floor *
        np.abs(beta.reshape(shape)))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        mean, deviation, factor = self._factor(x)
        layer = self.layer
        assert isinstance(layer, BatchNorm)
        dx, gradients = self.inner.backward(dy, x, settings)
        axes = (0, *range(2, x.ndim))
        gamma = settings.params[layer.name + ".gamma"].reshape(factor.shape)
        outer, centred = deviation + layer.eps, x - mean
        moved = (dy.value * centred).mean(axis=axes, keepdims=True)
        inner = dy.value - dy.value.mean(axis=axes, keepdims=True)
        safe = np.where(deviation > 0, deviation, 1.0)
        value = gamma / outer * (inner - np.where(deviation > 0, centred * moved / (safe * outer), 0.0))
        name = layer.name + ".gamma"
        ratio = factor.reshape(-1)
        dgamma = gradients[name]
        error = 2 * np.asarray(dx.error) * np.maximum(factor, 1) ** 2
        return Bounded(value, error), {
            **gradients, name: Bounded(dgamma.value * ratio, 2 * np.asarray(dgamma.error) * ratio)
        }  # fmt: skip


class _Constant(Wrapped):
    """Given statistics instead of the batch's, which are then constants of the gradient too."""

    def __init__(self, inner: Operation, mean: float, variance: float) -> None:
        super().__init__(inner)
        self.mean, self.variance = mean, variance

    def _settings(self, x: np.ndarray, settings: Settings) -> Settings:
        pair = tuple(np.full(x.shape[1], value, x.dtype) for value in (self.mean, self.variance))
        return settings.changed(train=False, statistics=pair)

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        return self.inner.forward(x, self._settings(x.value, settings))

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        return self.inner.backward(dy, x, self._settings(x, settings))


def _unbiased(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, BatchNorm):
        yield _UnbiasedVariance(operation)


def _epsilon(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, BatchNorm):
        for value in EPSILONS:
            if value != operation.layer.eps:
                yield changed(operation, eps=value)


def _outside(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, BatchNorm):
        yield _OutsideRoot(operation)


def _start_statistics(operation: Operation, place: Place) -> Iterator[Operation]:
    """Evaluation mode while training, with the statistics that running averages start from."""
    if isinstance(operation.layer, BatchNorm):
        yield _Constant(operation, 0.0, 1.0)


def _alpha(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if isinstance(layer, LRN):
        window = layer.size ** (place.x.ndim - 2 if layer.region == "within_channel" else 1)
        yield changed(operation, alpha=layer.alpha / window)
        yield changed(operation, alpha=layer.alpha * window)


def _k(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, LRN):
        for value in (1.0, 2.0, 0.0):
            if value != operation.layer.k:
                yield changed(operation, k=value)


def _window(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if isinstance(layer, LRN):
        for size in (2 * layer.size + 1, layer.size + 2, layer.size - 2, (layer.size - 1) // 2):
            if size % 2 and 0 < size != layer.size:
                yield changed(operation, size=size)


def _region(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, LRN):
        across = operation.layer.region == "across_channels"
        yield changed(operation, region="within_channel" if across else "across_channels")


CONVENTIONS = (
    Convention(
        "batch_norm.unbiased_variance",
        "Unbiased variance in training",
        "Training normalises by the variance divided by n - 1, which differs most for small batches.",
        "Hand-written layers that use a library's default variance; frameworks keep it for the running average only.",
        "Divide by n: var(correction=0) in PyTorch, ddof=0 in NumPy.",
        {"layer": _unbiased},
        2,
    ),
    Convention(
        "batch_norm.epsilon_outside_root",
        "Epsilon outside the root",
        "Batch norm divides by sqrt(variance) + epsilon instead of sqrt(variance + epsilon).",
        "Hand-written layers; all frameworks add it inside.",
        "Add epsilon to the variance before the root.",
        {"layer": _outside},
        2,
    ),
    Convention(
        "batch_norm.other_epsilon",
        "Another epsilon of batch norm",
        "The small number added to the variance is another one, which shows where a channel hardly varies.",
        "1e-5 in PyTorch and Caffe, 1e-3 in Keras and TensorFlow, 1e-4 in Theano and Lasagne.",
        "Set it: eps= in PyTorch, epsilon= in Keras, eps: in Caffe; or write the wanted epsilon in the job.",
        {"layer": _epsilon},
        3,
    ),
    Convention(
        "batch_norm.evaluation_mode",
        "Batch norm in evaluation mode while training",
        "Training normalises by stored statistics (mean 0 and variance 1 at first), not by those of the batch.",
        "A network left in evaluation mode; use_global_stats: true in Caffe; trainable=False in Keras.",
        "Switch to training mode: model.train(), training=True, use_global_stats: false.",
        {"layer": _start_statistics},
        2,
    ),
    Convention(
        "lrn.alpha_over_n",
        "Alpha divided by the window",
        "Alpha multiplies the mean of the squares in a window instead of their sum, or the reverse.",
        "PyTorch, Caffe and Torch7 divide alpha by the window size; TensorFlow and Lasagne multiply the sum.",
        "alpha of the sum = alpha of the mean / size: give PyTorch and Caffe size times alpha_sum.",
        {"layer": _alpha},
        1,
    ),
    Convention(
        "lrn.other_k",
        "Another k of local response norm",
        "The constant added before the power is another one.",
        "k is 1 by default in PyTorch, Caffe and TensorFlow (bias), 2 in Lasagne and in the AlexNet paper.",
        "Set it: k= in PyTorch and Caffe, bias= in TensorFlow.",
        {"layer": _k},
        2,
    ),
    Convention(
        "lrn.other_window",
        "Another window of local response norm",
        "The window holds more or fewer channels than the job says.",
        "TensorFlow gives a radius r, which means 2 r + 1 channels; the others give the number of channels.",
        "TensorFlow: depth_radius = (size - 1) / 2.",
        {"layer": _window},
        2,
    ),
    Convention(
        "lrn.other_region",
        "Local response norm over another region",
        "The window runs over channels where the job says positions within a channel, or the reverse.",
        "Caffe has both (norm_region); PyTorch, TensorFlow and Lasagne normalise across channels only.",
        "Caffe: norm_region: ACROSS_CHANNELS; elsewhere write the sum within a channel by hand.",
        {"layer": _region},
        2,
    ),
)
