"""Initial weights moved by one unit in the last place: the start of the runs that make the envelope.

The place is that of the type in which the weights enter products. In mixed precision that is the half type: moved by
one place of float32, all but one entry in 2^16 (bfloat16) or 2^13 (float16) would round to the same half-precision
number as before, and the run would repeat the roundings of the unperturbed one instead of drawing others.

Entries that are exactly 0 stay 0: zero biases and blank regions put ReLU inputs at exactly 0, and moving
them off it would switch gradients on, which changes the function and is not rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Digits of the significand after the first and exponent of the smallest normal number, by half type.
_HALF = {"float16": (10, -14), "bfloat16": (7, -126)}


def perturb(weights: Mapping[str, NDArray[Any]], seed: int, half: str = "") -> dict[str, NDArray[Any]]:
    """Every entry that is not 0 moved by one unit in the last place, the side drawn at random.

    ``weights`` maps names to float32 or float64 arrays of any shape; the result has the same names, shapes
    and types, and depends on the seed, the name and the values alone. The unit is that of the arrays' own type, which
    makes it a move to a neighbour, or that of ``half``, "float16" or "bfloat16". An entry that would become 0, change
    its sign or become infinite on the drawn side moves the other way.

    Raises:
        ValueError: a negative seed, another type, or an entry that is not finite, naming the tensor.
    """
    if seed < 0:
        raise ValueError(f"perturbation seed {seed}: must be at least 0")
    if half and half not in _HALF:
        raise ValueError(f"perturbation in units of {half}: must be float16 or bfloat16")
    return {name: _moved(name, np.asarray(value), seed, half) for name, value in weights.items()}


def _moved(name: str, value: NDArray[Any], seed: int, half: str) -> NDArray[Any]:
    if value.dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"tensor {name}: type {value.dtype}, must be float32 or float64")
    if not np.isfinite(value).all():
        raise ValueError(f"tensor {name}: has an entry that is not finite")
    # A stream of its own per tensor, so that no tensor's moves depend on which others there are.
    stream = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "big")
    up = np.random.Generator(np.random.PCG64([seed, stream])).random(value.shape) < 0.5
    infinite = value.dtype.type(np.inf)
    with np.errstate(over="ignore", under="ignore"):
        if half:
            unit = _unit(value, half)
            high, low = value + unit, value - unit
        else:
            high, low = np.nextafter(value, infinite), np.nextafter(value, -infinite)
    drawn, other = np.where(up, high, low), np.where(up, low, high)
    moved = np.where((np.sign(drawn) != np.sign(value)) | ~np.isfinite(drawn), other, drawn)
    return np.where(value == 0, value, moved).astype(value.dtype, copy=False)


def _unit(value: NDArray[Any], half: str) -> NDArray[Any]:
    """The unit in the last place of every entry as a number of a half type, in the entries' own type."""
    digits, smallest = _HALF[half]
    _, exponent = np.frexp(value)  # of a significand in [0.5, 1)
    return np.asarray(np.ldexp(value.dtype.type(1), np.maximum(exponent - 1, smallest) - digits))
