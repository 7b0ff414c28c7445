"""Activation functions."""

import numpy as np

from .checks import require_shape, same_dtype


def relu(x: np.ndarray) -> np.ndarray:
    """Return ``max(x, 0)``; NaN stays NaN."""
    same_dtype("relu", x=x)
    return np.maximum(x, x.dtype.type(0))


def relu_backward(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return ``dy`` where ``x > 0`` and 0 elsewhere: the gradient at exactly 0 is 0.

    The output of :func:`relu` may be given for ``x``: both are positive at the same places.
    """
    same_dtype("relu_backward", dy=dy, x=x)
    require_shape("relu_backward", "dy", dy, x.shape)
    return np.where(x > 0, dy, dy.dtype.type(0))
