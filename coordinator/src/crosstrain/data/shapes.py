"""From a flat number of values per sample to a sample shape, or a refusal that helps."""

from __future__ import annotations

import math

from .errors import DataError

COLOURS = (1, 3)
MAX_ASPECT = 4
MAX_VALUES = 1 << 28


def check_size(shape: tuple[int, ...], name: str) -> None:
    """Refuse samples of no values, or of more than 2**28, as a damaged header announces them.

    Raises:
        DataError: ``name``, the file.
    """
    if not 1 <= math.prod(shape) <= MAX_VALUES:
        raise DataError(
            name, f"samples of {times(shape)} values are empty or too large (at most {MAX_VALUES})"
        )


def infer_shape(values: int, stated: tuple[int, ...] | None) -> tuple[int, ...]:
    """Shape of one sample that has ``values`` numbers.

    A stated shape must fit exactly. Otherwise only a square image is inferred, with one channel or
    three: 784 is (1, 28, 28), 3072 is (3, 32, 32). s*s and 3*t*t are never equal, so that rule is
    unambiguous.

    Raises:
        DataError: ``data.shape``; the message lists the shapes that would fit.
    """
    if stated is not None:
        if math.prod(stated) == values:
            return stated
        raise DataError(
            "data.shape",
            f"{times(stated)} needs {math.prod(stated)} values per sample, the data has {values}"
            + _suggestion(values),
            value=times(stated),
        )
    shape = square(values)
    if shape is not None:
        return shape
    raise DataError(
        "data.shape",
        f"{values} values per sample are not a square image of 1 or 3 channels" + _suggestion(values),
        value=str(values),
    )


def square(values: int) -> tuple[int, int, int] | None:
    """(1, s, s) or (3, s, s) when ``values`` is such a product, else None."""
    for channels in COLOURS:
        if values > 0 and values % channels == 0:
            side = math.isqrt(values // channels)
            if side * side * channels == values:
                return (channels, side, side)
    return None


def candidates(values: int) -> list[tuple[int, int, int]]:
    """Images (C, H, W) with C in 1, 3 and sides at most 1 to 4 apart, nearest to a square first."""
    found = []
    for channels in COLOURS:
        if values % channels:
            continue
        area = values // channels
        for height in range(math.isqrt(area), 0, -1):
            width, rest = divmod(area, height)
            if width > MAX_ASPECT * height:
                break
            if rest == 0:
                found.append((channels, height, width))
    return sorted(found, key=lambda shape: (shape[2] / shape[1], shape[0]))


def times(shape: tuple[int, ...]) -> str:
    """``1x28x28`` for (1, 28, 28)."""
    return "x".join(str(n) for n in shape)


def _suggestion(values: int) -> str:
    fits = candidates(values)
    side = max(1, math.isqrt(values))
    near = min((side, side + 1), key=lambda s: abs(s * s - values))
    colour_side = max(1, round(math.sqrt(values / 3)))
    text = (
        f"; the nearest squares are 1x{near}x{near} ({near * near} values) and "
        f"3x{colour_side}x{colour_side} ({3 * colour_side * colour_side} values)"
    )
    if fits:
        text += f"; state `shape` as one of {', '.join(times(s) for s in fits[:6])}, or as [1, {values}]"
    else:
        text += f"; only a one-dimensional `shape` of [1, {values}] fits"
    return text
