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
            raise TypeError("%s: %s has type %s, expected a floating type" % (operation, name, dtype))
    if len(set(found.values())) > 1:
        listed = ", ".join("%s is %s" % item for item in found.items())
        raise TypeError("%s: the inputs must share one type, but %s" % (operation, listed))
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
        raise ValueError("%s has %d values %s, expected %d" % (name, len(values), list(values), dims))
    if any(item < minimum for item in values):
        raise ValueError("%s is %s, every value must be at least %d" % (name, list(values), minimum))
    return values


def spatial_dims(operation: str, x_shape: Sequence[int]) -> int:
    """Return the number of spatial dimensions of an ``(N, C, spatial...)`` shape; ValueError if it has none."""
    if len(x_shape) < 3:
        raise ValueError(
            "%s: input has shape %s, expected (N, C, L) or (N, C, H, W)" % (operation, tuple(x_shape))
        )
    return len(x_shape) - 2


def require_shape(operation: str, name: str, array: np.ndarray, expected: Sequence[int]) -> None:
    """Raise ValueError unless ``array`` has the expected shape."""
    if array.shape != tuple(expected):
        raise ValueError(
            "%s: %s has shape %s, expected %s" % (operation, name, array.shape, tuple(expected))
        )
