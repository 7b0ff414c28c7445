"""Initial weights moved by one unit in the last place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from crosstrain.compare.freerun.perturbation import perturb

VALUES = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda kind: arrays.arrays(
        kind,
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements=arrays.from_dtype(np.dtype(kind), allow_nan=False, allow_infinity=False, allow_subnormal=True),
    )
)


@settings(deadline=None)
@given(VALUES, st.integers(0, 2**32))
def test_zeros_stay_and_all_else_moves_by_one_place(value: NDArray[Any], seed: int) -> None:
    moved = perturb({"w": value}, seed)["w"]
    assert moved.dtype == value.dtype and moved.shape == value.shape
    assert np.isfinite(moved).all()
    zero = value == 0
    assert np.array_equal(np.signbit(moved[zero]), np.signbit(value[zero]))
    assert (moved[zero] == 0).all()
    assert (moved[~zero] != 0).all()
    neighbour = np.nextafter(value, moved)
    assert np.array_equal(neighbour[~zero], moved[~zero])
    assert (moved[~zero] != value[~zero]).all()


def test_directions_are_random_and_repeat_with_the_seed() -> None:
    value = np.full(10_000, 0.5, np.float32)
    one, again, other = (perturb({"w": value}, seed)["w"] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    # Six standard deviations of a fair coin.
    assert abs(int((one > value).sum()) - 5000) < 300


def test_a_tensor_moves_alike_whatever_others_there_are() -> None:
    value = np.linspace(-1, 1, 50, dtype=np.float32)
    alone = perturb({"w": value}, 3)["w"]
    among = perturb({"a": value, "w": value}, 3)
    assert np.array_equal(alone, among["w"])
    assert not np.array_equal(among["a"], among["w"])


@pytest.mark.parametrize(
    "value", [np.array([1, 2]), np.array([1.0, np.nan]), np.array([np.inf]), np.ones(2, np.float16)]
)
def test_other_tensors_are_refused_by_name(value: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="conv1.weight"):
        perturb({"conv1.weight": value}, 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed -1"):
        perturb({}, -1)
