"""The numbers that a cause was found with, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosstrain.compare.causes.defaults import CONSTANTS, changed, frameworks_of
from crosstrain.compare.numerics.forms import Form
from crosstrain_service.training import Rule

_NAMES = {"initial_accumulator": "initial accumulator"}


def number(value: Any) -> str:
    """A number for a text, of whatever type it is."""
    return f"{float(value):.6g}"


def note(ids: Sequence[str], computed: Sequence[Any], asked: Rule, start: Mapping[str, float]) -> str:
    """A sentence with the values under which the checks hold, or nothing where the conventions have none.

    ``computed`` are the computations that gave the engine's values, as of :class:`search.Match`; ``start`` is
    what an accumulator starts from where that is not the job's number.
    """
    if not computed:
        return ""
    first = computed[0]
    if "adagrad.initial_accumulator" in ids:
        return _sentence(start, asked, {})
    if not isinstance(first, Form):
        return ""
    if "optimizer.other_constant" in ids:
        return _sentence(changed(first.rule, asked), asked, start)
    if "optimizer.other_rule" in ids:
        constants = [f"{name} {number(getattr(first.rule, name))}" for name in CONSTANTS[first.rule.name]]
        return f"Found: {first.rule.name} with {_listed(constants)}."
    return ""


def _sentence(constants: Mapping[str, float], asked: Rule, start: Mapping[str, float]) -> str:
    if not constants:
        return ""
    parts = []
    for name, value in constants.items():
        wanted = getattr(asked, name)
        own = "" if wanted is None else f" for the job's {number(wanted)}"
        parts.append(f"{_NAMES.get(name, name)} {number(value)}{own}")
    frameworks = frameworks_of(asked.name, {**constants, **start}) or frameworks_of(asked.name, constants)
    usual = f"; default of {_listed(frameworks)}" if frameworks else ""
    return f"Found: {_listed(parts)}{usual}."


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
