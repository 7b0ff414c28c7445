"""Fully connected layer."""

from typing import Optional, Tuple

import numpy as np

from .checks import require_shape, same_dtype


def dense(x: np.ndarray, w: np.ndarray, b: Optional[np.ndarray] = None) -> np.ndarray:
    """Return ``x w^T + b``, shape ``(N, out)``, for ``x`` ``(N, in)``, ``w`` ``(out, in)``, ``b`` ``(out,)``.

    Raises TypeError for mixed types, ValueError for shapes that do not fit.
    """
    same_dtype("dense", x=x, w=w, b=b)
    _check("dense", x, w)
    y = np.dot(x, w.T)
    if b is not None:
        require_shape("dense", "bias", b, w.shape[:1])
        y += b
    return y


def dense_backward(dy: np.ndarray, x: np.ndarray, w: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients ``(dx, dw, db)`` for the output gradient ``dy`` ``(N, out)``."""
    same_dtype("dense_backward", dy=dy, x=x, w=w)
    _check("dense_backward", x, w)
    require_shape("dense_backward", "dy", dy, (x.shape[0], w.shape[0]))
    return np.dot(dy, w), np.dot(dy.T, x), dy.sum(axis=0)


def _check(operation: str, x: np.ndarray, w: np.ndarray) -> None:
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1]:
        raise ValueError(
            f"{operation}: input has shape {x.shape} and weight {w.shape}, expected (N, in) and (out, in)"
        )
