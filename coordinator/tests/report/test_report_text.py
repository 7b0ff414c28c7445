"""Values as texts: whatever a file holds gives a text."""

from __future__ import annotations

from typing import Any

import pytest

from crosstrain.report import text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0.123456, "0.1235"),
        (1.2e-9, "1.2e-09"),
        (12345, "12,345"),
        ("inf", "∞"),
        (float("nan"), "NaN"),
        ("word", "word"),
        (10**400, "∞"),
    ],
)
def test_numbers(value: Any, expected: str) -> None:
    assert text.number(value) == expected


@pytest.mark.parametrize(
    ("value", "expected", "level"),
    [
        (0, "exact", "h0"),
        (1e-5, "< 0.001", "h1"),
        (0.4, "0.4", "h2"),
        (1.0, "1", "h3"),
        (1.0000001, "1", "f1"),
        (8400.0, "8,400", "f2"),
        (3e9, "3.0e9", "f2"),
        ("inf", "∞", "f3"),
        ("nan", "not comparable", "f3"),
        (None, "not comparable", "f3"),
        ("<b>", "not comparable", "f3"),
    ],
)
def test_ratios_and_their_colours(value: Any, expected: str, level: str) -> None:
    assert (text.ratio(value), text.level(value)) == (expected, level)


def test_steps_and_places() -> None:
    assert [text.step(value) for value in (-1, None, 0, 12345, "x")] == [
        "never",
        "never",
        "0",
        "12,345",
        "never",
    ]
    assert text.place({"case": "start", "step": 2}) == "start, 2"
    assert text.place({"case": "start", "step": -1}) == "start, evaluation"


def test_prose_marks_code_and_escapes_everything() -> None:
    assert text.prose("run `a <b>` & go") == "run <code>a &lt;b&gt;</code> &amp; go"
    assert text.prose("one ` alone <i>") == "one ` alone &lt;i&gt;"


def test_long_names_may_be_broken() -> None:
    assert text.breakable("keras-tensorflow@3.15.1") == "keras-<wbr>tensorflow@<wbr>3.15.1"
    assert text.breakable("a@<b>") == "a@<wbr>&lt;b&gt;"


def test_a_verdict_has_a_sign_besides_its_colour() -> None:
    assert len({text.sign(word) for word in ("IDENTICAL", "ROUNDING", "MISMATCH", "INCONCLUSIVE")}) == 4
    assert text.verdict_class("<script>") == "inconclusive"


def test_a_long_verdict_leads_with_its_first_sentence() -> None:
    first = "Keras-Theano 2.3.1 does not compute the same function: all of a window's equal elements get the gradient."
    rest = "Where a ReLU's input is 0 it passes half. " * 5
    assert text.lead(f"{first} {rest}") == (first, rest.strip())
    assert text.lead(first) == (first, "")
    assert text.lead(None) == ("", "")
