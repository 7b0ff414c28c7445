"""Numbers that carry a bound of their error through every operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.compare.numerics.rounding import Arithmetic


class Approximate:
    """Numbers known up to an error bound: ``value`` and ``error`` are arrays of one shape, or scalars."""

    def __init__(self, value: Any, error: Any, arithmetic: Arithmetic) -> None:
        self.value = value
        self.error = error
        self.arithmetic = arithmetic

    def _rounded(self, value: Any, error: Any) -> Approximate:
        arithmetic = self.arithmetic
        # Results below the smallest normal number may be flushed to zero.
        return Approximate(value, error + arithmetic.unit * np.abs(value) + arithmetic.tiny, arithmetic)

    def __add__(self, other: Approximate) -> Approximate:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Approximate) -> Approximate:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Approximate) -> Approximate:
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self._rounded(self.value * other.value, error)

    def __truediv__(self, other: Approximate) -> Approximate:
        value = self.value / other.value
        room = np.maximum(np.abs(other.value) - other.error, np.finfo(np.float64).tiny)
        return self._rounded(value, (self.error + np.abs(value) * other.error) / room)

    def largest(self, other: Approximate) -> Approximate:
        """The larger of two numbers, element by element."""
        error = np.maximum(self.error, other.error)
        return Approximate(np.maximum(self.value, other.value), error, self.arithmetic)

    def root(self) -> Approximate:
        """The square root; a value whose error reaches zero may become anything from zero on."""
        value = np.sqrt(self.value)
        return self._rounded(
            value,
            value - np.sqrt(np.maximum(self.value - self.error, 0)) + np.sqrt(self.value + self.error) - value,
        )
