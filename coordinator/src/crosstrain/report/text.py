"""Values as short texts; anything may come in, since verdicts and tables are read from files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jinja2 import Undefined

NOTHING = "–"
#: Words of the verdict with a sign for each, so that colour is not needed.
SIGNS = {"IDENTICAL": "=", "ROUNDING": "≈", "MISMATCH": "≠", "INCONCLUSIVE": "?"}


def absent(value: Any) -> bool:
    """Whether there is no value."""
    return value is None or isinstance(value, Undefined)


def number(value: Any, digits: int = 4) -> str:
    """A number for people: four significant digits, powers of ten where it is very small or large."""
    if absent(value):
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.3e}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def exact(value: Any) -> str:
    """A number with all the digits of a float32."""
    return number(value, 9)


def ratio(value: Any) -> str:
    """Error over bound: at most 1 is rounding."""
    if absent(value) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "not comparable"
    if value == 0:
        return "exact"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def level(value: Any) -> str:
    """Class of an error over its bound for colouring: ``h0`` (exact) to ``h3`` hold, ``f1`` to ``f3`` fail."""
    if absent(value) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "f3"
    for name, limit in (("h0", 0.0), ("h1", 0.1), ("h2", 0.5), ("h3", 1.0), ("f1", 10.0), ("f2", math.inf)):
        if value <= limit:
            return name
    return "f3"


def step(value: Any) -> str:
    """A step's number; -1 and nothing mean never."""
    if absent(value) or not isinstance(value, (int, float)) or value < 0:
        return "never"
    return f"{int(value):,}"


def percent(value: Any, digits: int = 2) -> str:
    """A share from 0 to 1 in percent."""
    if absent(value) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return NOTHING
    return f"{100.0 * value:.{digits}f} %"


def coordinates(value: Any) -> str:
    """Indices as in ``[0, 3, 12, 7]``."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return NOTHING
    return "[" + ", ".join(str(item) for item in value) + "]"


def sign(value: Any) -> str:
    """The sign of a verdict."""
    return SIGNS.get(str(value), "?")


def verdict_class(value: Any) -> str:
    """The class of a verdict for colouring."""
    return str(value).lower() if str(value) in SIGNS else "inconclusive"
