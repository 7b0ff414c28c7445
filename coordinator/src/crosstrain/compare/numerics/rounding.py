"""Floating-point arithmetic of a run, and values with a bound of their error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
_C = 4.0
_FLOOR = 8.0
_HALF_ROUNDINGS = 5


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point type of a run: unit roundoff ``u``, smallest normal number, and the type to check in."""

    unit: float
    tiny: float
    work: Any

    def sum_of(self, count: float) -> float:
        """Relative bound of a sum of ``count`` products."""
        return max(_C * float(np.sqrt(count)), _FLOOR) * self.unit

    @property
    def floor(self) -> float:
        """Relative bound of a few operations."""
        return _FLOOR * self.unit

    def wide(self, value: Any) -> np.ndarray:
        """A value in the checking type."""
        return np.asarray(value, dtype=self.work)


@dataclass(frozen=True)
class Mixed(Arithmetic):
    """Half precision around products in single precision.

    Factors, bias and result are each rounded to half precision, and the bias may be added after the sum was rounded:
    four roundings of ``half`` beside those of the sum, one more for what is of second order. What is copied or chosen
    stays exact. ``tiny`` stands for the smallest positive number of the half type, below which results are lost.
    """

    half: float = 0.0

    def sum_of(self, count: float) -> float:
        """Relative bound of a sum of ``count`` products."""
        return super().sum_of(count) + _HALF_ROUNDINGS * self.half

    @property
    def floor(self) -> float:
        """Relative bound of a few operations."""
        return super().floor + _HALF_ROUNDINGS * self.half


#: In float16, gradients are computed of a loss multiplied by a scale; what is lost of them below the smallest positive
#: number is smaller by as much. Loss scales begin at 2^15 or 2^16; this leaves room for five halvings at least.
_SMALLEST_SCALE = 2.0**10
FLOAT32 = Arithmetic(2.0**-24, 2.0**-126, np.float64)
FLOAT64 = Arithmetic(2.0**-53, 2.0**-1022, np.longdouble)


def arithmetic_of(dtype: Any) -> Arithmetic:
    """The arithmetic of a tensor's type; raises ``TypeError`` for a type that is neither."""
    name = np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise TypeError(f"no rounding bounds for the type {name}")
    return FLOAT32 if name == "float32" else FLOAT64


def mixed(half: str, backward: bool = False) -> Mixed:
    """The arithmetic of "float16" or "bfloat16" around float32, forward or (with a scaled loss) backward."""
    if half == "bfloat16":
        return Mixed(FLOAT32.unit, FLOAT32.tiny, np.float64, 2.0**-8)
    if half != "float16":
        raise ValueError(f"no rounding bounds for mixed precision with {half}")
    smallest = 2.0**-24
    return Mixed(FLOAT32.unit, smallest / _SMALLEST_SCALE if backward else smallest, np.float64, 2.0**-11)


def half_of(precision: str) -> str:
    """The half type of a precision's name: "float16", "bfloat16", or empty where it is not a mixed one."""
    return precision.removeprefix("mixed_") if precision.startswith("mixed_") else ""


def unit_of(precision: str, rows: float = 1) -> float:
    """Unit roundoff of a loss that is a mean over ``rows`` samples, by the name of a precision; float32's where that is
    not known.

    In mixed precision every sample's loss comes from activations that were rounded to the half type by themselves.
    Roundings of different samples are as often up as down, so that their mean has the unit u_h / sqrt(rows).
    """
    # Losses of float64 runs are compared with those of float32 runs.
    half = half_of(precision)
    if not half:
        return FLOAT32.unit
    return max(FLOAT32.unit, float(mixed(half).half / np.sqrt(max(1.0, rows))))


class Bounded(NamedTuple):
    """A value and a bound of the distance of a correct result from it (an array, or 0)."""

    value: np.ndarray
    error: Any = 0.0
