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


@pytest.mark.parametrize(("half", "digits"), [("float16", 10), ("bfloat16", 7)])
def test_in_mixed_precision_entries_move_by_one_place_of_the_half_type(half: str, digits: int) -> None:
    value = np.random.default_rng(4).normal(0, 0.1, 5000).astype(np.float32)
    value[:3] = 0, 1, -1.999
    moved = perturb({"w": value}, 0, half)["w"]
    assert moved.dtype == np.float32 and moved[0] == 0
    step = np.abs(moved.astype(np.float64) - value)[1:]
    exponent = np.floor(np.log2(np.abs(value[1:].astype(np.float64))))
    expected = 2.0 ** (np.maximum(exponent, -14 if half == "float16" else -126) - digits)
    # float32 holds 13 (16) binary places more than the half type: the move itself is all but exact.
    assert np.allclose(step, expected, rtol=2.0 ** (digits - 22))
    assert abs(int((moved > value).sum()) - 2500) < 300
    # Moved by one place of float32, nearly all would still be the same half-precision number.
    if half == "float16":
        assert (moved.astype(np.float16) != value.astype(np.float16))[1:].mean() > 0.99
        assert (perturb({"w": value}, 0)["w"].astype(np.float16) != value.astype(np.float16)).mean() < 0.01


def test_entries_below_the_half_type_keep_their_sign() -> None:
    tiny = np.array([1e-9, -1e-9, 3e-8, -70000.0], np.float32)
    for seed in range(8):
        moved = perturb({"w": tiny}, seed, "float16")["w"]
        assert np.array_equal(np.sign(moved), np.sign(tiny)) and np.isfinite(moved).all()
    with pytest.raises(ValueError, match="int8"):
        perturb({}, 0, "int8")


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
