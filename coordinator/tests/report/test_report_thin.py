"""Traces get fewer points and keep their peaks."""

from __future__ import annotations

import numpy as np
import pytest

from crosstrain.report.thin import first_above, kept, quantiles, relative_difference, time_parts


def test_short_traces_are_kept_whole() -> None:
    assert kept(np.arange(100.0), 50).tolist() == list(range(100))


@pytest.mark.parametrize("position", [777, 50_001, 149_999])
def test_every_peak_of_a_long_trace_is_kept(position: int) -> None:
    values = np.random.default_rng(0).random(150_000)
    values[position] = 40.0
    values[position - 5] = -40.0
    rows = kept(values, 400)
    assert {position, position - 5, 0, 149_999} <= set(rows.tolist())
    assert len(rows) <= 5 * 400 + 66
    assert (np.diff(rows) > 0).all()


def test_lows_are_left_out_where_only_peaks_matter() -> None:
    values = np.random.default_rng(0).random(150_000)
    values[50_001] = -1.0
    assert 50_001 not in kept(values, 400, lows=False)
    assert len(kept(values, 400, lows=False)) < len(kept(values, 400))


def test_where_losses_stop_being_finite_is_kept() -> None:
    values = np.random.default_rng(0).random(150_000)
    values[70_123:] = np.nan
    assert {70_122, 70_123} <= set(kept(values, 100).tolist())
    assert len(kept(np.full(150_000, np.nan), 100)) > 0


def test_the_start_is_dense() -> None:
    assert set(range(64)) <= set(kept(np.zeros(10_000), 10).tolist())


def test_difference_is_relative_to_the_reference_at_the_same_step() -> None:
    steps, losses = np.array([0, 1, 2, 5]), np.array([1.0, 2.0, np.nan, 4.0])
    base_steps, base = np.array([0, 1, 2, 3]), np.array([1.0, 1.0, 2.0, 9.0])
    found = relative_difference(steps, losses, base_steps, base)
    assert found[:3].tolist() == [0.0, 1.0, np.inf]
    assert np.isnan(found[3])


def test_two_losses_that_are_not_finite_have_no_difference() -> None:
    one = np.array([0])
    assert np.isnan(relative_difference(one, np.array([np.nan]), one, np.array([np.inf]))[0])
    assert relative_difference(one, np.array([np.inf]), one, np.array([np.inf]))[0] == 0


def test_first_step_above_a_limit() -> None:
    assert first_above(np.array([3, 4, 5]), np.array([np.nan, 1e-7, 1e-2]), 1e-3) == 5
    assert first_above(np.array([3]), np.array([1e-7]), 1e-3) is None


def test_quantiles_leave_out_what_is_no_time() -> None:
    found = quantiles(np.array([0.0, -1.0, np.nan, np.inf, 1.0, 2.0, 3.0]))
    assert found is not None
    assert (found["least"], found["median"], found["most"]) == (1.0, 2.0, 3.0)
    assert quantiles(np.array([0.0])) is None


def test_what_no_part_accounts_for_is_other() -> None:
    steps = {"step_seconds": np.array([2.0, 2.0]), "compute_seconds": np.array([1.0, np.nan])}
    assert time_parts(steps) == {
        "data": 0.0,
        "copy": 0.0,
        "compute": 1.0,
        "sync": 0.0,
        "callback": 0.0,
        "other": 3.0,
    }
