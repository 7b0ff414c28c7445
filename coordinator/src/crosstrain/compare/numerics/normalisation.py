"""Rounding bounds of batch normalisation and local response normalisation, see ``bounds``."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.compare.numerics.rounding import Arithmetic, Arrays, Bounded
from crosstrain_reference import LRN, BatchNorm, Trace


def _spread(per_channel: Any, like: np.ndarray) -> np.ndarray:
    return np.reshape(per_channel, (1, -1) + (1,) * (like.ndim - 2))


def _batch_norm_parts(layer: BatchNorm, x: Bounded, trace: Trace, arithmetic: Arithmetic) -> Any:
    """(1 / sqrt(var + eps), normalised input, bound of its error, relative bound of the inverse root)."""
    if trace.statistics is None:
        raise ValueError(f"layer {layer.name}: no statistics were used")
    mean, variance = trace.statistics
    inverse = 1.0 / np.sqrt(variance + layer.eps)
    centred = x.value - _spread(mean, x.value)
    normalised = centred * _spread(inverse, x.value)
    axes = (0, *range(2, x.value.ndim))
    count = x.value.size // x.value.shape[1]
    rounding = arithmetic.sum_of(count)
    if trace.train:
        # The variance of centred values; a mean that is off by d adds d^2 to it. An input error e moves the
        # mean by its average, the variance by at most 2 mean(|x - m| (e + mean e)).
        incoming = np.zeros_like(x.value) + x.error
        mean_error = rounding * np.abs(x.value).mean(axis=axes) + incoming.mean(axis=axes)
        moved = incoming + _spread(incoming.mean(axis=axes), x.value)
        variance_error = rounding * variance + mean_error**2 + 2 * (np.abs(centred) * moved).mean(axis=axes)
    else:
        mean_error = np.zeros_like(mean)
        variance_error = np.zeros_like(variance)
    # Frameworks also compute x (gamma r) + (beta - m gamma r): the roundings are those of |x| + |m|.
    shifted = (
        _spread(mean_error, x.value) + x.error + arithmetic.floor * (np.abs(x.value) + _spread(np.abs(mean), x.value))
    )
    relative = 0.5 * variance_error / (variance + layer.eps) + arithmetic.floor
    error = shifted * _spread(inverse, x.value) + np.abs(normalised) * _spread(relative, x.value)
    return inverse, normalised, error, relative


def batch_norm_error(
    layer: BatchNorm, x: Bounded, y: np.ndarray, trace: Trace, params: Arrays, arithmetic: Arithmetic
) -> np.ndarray:
    gamma, beta = (np.abs(params[f"{layer.name}.{part}"]) for part in ("gamma", "beta"))
    _, normalised, error, _ = _batch_norm_parts(layer, x, trace, arithmetic)
    rounding = arithmetic.floor * (np.abs(normalised) * _spread(gamma, y) + _spread(beta, y))
    return np.asarray(error * _spread(gamma, y) + rounding)


def batch_norm_backward_error(
    layer: BatchNorm,
    dy: Bounded,
    dx: np.ndarray,
    gradients: Arrays,
    trace: Trace,
    params: Arrays,
    arithmetic: Arithmetic,
    moved: np.ndarray,
) -> tuple[Bounded, dict[str, Bounded]]:
    like = dx
    inverse, normalised, error, relative = _batch_norm_parts(layer, Bounded(trace.x, moved), trace, arithmetic)
    axes = (0, *range(2, like.ndim))
    count = like.size // like.shape[1]
    rounding = arithmetic.sum_of(count)
    gamma, beta = f"{layer.name}.gamma", f"{layer.name}.beta"
    dgamma, dbeta = gradients[gamma], gradients[beta]
    size = np.abs(dy.value)
    incoming = np.zeros_like(like) + dy.error
    dbeta_error = rounding * size.sum(axis=axes) + incoming.sum(axis=axes)
    each = size * (rounding * np.abs(normalised) + error) + incoming * (np.abs(normalised) + error)
    dgamma_error = each.sum(axis=axes)
    scale = np.abs(params[gamma]) * inverse
    inner = (
        incoming
        + arithmetic.floor * (size + _spread(np.abs(dbeta) / count, like))
        + _spread(dbeta_error / count, like)
        + np.abs(normalised) * _spread((dgamma_error + arithmetic.floor * np.abs(dgamma)) / count, like)
        + error * _spread(np.abs(dgamma) / count, like)
    )
    dx_error = inner * _spread(scale, like) + np.abs(dx) * _spread(relative, like)
    return Bounded(dx, dx_error), {
        gamma: Bounded(dgamma, dgamma_error),
        beta: Bounded(dbeta, dbeta_error),
    }


def _lrn_scale(layer: LRN, x: np.ndarray) -> np.ndarray:
    return layer.k + layer.alpha * _window_sum(layer, np.square(x))


def _window_sum(layer: LRN, x: np.ndarray) -> np.ndarray:
    """Sum over the window around every element of ``x`` (N, C, ...), zeros outside."""
    radius = (layer.size - 1) // 2
    for axis in (1,) if layer.region == "across_channels" else range(2, x.ndim):
        along = np.moveaxis(x, axis, 0)
        x = np.stack([along[max(0, at - radius) : at + radius + 1].sum(axis=0) for at in range(len(along))], axis)
    return x


def _window_rounding(layer: LRN, x: np.ndarray, arithmetic: Arithmetic) -> Any:
    """Relative bound of a sum over the window of ``x`` (N, C, ...)."""
    return arithmetic.sum_of(layer.size if layer.region == "across_channels" else layer.size ** (x.ndim - 2))


def _lrn_relative(layer: LRN, scale: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """Relative bound of scale^-beta: that of the scale times beta, and of a power by logarithm."""
    rounding = _window_rounding(layer, scale, arithmetic)
    return np.asarray(layer.beta * rounding + arithmetic.floor * (1 + layer.beta * np.abs(np.log(scale))))


def lrn_error(layer: LRN, x: Bounded, y: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    scale = _lrn_scale(layer, x.value)
    error = np.abs(y) * (_lrn_relative(layer, scale, arithmetic) + arithmetic.floor)
    if np.any(x.error):
        power = scale**-layer.beta
        slope = 2 * layer.alpha * layer.beta * np.abs(y) / scale
        error = error + power * x.error + slope * _window_sum(layer, np.abs(x.value) * x.error)
    return np.asarray(error)


def lrn_backward_error(layer: LRN, dy: Bounded, x: np.ndarray, moved: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """dx = dy p - 2 alpha beta x S(dy x p / s), p = s^-beta, S the sum over the window, term by term."""
    scale = _lrn_scale(layer, x)
    power = scale**-layer.beta
    size, incoming = np.abs(dy.value), np.zeros_like(x) + dy.error
    relative_scale = 2 * layer.alpha * _window_sum(layer, np.abs(x) * moved) / scale
    relative = _lrn_relative(layer, scale, arithmetic) + arithmetic.floor + layer.beta * relative_scale
    rounding = _window_rounding(layer, x, arithmetic)
    inner = size * np.abs(x) * power / scale
    inner_error = (
        inner * (relative + relative_scale + rounding)
        + (incoming * np.abs(x) + size * moved) * power / scale
    )
    factor = 2 * layer.alpha * layer.beta
    summed = _window_sum(layer, inner)
    shared = np.abs(x) * (_window_sum(layer, inner_error) + rounding * summed)
    return np.asarray((size * relative + incoming) * power + factor * (shared + moved * summed))
