"""How engines are called in sentences, and numbers and lists in them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_NAMES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras-tensorflow": "Keras-TensorFlow",
    "keras-theano": "Keras-Theano",
    "lasagne": "Lasagne",
    "caffe": "Caffe",
    "reference": "the NumPy reference",
}


def engine_name(engine: str, version: str) -> str:
    """For example "PyTorch 2.13.0"; an engine that is not known here keeps its own name."""
    name = _NAMES.get(engine, engine)
    return f"{name} {version}" if version else name


def shown_name(engine: str, version: str, label: str) -> str:
    """The name with what its label has beside engine and version ("torch@2.13.0[data=2]")."""
    plain = f"{engine}@{version}" if version else engine
    rest = label.removeprefix(plain).strip(" ,/#[]") if label.startswith(plain) else label
    name = engine_name(engine, version)
    return f"{name} ({rest})" if rest else name


def sentence(text: str) -> str:
    """With a capital letter in front and a full stop behind."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def listed(items: Sequence[str]) -> str:
    """"a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def counted(number: int, singular: str, plural: str = "") -> str:
    """"1 check", "1,234 checks"."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def shown(value: float) -> str:
    """A number with two or three significant digits."""
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else "infinite"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.3g}"
