"""Argument checks shared by the operations."""

from typing import Optional, Sequence, Tuple, Union

import numpy as np

Extent = Union[int, Sequence[int]]


def same_dtype(operation: str, **arrays: Optional[np.ndarray]) -> np.dtype:
    """Return the one floating type of the given arrays; arrays given as None are left out.

    Raises TypeError if a type is not floating point or two types differ: NumPy would otherwise compute in
    the wider type without a word.
    """
    found = {name: array.dtype for name, array in arrays.items() if array is not None}
    for name, dtype in found.items():
        if dtype.kind != "f":
            raise TypeError(f"{operation}: {name} has type {dtype}, expected a floating type")
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name} is {dtype}" for name, dtype in found.items())
        raise TypeError(f"{operation}: the inputs must share one type, but {listed}")
    return next(iter(found.values()))


def per_dimension(name: str, value: Extent, dims: int, minimum: int) -> Tuple[int, ...]:
    """Return ``value`` as a tuple of ``dims`` integers, repeating a single integer.

    Raises ValueError for a wrong number of values or a value below ``minimum``.
    """
    if isinstance(value, (int, np.integer)):
        values = (int(value),) * dims
    else:
        values = tuple(int(item) for item in value)
    if len(values) != dims:
        raise ValueError(f"{name} has {len(values)} values {list(values)}, expected {dims}")
    if any(item < minimum for item in values):
        raise ValueError(f"{name} is {list(values)}, every value must be at least {minimum}")
    return values


def spatial_dims(operation: str, x_shape: Sequence[int]) -> int:
    """Return the number of spatial dimensions of an ``(N, C, spatial...)`` shape; ValueError if it has none."""
    if len(x_shape) < 3:
        raise ValueError(f"{operation}: input has shape {tuple(x_shape)}, expected (N, C, L) or (N, C, H, W)")
    return len(x_shape) - 2


def require_shape(operation: str, name: str, array: np.ndarray, expected: Sequence[int]) -> None:
    """Raise ValueError unless ``array`` has the expected shape."""
    if array.shape != tuple(expected):
        raise ValueError(f"{operation}: {name} has shape {array.shape}, expected {tuple(expected)}")
