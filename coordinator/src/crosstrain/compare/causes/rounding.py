"""Rounding to short floating-point formats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Format(NamedTuple):
    """Significand of ``bits`` bits, the leading one included; ``lowest`` is the exponent of the smallest "
    "normal number."""

    bits: int
    lowest: int

    @property
    def unit(self) -> float:
        """Largest relative error of rounding to nearest."""
        return float(2.0**-self.bits)


TF32 = Format(11, -126)
BFLOAT16 = Format(8, -126)
FLOAT16 = Format(11, -14)


def rounded(value: np.ndarray, to: Format, truncate: bool = False) -> np.ndarray:
    """``value`` with fewer bits, to the nearest (ties to even) or towards zero; denormals as the format has them."""
    _, exponent = np.frexp(value)
    quantum = np.maximum(exponent, to.lowest + 1) - to.bits
    scaled = np.ldexp(value, -quantum)
    return np.asarray(np.ldexp(np.trunc(scaled) if truncate else np.rint(scaled), quantum))


def representable(value: np.ndarray, to: Format) -> bool:
    """Whether every number is one of the format."""
    return bool(np.array_equal(rounded(value, to), value))
