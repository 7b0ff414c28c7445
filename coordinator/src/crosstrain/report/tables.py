"""Columns for the charts, short enough to embed: indices into lists of labels, rounded numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .shown import Shown, engines
from .text import told
from .thin import Array, first_above, kept, relative_difference

#: Where the difference chart ends below; smaller differences, and none at all, are drawn there.
FLOOR = 1e-9
#: A relative difference above which a run has left the reference, unless the verdict names another, and one that
#: anyone can see.
DEPARTURE, HORIZON = 1e-6, 1e-3

#: Kinds of marks in the difference chart.
FLIPS, DEPARTS, DIVERGES = "first decision flip", "leaves rounding", "divergence horizon (1e-3)"

Table = dict[str, Any]


@dataclass
class Traces:
    """What the training chart draws, thinned.

    Both tables have the columns ``engine``, ``step``, ``loss`` and ``difference`` (null where there is
    none): ``losses`` has the peaks of the losses, ``gaps`` those of the differences. ``marks`` are
    objects with engine, step, difference and kind.
    """

    losses: Table
    gaps: Table
    marks: list[dict[str, Any]]


def trace_tables(
    shown: Sequence[Shown], reference: Shown | None, verdict: Mapping[str, Any], buckets: int
) -> Traces:
    """Losses and relative differences to the reference by step, and where each run parts from it.

    Of a difference only the largest of each bucket is kept: it crosses zero all the time, which says
    nothing and would fill the chart.
    """
    losses, gaps = _Columns(), _Columns()
    marks: list[dict[str, Any]] = []
    judged = {str(engine.get("label")): engine.get("free_run") for engine in engines(verdict)}
    limit = departure(verdict)
    for index, item in enumerate(shown):
        if not item.run.trained:
            continue
        steps, values = item.run.steps["step"], np.asarray(item.run.steps["loss"], np.float64)
        difference = np.full(len(steps), np.nan)
        if reference is not None and item is not reference:
            base = reference.run.steps
            difference = relative_difference(steps, values, base["step"], base["loss"])
            marks += _marks(item.label, steps, difference, judged.get(item.label, {}), limit)
            gaps.add(index, kept(difference, buckets, lows=False), steps, values, difference)
        losses.add(index, kept(values, buckets), steps, values, difference)
    labels = [item.label for item in shown]
    return Traces(losses.table(labels), gaps.table(labels), marks)


class _Columns:
    def __init__(self) -> None:
        self.held: dict[str, list[Any]] = {"engine": [], "step": [], "loss": [], "difference": []}

    def add(self, index: int, rows: Array, steps: Array, losses: Array, difference: Array) -> None:
        self.held["engine"] += [index] * len(rows)
        self.held["step"] += steps[rows].tolist()
        self.held["loss"] += _short(losses[rows], 6)
        self.held["difference"] += _short(np.where(difference < FLOOR, FLOOR, difference)[rows], 4)

    def table(self, labels: list[str]) -> Table:
        return {**self.held, "engine": _coded(labels, self.held["engine"])}


def departure(verdict: Mapping[str, Any]) -> float:
    """The relative difference above which a run has left the reference."""
    value = told(verdict.get("departure"))
    return value if value is not None and 0 < value < np.inf else DEPARTURE


def _marks(
    label: str, steps: Array, difference: Array, judged: Any, departure: float = DEPARTURE
) -> list[dict[str, Any]]:
    """Where a run parts from the reference: as the verdict says, else by the same limits."""
    found = []
    for kind, limit, name in (
        (DEPARTS, departure, "departed_step"),
        (DIVERGES, HORIZON, "horizon_step"),
    ):
        step = judged.get(name) if isinstance(judged, Mapping) else None
        if not isinstance(step, int):
            step = first_above(steps, difference, limit)
        at = np.flatnonzero(steps == (-1 if step is None else step))
        if at.size and np.isfinite(difference[at[0]]):
            value = max(FLOOR, float(difference[at[0]]))
            found.append({"engine": label, "step": step, "kind": kind, "difference": value})
    return found


def flip_marks(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Marks for the first decision that each engine took differently, at the chart's lower edge."""
    marks = []
    for engine in engines(verdict):
        run = engine.get("free_run")
        flip = run.get("flip") if isinstance(run, Mapping) else None
        step = flip.get("step") if isinstance(flip, Mapping) else None
        if isinstance(step, int) and step >= 0:
            label = str(engine.get("label") or "")
            marks.append({"engine": label, "step": step, "kind": FLIPS, "difference": 2 * FLOOR})
    return marks


def envelope_table(verdict: Mapping[str, Any], reference: Shown | None, points: int) -> Table:
    """Lowest and highest loss of the perturbed runs by step, and their relative distance to the reference."""
    held = verdict.get("envelope")
    lists = [held.get(name) if isinstance(held, Mapping) else None for name in ("steps", "low", "high")]
    if not all(isinstance(item, list) and item for item in lists):
        return {}
    steps, low, high = (np.array([_float(value) for value in item or ()]) for item in lists)
    if not len(steps) == len(low) == len(high):
        return {}
    usable = np.isfinite(steps) & np.isfinite(low) & np.isfinite(high)
    steps, low, high = steps[usable].astype(np.int64), low[usable], high[usable]
    rows = kept(high - low, max(1, points // 3))
    steps, low, high = steps[rows], low[rows], high[rows]
    table: Table = {"step": steps.tolist(), "low": _short(low, 6), "high": _short(high, 6)}
    if reference is not None and len(steps):
        base = reference.run.steps
        gaps = [relative_difference(steps, edge, base["step"], base["loss"]) for edge in (low, high)]
        gap = np.fmax(*gaps)
        table["gap"] = _short(np.where(gap < FLOOR, FLOOR, gap), 4)
    return table


def epoch_table(shown: Sequence[Shown]) -> Table:
    """Test accuracy by epoch (validation accuracy where there is no test), in percent."""
    columns: dict[str, list[Any]] = {"engine": [], "epoch": [], "accuracy": []}
    for index, item in enumerate(shown):
        for epoch in item.run.epochs:
            accuracy = epoch.validation_accuracy if epoch.test_accuracy is None else epoch.test_accuracy
            if accuracy is not None and np.isfinite(accuracy):
                columns["engine"].append(index)
                columns["epoch"].append(epoch.epoch + 1)
                columns["accuracy"].append(round(accuracy, 4))
    return {**columns, "engine": _coded([item.label for item in shown], columns["engine"])}


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The same table as one object a row."""
    columns = {
        name: [items["names"][code] for code in items["codes"]] if isinstance(items, dict) else items
        for name, items in table.items()
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _coded(names: list[str], codes: list[int]) -> dict[str, Any]:
    return {"names": names, "codes": codes}


def _short(values: Array, digits: int) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]


def _float(value: Any) -> float:
    found = told(value)
    return float("nan") if found is None else found
