"""Values as short texts; anything may come in, since verdicts and tables are read from files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Undefined
from markupsafe import Markup, escape

NOTHING = "–"
#: Letters beyond which a verdict's sentence is divided.
_LONG = 240
#: How a verdict tells numbers that JSON cannot.
_ODD = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
#: Words of the verdict with a sign for each, so that colour is not needed.
SIGNS = {"IDENTICAL": "=", "ROUNDING": "≈", "MISMATCH": "≠", "INCONCLUSIVE": "?"}


def absent(value: Any) -> bool:
    """Whether there is no value."""
    return value is None or isinstance(value, Undefined)


def told(value: Any) -> float | None:
    """The number that a verdict tells, which may be a text for infinities and NaN; None if it is none."""
    if isinstance(value, str):
        value = _ODD.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def number(value: Any, digits: int = 4) -> str:
    """A number for people: four significant digits, powers of ten where it is very small or large."""
    if absent(value):
        return NOTHING
    if isinstance(value, str):
        value = _ODD.get(value, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) and abs(value) < 10**15:
        return f"{value:,}"
    value = told(value) or 0.0
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def exact(value: Any) -> str:
    """A number with all the digits of a float32."""
    return number(value, 9)


def ratio(value: Any) -> str:
    """Error over bound: at most 1 is rounding; infinite where no error is allowed, or nothing could be compared."""
    found = told(value)
    if found is None or math.isnan(found):
        return "not comparable"
    if math.isinf(found):
        return "∞"
    if found == 0:
        return "exact"
    if found < 0.001:
        return "< 0.001"
    if found >= 1e6:
        return f"{found:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{found:.2g}" if found < 10 else f"{found:,.0f}"


def level(value: Any) -> str:
    """Class of an error over its bound for colouring: ``h0`` (exact) to ``h3`` hold, ``f1`` to ``f3`` fail."""
    found = told(value)
    if found is None or not math.isfinite(found):
        return "f3"
    for name, limit in (("h0", 0.0), ("h1", 0.1), ("h2", 0.5), ("h3", 1.0), ("f1", 10.0)):
        if found <= limit:
            return name
    return "f2"


def step(value: Any) -> str:
    """A step's number; -1 and nothing mean never."""
    found = told(value)
    return "never" if found is None or not 0 <= found < math.inf else f"{int(found):,}"


def place(row: Any) -> str:
    """Where in a probe a check is: its case and step; step -1 is the evaluation."""
    case, found = str(row.get("case") or ""), told(row.get("step"))
    where = "evaluation" if found is None or found < 0 else step(found)
    return f"{case}, {where}" if case else where


def prose(value: Any) -> Markup:
    """A text with what stands between backticks as code."""
    if absent(value):
        return Markup()
    parts = str(value).split("`")
    if len(parts) % 2 == 0:
        return escape(str(value))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def lead(value: Any) -> tuple[str, str]:
    """The first sentence of a long text, and the rest; a text that is short enough is not divided."""
    whole = "" if absent(value) else str(value).strip()
    end = re.search(r"(?<=[.!?])\s+(?=[A-Z0-9])", whole)
    if len(whole) <= _LONG or end is None:
        return whole, ""
    return whole[: end.start()], whole[end.end() :]


def breakable(value: Any) -> Markup:
    """A name that may be broken after its separators."""
    return Markup("<wbr>").join(
        escape(part) for part in re.split(r"(?<=[@._/+-])(?=[A-Za-z])|(?<=@)", str(value))
    )


def percent(value: Any, digits: int = 2) -> str:
    """A share from 0 to 1 in percent."""
    found = told(value)
    if found is None or not math.isfinite(found):
        return NOTHING
    return f"{100.0 * found:.{digits}f} %"


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
