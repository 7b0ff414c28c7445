"""Flattening in the order C, H, W."""

from typing import Sequence

import numpy as np

from .checks import require_shape, same_dtype


def flatten(x: np.ndarray) -> np.ndarray:
    """Return ``x`` ``(N, C, spatial...)`` as ``(N, C * spatial)``; element (c, h, w) lands at cHW + hW + w."""
    same_dtype("flatten", x=x)
    return x.reshape(x.shape[0], int(np.prod(x.shape[1:]))).copy()


def unflatten(y: np.ndarray, x_shape: Sequence[int]) -> np.ndarray:
    """Undo :func:`flatten`; also its backward pass."""
    same_dtype("unflatten", y=y)
    require_shape("unflatten", "input", y, (x_shape[0], int(np.prod(x_shape[1:]))))
    return y.reshape(tuple(x_shape)).copy()
