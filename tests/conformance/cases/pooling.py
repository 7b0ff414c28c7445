"""Pooling."""

from __future__ import annotations

import numpy as np

from crosstrain_service.model import (
    Relu,
)

from .builder import Case, case, conv, pool


def pooling_cases() -> list[Case]:
    """Window origin, rounding, divisor, padding value, ties."""
    bias = {"conv.bias": -5.0}
    first = [conv("conv", 2, 3, begin=1)]
    ties = np.zeros((3, 1, 6, 6), np.float32)
    ties[1, 0, 2:4, 2:6] = 2.0
    ties[2, 0, 0, :] = [1, 2, 2, 2, 1, 1]
    line = np.array([[[1, 2, 2, 2]], [[1, 2, 3, 4]]], np.float32)
    ones = np.ones((2, 1, 4, 4), np.float32)
    identity = {"conv.weight": [[[[1.0]]]], "conv.bias": 0}
    return [
        case(
            "max_pool_floor",
            "odd sizes lose a row and a column; stride is the kernel",
            (1, 7, 5),
            [*first, pool("pool", "max", 2, 2)],
            double=True,
        ),
        case("max_pool_even", "window origin on even sizes", (2, 6, 8), [*first, pool("pool", "max", 2, 2)]),
        case(
            "max_pool_overlapping",
            "kernel 3, stride 2 and stride 1: gradients of windows add up",
            (1, 9, 8),
            [*first, pool("pool1", "max", 3, 2), pool("pool2", "max", 2, 1)],
        ),
        case(
            "max_pool_not_square",
            "kernel and stride differ between height and width; stride above kernel",
            (1, 9, 10),
            [*first, pool("pool", "max", (3, 2), (2, 3))],
        ),
        case(
            "max_pool_ceil",
            "112, kernel 3, stride 2 in small: 6 windows where floor gives 5",
            (1, 12, 8),
            [*first, pool("pool", "max", 3, 2, ceil=True)],
        ),
        case(
            "max_pool_padded",
            "padding is minus infinity, not 0: all values are negative",
            (1, 7, 6),
            [*first, pool("pool", "max", 3, 2, 1)],
            initial=bias,
        ),
        case(
            "max_pool_padded_ceil",
            "padding and rounding up: a window starting in the padding is dropped",
            (1, 6, 7),
            [*first, pool("pool", "max", 3, 2, 1, ceil=True), pool("pool2", "max", 2, 2, 1, ceil=True)],
            initial=bias,
        ),
        case(
            "max_pool_asymmetric",
            "padding after only, minus infinity",
            (1, 6, 8),
            [*first, pool("pool", "max", 3, 2, 0, 1)],
            initial=bias,
        ),
        case(
            "max_pool_ties",
            "equal maxima and blank windows: the gradient goes to the first",
            (1, 6, 6),
            [conv("conv", 1, 1), Relu("relu"), pool("pool", "max", 2, 2)],
            pixels=ties,
            labels=[0, 1, 2],
            initial=identity,
            steps=1,
            double=True,
        ),
        case(
            "max_pool_ties_overlapping",
            "the same with overlapping windows",
            (1, 6, 6),
            [conv("conv", 1, 1), Relu("relu"), pool("pool", "max", 3, 2)],
            pixels=ties,
            labels=[0, 1, 2],
            initial=identity,
            steps=1,
        ),
        case(
            "max_pool1d_ties",
            "[1, 2, 2, 2] and window origin on [1, 2, 3, 4]",
            (1, 4),
            [conv("conv", 1, 1, dims=1), pool("pool", "max", 2, 2, dims=1)],
            pixels=line,
            labels=[0, 2],
            batch=2,
            initial={"conv.weight": [[[1.0]]], "conv.bias": 0},
            steps=1,
        ),
        case(
            "max_pool1d_padded",
            "one dimension, padded, overlapping",
            (2, 9),
            [conv("conv", 2, 3, dims=1), pool("pool", "max", 3, 2, 1, dims=1)],
            initial=bias,
        ),
        case(
            "average_pool",
            "divisor of whole windows, overlapping and not",
            (2, 9, 8),
            [*first, pool("pool1", "average", 2, 2), pool("pool2", "average", 3, 1)],
        ),
        case(
            "average_pool_include",
            "ones, kernel 3, padding 1: padding counts",
            (1, 4, 4),
            [conv("conv", 1, 1), pool("pool", "average", 3, 1, 1, include=True)],
            pixels=ones,
            labels=[0, 1],
            batch=2,
            initial=identity,
        ),
        case(
            "average_pool_exclude",
            "ones, kernel 3, padding 1: padding does not count",
            (1, 4, 4),
            [conv("conv", 1, 1), pool("pool", "average", 3, 1, 1)],
            pixels=ones,
            labels=[0, 1],
            batch=2,
            initial=identity,
        ),
        case(
            "average_pool_ceil",
            "the last window is smaller; its divisor too",
            (1, 8, 6),
            [*first, pool("pool", "average", 3, 2, ceil=True)],
        ),
        case(
            "average_pool_include_ceil",
            "padding counts, but only up to its end",
            (1, 7, 6),
            [*first, pool("pool", "average", 3, 2, 1, ceil=True, include=True)],
        ),
        case(
            "average_pool_exclude_ceil",
            "padding does not count, rounding up",
            (1, 6, 7),
            [*first, pool("pool", "average", 3, 2, 1, ceil=True)],
        ),
        case(
            "average_pool_asymmetric_include",
            "padding after only, counted",
            (1, 6, 7),
            [*first, pool("pool", "average", (3, 2), 2, 0, 1, include=True)],
        ),
        case(
            "average_pool_asymmetric_exclude",
            "padding before only, not counted",
            (1, 6, 7),
            [*first, pool("pool", "average", 3, 2, (1, 2), 0)],
        ),
        case(
            "average_pool1d",
            "one dimension",
            (2, 9),
            [conv("conv", 2, 3, dims=1), pool("pool", "average", 3, 2, dims=1)],
        ),
    ]
