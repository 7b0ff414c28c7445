"""Differences of loss traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosstrain.compare.freerun.traces import LossTrace, difference


def _trace(losses: list[float], start: int = 0) -> LossTrace:
    return LossTrace(np.arange(start, start + len(losses)), np.array(losses, dtype=np.float64))


def test_equal_traces() -> None:
    found = difference(_trace([2.0, 1.5, float("nan")]), _trace([2.0, 1.5, float("nan")]))
    assert found.equal and found.same_steps
    assert (found.steps_compared, found.max_abs, found.max_step, found.departed_step) == (3, 0.0, -1, -1)


def test_departure_and_horizon_are_relative_to_the_larger_loss() -> None:
    base = [100.0] * 5
    other = [100.0, np.nextafter(100.0, 101), 100.0 + 2e-4, 100.0, 100.2]
    found = difference(_trace(base), _trace(other))
    assert not found.equal
    assert found.first_different_step == 1
    assert found.departed_step == 2
    assert found.horizon_step == 4
    assert found.max_abs == pytest.approx(0.2)
    assert found.max_step == 4


def test_a_difference_below_the_limits_departs_nowhere() -> None:
    found = difference(_trace([1.0, 1.0]), _trace([1.0, 1.0 + 9e-7]))
    assert (found.first_different_step, found.departed_step, found.horizon_step) == (1, -1, -1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_infinitely_far(bad: float) -> None:
    found = difference(_trace([1.0, 1.0, 1.0]), _trace([1.0, bad, 1.0]))
    assert np.isinf(found.max_abs)
    assert found.max_step == found.departed_step == found.horizon_step == found.first_different_step == 1


def test_two_nan_of_different_bits_differ_bitwise_but_are_no_distance_apart() -> None:
    other = np.array([np.uint64(0xFFF8000000000001)]).view(np.float64)
    found = difference(_trace([float("nan")]), LossTrace(np.arange(1), other))
    assert not found.equal
    assert found.first_different_step == 0
    assert (found.max_abs, found.departed_step) == (0.0, -1)


def test_zeros_of_both_signs_differ_bitwise_only() -> None:
    found = difference(_trace([0.0]), _trace([-0.0]))
    assert not found.equal
    assert (found.first_different_step, found.departed_step, found.max_step) == (0, -1, -1)


def test_traces_of_different_steps_are_compared_where_both_have_them() -> None:
    found = difference(_trace([5.0, 1.0, 2.0]), _trace([1.0, 2.5, 7.0, 8.0], start=1))
    assert found.steps_compared == 2
    assert found.lengths == (3, 4)
    assert not found.same_steps
    assert found.first_different_step == 2


def test_traces_without_common_steps_are_not_equal() -> None:
    for other in (_trace([]), _trace([1.0], start=9)):
        found = difference(_trace([1.0]), other)
        assert not found.equal
        assert found.steps_compared == 0


@pytest.mark.parametrize(
    "steps, losses", [([0, 1], [1.0]), ([1, 0], [1.0, 1.0]), ([0, 0], [1.0, 1.0]), ([-1], [1.0]), ([[0]], [[1.0]])]
)
def test_damaged_traces_are_refused(steps: list[int], losses: list[float]) -> None:
    with pytest.raises(ValueError, match="trace"):
        LossTrace(np.array(steps), np.array(losses))


def test_learning_rates_need_every_step() -> None:
    with pytest.raises(ValueError, match="learning rates"):
        LossTrace(np.arange(2), np.ones(2), np.ones(3))
    assert LossTrace.of({0: 1.0, 1: 1.0}, {0: 0.1}).rates is None


def test_rate_changes() -> None:
    trace = LossTrace.of({3: 1.0, 1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1, 3: 0.01})
    assert trace.steps.tolist() == [1, 2, 3]
    assert trace.rate_changes().tolist() == [3]
    assert _trace([1.0, 1.0]).rate_changes().tolist() == []


FLOATS = st.floats(width=64, allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=30))
def test_symmetric_and_consistent(pairs: list[tuple[float, float]]) -> None:
    a, b = _trace([left for left, _ in pairs]), _trace([right for _, right in pairs])
    found, swapped = difference(a, b), difference(b, a)
    assert found == swapped
    assert not (found.max_abs < 0 or np.isnan(found.max_abs))
    assert (found.departed_step == -1) <= (found.horizon_step == -1)
    if found.departed_step >= 0:
        assert found.first_different_step <= found.departed_step
    if found.equal:
        assert found.max_abs == 0


def test_a_small_loss_keeps_the_rounding_of_its_logarithm() -> None:
    """A float32 loss of 1e-4 is off by 1e-7 and more: relative to itself that would be no rounding."""
    found = difference(_trace([1e-4, 1e-4]), _trace([1e-4 + 4e-7, 1e-4 + 6e-7]))
    assert (found.departed_step, found.horizon_step) == (1, 1)
