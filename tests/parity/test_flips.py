"""The finder of decision flips, on runs made for it."""

from __future__ import annotations

import numpy as np
import pytest

from crosstrain.compare.freerun.flips import first_flip
from crosstrain_reference import Convolution, Network, Pool, Relu

NETWORK = Network(
    [
        Convolution("conv", 1, (1, 1), (1, 1), (0, 0), (0, 0)),
        Relu("relu"),
        Pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
    ]
)
PARAMETERS = {"conv.weight": np.ones((1, 1, 1, 1), np.float32), "conv.bias": np.zeros(1, np.float32)}
WINDOW = [[0.5, 0.25], [0.5, 0.125]]


def _outputs(conv: np.ndarray) -> dict[str, np.ndarray]:
    relu = np.maximum(conv, 0)
    return {"conv": conv, "relu": relu, "pool": relu.max(axis=(2, 3), keepdims=True)}


def _flip(engine: list[list[float]], reference: list[list[float]]):  # type: ignore[no-untyped-def]
    x = np.array(WINDOW, np.float32)[np.newaxis, np.newaxis]
    found = np.array(engine, np.float32)[np.newaxis, np.newaxis]
    wanted = np.array(reference, np.float64)[np.newaxis, np.newaxis]
    return first_flip(NETWORK, 3, x, PARAMETERS, _outputs(found), _outputs(wanted))


def test_equal_decisions_are_no_flip() -> None:
    assert _flip(WINDOW, WINDOW) is None


def test_an_exact_tie_decided_otherwise_counts_by_the_engines_gap() -> None:
    flip = _flip([[0.5, 0.25], [np.nextafter(np.float32(0.5), np.float32(1)), 0.125]], WINDOW)
    assert flip is not None
    assert (flip.step, flip.layer, flip.count, flip.decisions) == (3, "pool", 1, 1)
    assert flip.reference_gap == 0
    assert flip.gap == pytest.approx(2.0**-24)
    assert flip.is_rounding
    assert "1 of 1 decisions" in str(flip)


def test_a_wide_gap_is_not_rounding() -> None:
    flip = _flip([[0.5, 0.25], [0.501, 0.125]], WINDOW)
    assert flip is not None
    assert not flip.is_rounding
    assert flip.gap == pytest.approx(0.001, rel=1e-3)


def test_the_first_layer_is_named() -> None:
    flip = _flip([[0.5, 1e-9], [0.501, 0.125]], [[0.5, -1e-9], [0.5, 0.125]])
    assert flip is not None
    assert flip.layer == "relu"
    assert flip.coordinates == (0, 0, 0, 1)
    assert flip.is_rounding
