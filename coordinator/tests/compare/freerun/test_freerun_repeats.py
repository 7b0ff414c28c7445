"""Repeats of one engine beside its distance from another."""

from __future__ import annotations

import numpy as np
import pytest

from crosstrain.compare.freerun.repeats import repeats
from crosstrain.compare.freerun.traces import LossTrace


def _trace(losses: list[float]) -> LossTrace:
    return LossTrace(np.arange(len(losses)), np.array(losses))


def test_an_engine_that_repeats_itself() -> None:
    run = _trace([2.0, 1.0])
    found = repeats(run, [_trace([2.0, 1.0]), _trace([2.0, 1.0])], _trace([2.0, 1.1]))
    assert found is not None
    assert (found.runs, found.bitwise_equal, found.first_different_step) == (3, True, -1)
    assert not found.non_deterministic and not found.dominates
    assert found.own_variance == 0


def test_differences_of_repeats_as_large_as_those_of_engines_are_non_determinism() -> None:
    run, other = _trace([2.0, 1.0, 0.5]), _trace([2.0, 1.2, 0.8])
    found = repeats(run, [other], _trace([2.0, 1.1, 0.6]))
    assert found is not None
    assert found.first_different_step == 1
    assert found.max_difference == pytest.approx(0.3)
    # Half the squared difference, averaged over three steps.
    assert found.own_variance == pytest.approx((0.2**2 + 0.3**2) / 6)
    assert found.dominates


def test_engines_farther_apart_than_repeats() -> None:
    found = repeats(_trace([2.0, 1.0]), [_trace([2.0, 1.0 + 1e-7])], _trace([2.0, 1.5]))
    assert found is not None
    assert found.non_deterministic and not found.dominates


def test_without_repeats_or_shared_steps_there_is_nothing_to_say() -> None:
    run = _trace([1.0])
    assert repeats(run, []) is None
    assert repeats(run, [LossTrace(np.array([5]), np.array([1.0]))]) is None


def test_steps_that_only_some_have_are_left_out_of_variances() -> None:
    found = repeats(_trace([1.0, 1.0, 9.0]), [_trace([1.0, 1.0])], _trace([1.0]))
    assert found is not None
    assert found.bitwise_equal
    assert (found.own_variance, found.cross_variance) == (0.0, 0.0)


def test_losses_that_are_not_finite() -> None:
    found = repeats(_trace([1.0, np.nan]), [_trace([1.0, 2.0])], _trace([1.0, np.inf]))
    assert found is not None
    assert found.non_deterministic and found.dominates
    assert np.isinf(found.max_difference)
