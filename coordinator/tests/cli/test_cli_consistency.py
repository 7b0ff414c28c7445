"""Verdicts of 'crosstrain data consistency' on what engines recorded."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from crosstrain.cli import consistency
from crosstrain.cli.consistency import Seen
from crosstrain_service.errors import CrosstrainError

EXPECTED = ("a", "b", "c")


@pytest.mark.parametrize(
    ("handed", "computed", "place", "verdict"),
    [
        (EXPECTED, EXPECTED, None, "identical"),
        (EXPECTED, ("a", "x", "c"), 1, "DIFFERENT in the framework, from sample 1 on"),
        (("a", "b", "x"), ("x", "b", "c"), 0, "DIFFERENT handed over, from sample 0 on"),
        (EXPECTED, ("a", "b"), 2, "DIFFERENT in the framework, from sample 2 on"),
        ((), (), 0, "DIFFERENT handed over, from sample 0 on"),
    ],
)
def test_verdicts(handed: tuple[str, ...], computed: tuple[str, ...], place: int | None, verdict: str) -> None:
    seen = Seen("torch@2", handed, computed)
    assert seen.first_difference(EXPECTED) == place
    assert seen.identical(EXPECTED) == (place is None)
    assert seen.verdict(EXPECTED) == verdict


def test_an_engine_that_failed_is_not_identical() -> None:
    seen = Seen("torch@2", error="no registered service offers it")
    assert not seen.identical(())
    assert seen.verdict(()) == seen.error


def test_a_transposed_sample_has_another_digest() -> None:
    """What a framework that keeps NHWC would give if its flatten were not translated back."""
    samples = np.arange(24, dtype=np.float64).reshape(1, 2, 3, 4)
    digests = consistency._digests(samples)
    assert digests == (hashlib.sha256(samples.astype("<f4").tobytes()).hexdigest(),)
    assert consistency._digests(samples.reshape(1, -1)) == digests
    assert consistency._digests(samples.transpose(0, 2, 3, 1)) != digests


def test_values_beyond_float32_are_not_rounded_silently() -> None:
    with pytest.raises(CrosstrainError):
        consistency._digests(np.full((1, 2), 0.1))
