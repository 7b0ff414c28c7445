"""The envelope of perturbed runs, and the rank test against them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crosstrain.compare.freerun.envelope import (
    MINIMUM_RUNS,
    Envelope,
    envelope,
    outside_share,
    running_maximum,
    stays_inside,
)
from crosstrain.compare.freerun.rank import RankTest, rank_test
from crosstrain.compare.freerun.traces import LossTrace

#: Measured on cnn2 (digits, batch 64, momentum): absolute differences of the loss at some steps.
AT = [1, 10, 20, 50, 119]
FLOAT32_FROM_FLOAT64 = [1.7e-7, 8e-8, 4.5e-5, 1.1e-2, 1.3e-2]
NON_ZERO_WEIGHTS_MOVED = [1.7e-7, 8e-8, 4.7e-5, 1.9e-2, 1.9e-2]
ZERO_BIASES_MOVED_TOO = [2.4e-4, 7.5e-3, 7e-2, 0.19, 3.7e-2]

STEPS = np.arange(120)
BASE = 2.3 * np.exp(-STEPS / 60)


def _run(shape: list[float], seed: int) -> LossTrace:
    """A run whose distance from BASE has the shape, up to a factor drawn anew every step, with random sign."""
    random = np.random.default_rng(seed)
    size = np.exp(np.interp(STEPS, AT, np.log(shape)))
    return LossTrace(STEPS, BASE + size * np.abs(random.standard_normal(120)) * random.choice([-1, 1], 120))


@pytest.mark.parametrize("seed", range(10))
def test_the_measured_drift_stays_inside_four_runs(seed: int) -> None:
    base = LossTrace(STEPS, BASE)
    found = envelope(base, [_run(NON_ZERO_WEIGHTS_MOVED, 100 * seed + number) for number in range(4)])
    share = outside_share(_run(FLOAT32_FROM_FLOAT64, 9000 + seed), base, found)
    assert share is not None and share < 0.05
    assert stays_inside(share, 4, None) is True
    other = outside_share(_run(ZERO_BIASES_MOVED_TOO, 9500 + seed), base, found)
    assert other is not None and other > 0.2
    assert stays_inside(other, 4, None) is False


def test_steps_before_the_departure_do_not_dilute_what_follows() -> None:
    base = LossTrace(STEPS, BASE)
    found = envelope(base, [_run(NON_ZERO_WEIGHTS_MOVED, number) for number in range(4)])
    late = LossTrace(STEPS, np.where(STEPS < 90, BASE, BASE + np.where(STEPS % 2, 1.0, 0.0)))
    assert outside_share(late, base, found) == pytest.approx(15 / 120)
    assert outside_share(late, base, found, since=90) == pytest.approx(0.5)
    assert outside_share(late, base, found, since=110) == pytest.approx(15 / 120), "too few steps follow"


TRACES = st.lists(
    st.lists(st.floats(0.01, 100) | st.sampled_from([np.inf, np.nan]), min_size=15, max_size=15), min_size=2, max_size=6
)


@settings(deadline=None)
@given(TRACES, st.integers(0, 5))
def test_it_contains_its_members(losses: list[list[float]], window: int) -> None:
    base, *others = (LossTrace(np.arange(15), np.array(values)) for values in losses)
    found = envelope(base, others, window=window)
    assert found.runs == len(others)
    for member in others:
        assert outside_share(member, base, found) in (None, 0.0)
        inside = np.isfinite(found.band) & np.isfinite(member.losses) & np.isfinite(base.losses)
        assert (np.abs(member.losses[inside] - base.losses[inside]) <= found.band[inside]).all()


@settings(deadline=None)
@given(st.lists(st.floats(0, 10), max_size=40), st.integers(0, 8))
def test_running_maximum(values: list[float], window: int) -> None:
    found = running_maximum(np.array(values, dtype=np.float64), window)
    wanted = [max(values[max(0, at - window) : at + window + 1]) for at in range(len(values))]
    assert found.tolist() == wanted


def test_repeats_of_the_engine_widen_its_band() -> None:
    base = LossTrace(STEPS, BASE)
    found = envelope(base, [LossTrace(STEPS, BASE + 1e-4)] * 4)
    run = LossTrace(STEPS, BASE + 1e-2)
    assert outside_share(run, base, found) == 1.0
    assert outside_share(run, base, found, [LossTrace(STEPS, BASE + 3e-2)]) == 0.0
    pooled = envelope(base, [LossTrace(STEPS, BASE + 1e-4)] * 4, [LossTrace(STEPS, BASE + 2e-2)])
    assert outside_share(run, base, pooled) == 0.0
    assert pooled.runs == 4


def test_rounding_of_the_loss_itself_is_never_outside() -> None:
    base = LossTrace(STEPS, BASE)
    found = envelope(base, [base] * 4)
    assert outside_share(LossTrace(STEPS, BASE * (1 + 9e-7)), base, found) == 0.0
    assert outside_share(LossTrace(STEPS, BASE * (1 + 1e-5)), base, found) == 1.0


def test_runs_of_other_lengths_count_where_they_have_steps() -> None:
    base = LossTrace(STEPS, BASE)
    found = envelope(base, [LossTrace(STEPS[:80], BASE[:80] + 1e-3)] * 4)
    assert len(found.steps) == 80
    run = LossTrace(STEPS[40:], BASE[40:] + np.where(STEPS[40:] < 60, 0.0, 1.0))
    assert outside_share(run, base, found) == pytest.approx(0.5)
    assert outside_share(LossTrace(STEPS[100:], BASE[100:]), base, found) is None


def test_steps_at_which_a_perturbed_run_diverged_do_not_count() -> None:
    losses = BASE.copy()
    losses[60:] = np.nan
    found = envelope(LossTrace(STEPS, BASE), [LossTrace(STEPS, losses)] * 4)
    far = LossTrace(STEPS, np.where(STEPS < 50, BASE, 99.0))
    assert outside_share(far, LossTrace(STEPS, BASE), found) == 0.0


def test_an_empty_envelope_says_nothing() -> None:
    nothing = LossTrace(np.arange(0), np.empty(0))
    found = envelope(nothing, [nothing] * 4)
    assert isinstance(found, Envelope)
    assert outside_share(nothing, nothing, found) is None
    assert stays_inside(None, 4, None) is None


def test_too_few_runs_decide_nothing() -> None:
    assert stays_inside(0.0, MINIMUM_RUNS - 1, None) is None
    assert stays_inside(0.0, MINIMUM_RUNS, None) is True
    assert stays_inside(0.21, 4, RankTest(9.0, 0.8, 4)) is False
    assert stays_inside(0.21, 19, RankTest(9.0, 0.8, 19)) is True
    assert stays_inside(0.21, 19, RankTest(9.0, 0.05, 19)) is False


def _noise(seed: int, scale: float) -> LossTrace:
    random = np.random.default_rng(seed)
    steps: NDArray[np.int64] = np.arange(30)
    return LossTrace(steps, 1.0 + scale * np.cumsum(random.standard_normal(30)))


def test_the_rank_test_is_exact() -> None:
    """Of runs that only chance sets apart, no more than one in twenty is significant."""
    centre = LossTrace(np.arange(30), np.ones(30))
    found = []
    for trial in range(300):
        runs = [_noise(1000 * trial + number, 1e-3) for number in range(20)]
        test = rank_test(runs[0], centre, runs[1:])
        assert test is not None and test.conclusive
        found.append(test.p_value)
    significant = sum(value <= 0.05 for value in found)
    # Binomial, 300 trials of 0.05: mean 15, standard deviation 3.8.
    assert 4 <= significant <= 26
    assert np.mean(found) == pytest.approx(0.525, abs=0.06)


def test_a_run_that_is_farther_is_found_given_enough_runs() -> None:
    centre = LossTrace(np.arange(30), np.ones(30))
    for count, conclusive in ((4, False), (18, False), (19, True), (40, True)):
        test = rank_test(_noise(1, 1.0), centre, [_noise(10 + number, 1e-4) for number in range(count)])
        assert test is not None
        assert test.p_value == test.smallest_p == 1 / (count + 1)
        assert test.conclusive is conclusive is test.significant


@settings(max_examples=50, deadline=None)
@given(TRACES)
def test_p_values_are_multiples_of_the_smallest(losses: list[list[float]]) -> None:
    centre, run, *others = (LossTrace(np.arange(15), np.array(values)) for values in losses)
    test = rank_test(run, centre, others)
    if not others:
        assert test is None
        return
    assert test is not None
    assert test.p_value * (test.runs + 1) == pytest.approx(round(test.p_value * (test.runs + 1)))
    assert test.smallest_p <= test.p_value <= 1


def test_a_run_that_ended_early_is_ranked_over_its_own_steps() -> None:
    """The perturbed runs are far out only where the run has no steps any more."""
    centre = LossTrace(np.arange(30), np.ones(30))
    late = np.where(np.arange(30) < 15, 1.0, 9.0)
    others = [LossTrace(np.arange(30), late)] * 19
    run = LossTrace(np.arange(15), np.full(15, 1.01))
    known = [5.0] * 19
    for test in (rank_test(run, centre, others), rank_test(run, centre, others, known)):
        assert test is not None
        assert test.p_value == 0.05


def test_runs_that_are_equally_far_out_count_as_far() -> None:
    centre = LossTrace(np.arange(30), np.ones(30))
    test = rank_test(centre, centre, [centre] * 19)
    assert test is not None
    assert (test.p_value, test.statistic) == (1.0, 0.0)


def test_the_rank_test_needs_shared_steps() -> None:
    centre = LossTrace(np.arange(30), np.ones(30))
    assert rank_test(LossTrace(np.arange(0), np.empty(0)), centre, [centre]) is None
