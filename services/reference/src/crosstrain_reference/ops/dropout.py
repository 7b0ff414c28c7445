"""Dropout with a mask drawn by the caller."""

import numpy as np

from .checks import require_shape, same_dtype


def dropout(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return ``x * mask``.

    ``mask`` has the shape and type of ``x`` and is already scaled: 0 where an element is dropped and
    ``1 / (1 - rate)`` where it is kept ("inverted" dropout, so that evaluation needs no scaling).
    """
    same_dtype("dropout", x=x, mask=mask)
    require_shape("dropout", "mask", mask, x.shape)
    return x * mask


def dropout_backward(dy: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the input gradient ``dy * mask``."""
    same_dtype("dropout_backward", dy=dy, mask=mask)
    require_shape("dropout_backward", "mask", mask, dy.shape)
    return dy * mask
