"""Equivalence of final accuracies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from crosstrain.compare.freerun.accuracy import needed_seeds, power, tost


def _seeds(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_p_value_is_the_larger_of_two_one_sided_t_tests() -> None:
    a = [0.981, 0.979, 0.984, 0.980, 0.982, 0.978]
    b = [0.980, 0.981, 0.982, 0.979, 0.980, 0.981]
    differences = np.array(a) - np.array(b)
    above = stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, 0.01, alternative="less").pvalue
    found = tost(_seeds(a), _seeds(b), 0.01)
    assert found is not None
    assert found.p_value == pytest.approx(max(above, below))
    assert found.equivalent is True
    assert found.seeds == 6


def test_power_agrees_with_simulation() -> None:
    random = np.random.default_rng(5)
    deviation, margin, seeds = 0.006, 0.008, 9
    samples = random.normal(0, deviation, (20_000, seeds))
    error = samples.std(axis=1, ddof=1) / np.sqrt(seeds)
    quantile = stats.t.ppf(0.95, seeds - 1)
    shown = (np.abs(samples.mean(axis=1)) + quantile * error < margin).mean()
    assert power(deviation, margin, seeds) == pytest.approx(shown, abs=0.015)


def test_seeds_needed_have_the_power_and_one_fewer_has_not() -> None:
    for deviation in (0.002, 0.01, 0.05):
        needed = needed_seeds(deviation, 0.01)
        assert needed is not None and needed >= 3
        assert power(deviation, 0.01, needed) >= 0.8
        assert needed == 3 or power(deviation, 0.01, needed - 1) < 0.8
    assert needed_seeds(0.0, 0.01) == 3
    assert needed_seeds(1e6, 0.01) is None


def test_fewer_seeds_than_needed_are_inconclusive() -> None:
    found = tost(_seeds([0.98, 0.95]), _seeds([0.96, 0.97]), 0.01)
    assert found is not None
    assert found.equivalent is None
    assert found.needed_seeds is not None and found.needed_seeds > 2
    single = tost({1: 0.98}, {1: 0.98}, 0.01)
    assert single is not None
    assert (single.equivalent, single.p_value, single.needed_seeds) == (None, None, None)


def test_seeds_are_planned_with_the_upper_limit_of_the_deviation() -> None:
    """Of two differences: 3.95 times the deviation found, since the 0.2 quantile of chi2(1) is 0.0642."""
    found = tost(_seeds([0.981, 0.979]), _seeds([0.98, 0.98]), 0.01)
    assert found is not None
    assert found.needed_seeds == needed_seeds(3.947 * np.sqrt(2) * 0.001, 0.01)
    assert found.needed_seeds != needed_seeds(np.sqrt(2) * 0.001, 0.01)


def test_equal_accuracies_of_enough_seeds_are_equivalent() -> None:
    same = _seeds([0.97, 0.98, 0.99])
    found = tost(same, same, 0.01)
    assert found is not None
    assert (found.equivalent, found.p_value, found.needed_seeds) == (True, 0.0, 3)


def test_a_clear_drop_is_a_difference() -> None:
    random = np.random.default_rng(3)
    a = _seeds(list(0.95 + 0.001 * random.standard_normal(8)))
    b = _seeds(list(0.98 + 0.001 * random.standard_normal(8)))
    found = tost(a, b, 0.01)
    assert found is not None
    assert found.different
    assert found.equivalent is False
    assert found.mean_difference == pytest.approx(-0.03, abs=0.003)


def test_only_seeds_of_both_count_and_only_numbers() -> None:
    found = tost({1: 0.9, 2: 0.9, 3: float("nan"), 5: 0.9}, {1: 0.9, 2: 0.9, 3: 0.9, 4: 0.9, 5: 0.9}, 0.01)
    assert found is not None and found.seeds == 3
    assert tost({1: 0.9}, {2: 0.9}, 0.01) is None


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, float("nan")])
def test_margins_are_checked(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        tost({}, {}, margin)
