"""Initial weights moved by one unit in the last place: the start of the runs that make the envelope.

Entries that are exactly 0 stay 0: zero biases and blank regions put ReLU inputs at exactly 0, and moving
them off it would switch gradients on, which changes the function and is not rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def perturb(weights: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[Any]]:
    """Every entry that is not 0 moved to one of its two neighbours, the side drawn at random.

    ``weights`` maps names to float32 or float64 arrays of any shape; the result has the same names, shapes
    and types, and depends on the seed, the name and the values alone. An entry whose neighbour on the drawn
    side would be 0 or infinite moves the other way.

    Raises:
        ValueError: a negative seed, another type, or an entry that is not finite, naming the tensor.
    """
    if seed < 0:
        raise ValueError(f"perturbation seed {seed}: must be at least 0")
    return {name: _moved(name, np.asarray(value), seed) for name, value in weights.items()}


def _moved(name: str, value: NDArray[Any], seed: int) -> NDArray[Any]:
    if value.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"tensor {name}: type {value.dtype}, must be float32 or float64")
    if not np.isfinite(value).all():
        raise ValueError(f"tensor {name}: has an entry that is not finite")
    # A stream of its own per tensor, so that no tensor's moves depend on which others there are.
    stream = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "big")
    up = np.random.Generator(np.random.PCG64([seed, stream])).random(value.shape) < 0.5
    infinite = value.dtype.type(np.inf)
    with np.errstate(over="ignore", under="ignore"):
        high, low = np.nextafter(value, infinite), np.nextafter(value, -infinite)
    drawn, other = np.where(up, high, low), np.where(up, low, high)
    moved = np.where((drawn == 0) | ~np.isfinite(drawn), other, drawn)
    return np.where(value == 0, value, moved).astype(value.dtype, copy=False)
