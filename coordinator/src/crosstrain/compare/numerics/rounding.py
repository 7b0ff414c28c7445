"""Floating-point arithmetic of a run, and values with a bound of their error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
_C = 4.0
_FLOOR = 8.0


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


FLOAT32 = Arithmetic(2.0**-24, 2.0**-126, np.float64)
FLOAT64 = Arithmetic(2.0**-53, 2.0**-1022, np.longdouble)


def arithmetic_of(dtype: Any) -> Arithmetic:
    """The arithmetic of a tensor's type; raises ``TypeError`` for a type that is neither."""
    name = np.dtype(dtype).name
    if name not in ("float32", "float64"):
        raise TypeError(f"no rounding bounds for the type {name}")
    return FLOAT32 if name == "float32" else FLOAT64


class Bounded(NamedTuple):
    """A value and a bound of the distance of a correct result from it (an array, or 0)."""

    value: np.ndarray
    error: Any = 0.0
