"""Batch normalization per channel (axis 1) and local response normalization."""

from typing import Tuple

import numpy as np

from .checks import require_shape, same_dtype


def batch_statistics(x: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Return mean and biased variance (divided by the count) per channel of ``x`` ``(N, C, ...)``."""
    same_dtype("batch_statistics", x=x)
    axes = _reduced(x)
    mean = x.mean(axis=axes)
    return mean, np.square(x - _spread(mean, x)).mean(axis=axes)


def batch_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
) -> np.ndarray:
    """Return ``gamma (x - mean) / sqrt(var + eps) + beta``; all parameters have shape ``(C,)``.

    In training ``mean`` and ``var`` are :func:`batch_statistics` of ``x``; in evaluation they are given.
    """
    same_dtype("batch_norm", x=x, gamma=gamma, beta=beta, mean=mean, var=var)
    for name, array in (("gamma", gamma), ("beta", beta), ("mean", mean), ("var", var)):
        require_shape("batch_norm", name, array, x.shape[1:2])
    scale = gamma / np.sqrt(var + float(eps))
    return (x - _spread(mean, x)) * _spread(scale, x) + _spread(beta, x)


def batch_norm_backward(
    dy: np.ndarray,
    x: np.ndarray,
    gamma: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    eps: float,
    training: bool = True,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients ``(dx, dgamma, dbeta)``.

    With ``training`` the statistics are functions of ``x`` and take part in ``dx`` (Ioffe and Szegedy 2015,
    section 3); otherwise they are constants.
    """
    same_dtype("batch_norm_backward", dy=dy, x=x, gamma=gamma, mean=mean, var=var)
    require_shape("batch_norm_backward", "dy", dy, x.shape)
    axes = _reduced(x)
    inverse = 1.0 / np.sqrt(var + float(eps))
    normalized = (x - _spread(mean, x)) * _spread(inverse, x)
    dgamma = (dy * normalized).sum(axis=axes)
    dbeta = dy.sum(axis=axes)
    centred = dy
    if training:
        count = x.size // x.shape[1]
        centred = dy - _spread(dbeta / count, x) - normalized * _spread(dgamma / count, x)
    return centred * _spread(gamma * inverse, x), dgamma, dbeta


def alpha_sum_from_average(alpha_avg: float, size: int) -> float:
    """Convert the alpha of ``k + alpha / size * sum`` (Caffe, PyTorch) to that of ``k + alpha * sum``."""
    _radius(size)
    return alpha_avg / size


def lrn(
    x: np.ndarray, size: int, alpha: float, beta: float, k: float, region: str = "across_channels"
) -> np.ndarray:
    """Return ``x / (k + alpha * sum of squares over the window around x) ^ beta`` for ``x`` ``(N, C, ...)``.

    The window spans ``size`` channels (``region`` "across_channels") or ``size`` elements along every spatial
    dimension ("within_channel"); outside of ``x`` is zero.  ``alpha`` multiplies the sum, not the mean.  Raises
    ValueError unless ``size`` is odd and ``region`` known.
    """
    same_dtype("lrn", x=x)
    return x * _lrn_scale(x, size, alpha, k, region) ** -float(beta)


def lrn_backward(
    dy: np.ndarray, x: np.ndarray, size: int, alpha: float, beta: float, k: float, region: str = "across_channels"
) -> np.ndarray:
    """Return the input gradient of :func:`lrn`."""
    same_dtype("lrn_backward", dy=dy, x=x)
    require_shape("lrn_backward", "dy", dy, x.shape)
    scale = _lrn_scale(x, size, alpha, k, region)
    power = scale ** -float(beta)
    shared = lrn_sum(dy * x * power / scale, size, region)
    return dy * power - (2.0 * float(alpha) * float(beta)) * x * shared


def lrn_sum(x: np.ndarray, size: int, region: str) -> np.ndarray:
    """Return the sum of ``x`` over the window of :func:`lrn` around every element."""
    if region not in ("across_channels", "within_channel"):
        raise ValueError(f"lrn: region is {region!r}, expected 'across_channels' or 'within_channel'")
    radius = _radius(size)
    for axis in (1,) if region == "across_channels" else range(2, x.ndim):
        x = _line_sum(x, radius, axis)
    return x


def _lrn_scale(x: np.ndarray, size: int, alpha: float, k: float, region: str) -> np.ndarray:
    return float(k) + float(alpha) * lrn_sum(np.square(x), size, region)


def _line_sum(x: np.ndarray, radius: int, axis: int) -> np.ndarray:
    total = x.copy()
    before = (slice(None),) * axis
    for shift in range(1, min(radius, x.shape[axis] - 1) + 1):
        total[before + (slice(None, -shift),)] += x[before + (slice(shift, None),)]
        total[before + (slice(shift, None),)] += x[before + (slice(None, -shift),)]
    return total


def _radius(size: int) -> int:
    if size < 1 or size % 2 == 0:
        raise ValueError(f"lrn: size is {size}, expected an odd number")
    return (size - 1) // 2


def _reduced(x: np.ndarray) -> Tuple[int, ...]:
    if x.ndim < 2:
        raise ValueError(f"batch norm: input has shape {x.shape}, expected (N, C, ...)")
    return (0,) + tuple(range(2, x.ndim))


def _spread(per_channel: np.ndarray, x: np.ndarray) -> np.ndarray:
    return per_channel.reshape((1, -1) + (1,) * (x.ndim - 2))
