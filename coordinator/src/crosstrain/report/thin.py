"""Fewer points of long traces, with every peak kept, and what a trace says in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Steps kept one by one at the start, where rounding grows and engines part.
DENSE_STEPS = 64
#: Parts of a step's time, in the order they are drawn.
PARTS = ("data", "copy", "compute", "sync", "callback")


def kept(values: Array, buckets: int, *, lows: bool = True) -> Array:
    """Indices of the points to draw, ascending: largest and smallest of each bucket, ends, and the start.

    At most ``5 * buckets + DENSE_STEPS + 2`` indices, all of them if there are few. The start is kept
    densely and then at ratios, so that it can be seen on a logarithmic axis of steps.

    Args:
        values: what is drawn; NaN and infinities are kept where they begin and end.
        lows: whether the smallest of each bucket is kept too.
    """
    count = len(values)
    if count <= 3 * buckets + DENSE_STEPS:
        return np.arange(count)
    size = -(-count // buckets)
    filled = np.full(size * buckets, np.nan)
    filled[:count] = values
    table = filled.reshape(buckets, size)
    finite = np.isfinite(table)
    some = np.flatnonzero(finite.any(axis=1))
    low = np.where(finite, table, np.inf).argmin(axis=1)[some] + some * size if lows else []
    high = np.where(finite, table, -np.inf).argmax(axis=1)[some] + some * size
    change = np.flatnonzero(np.diff(np.isfinite(values)))[:buckets]
    early = np.geomspace(DENSE_STEPS, count - 1, buckets).astype(np.int64)
    parts = [np.arange(DENSE_STEPS), early, low, high, change, change + 1, [0, count - 1]]
    return np.unique(np.concatenate([np.asarray(part, np.int64) for part in parts]))


def relative_difference(steps: Array, losses: Array, base_steps: Array, base_losses: Array) -> Array:
    """|loss - loss of the reference| over |loss of the reference|, for each of ``steps``.

    NaN where the reference has no such step; infinite where just one of the losses is finite.
    """
    result = np.full(len(steps), np.nan)
    _, left, right = np.intersect1d(steps, base_steps, return_indices=True)
    own, base = np.asarray(losses, np.float64)[left], np.asarray(base_losses, np.float64)[right]
    with np.errstate(all="ignore"):
        gap = np.abs(own - base) / np.maximum(np.abs(base), np.finfo(np.float64).tiny)
    gap[~np.isfinite(own) & ~np.isfinite(base)] = np.nan
    gap[np.isfinite(own) != np.isfinite(base)] = np.inf
    gap[own == base] = 0.0
    result[left] = gap
    return result


def first_above(steps: Array, values: Array, limit: float) -> int | None:
    """The first step whose value exceeds ``limit``; None if none does."""
    with np.errstate(invalid="ignore"):
        found = np.flatnonzero(values > limit)
    return int(steps[found[0]]) if found.size else None


def quantiles(seconds: Array) -> dict[str, float] | None:
    """Median, quartiles, 5th and 95th percentile and extremes, in the unit of ``seconds``."""
    finite = np.asarray(seconds, np.float64)
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if not finite.size:
        return None
    names = ("least", "p5", "q1", "median", "q3", "p95", "most")
    levels = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    return dict(zip(names, map(float, np.quantile(finite, levels)), strict=True))


def time_parts(steps: Mapping[str, Array]) -> dict[str, float]:
    """Seconds of all steps by part; ``other`` is what the parts leave of the whole."""
    total = finite_sum(steps.get("step_seconds"))
    parts = {name: finite_sum(steps.get(f"{name}_seconds")) for name in PARTS}
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


def finite_sum(values: Array | None) -> float:
    """Sum of what is finite; 0 of nothing."""
    return 0.0 if values is None else float(np.nansum(np.where(np.isfinite(values), values, 0.0)))
