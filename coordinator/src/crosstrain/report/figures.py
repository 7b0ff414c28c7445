"""The figures of a report: a chart, its tables, and a picture of it for where no script may run."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import vl_convert

from . import charts
from .shown import Shown
from .tables import Table, departure, envelope_table, epoch_table, flip_marks, rows_of, trace_tables
from .thin import finite_sum, quantiles, time_parts

#: Version of Vega-Lite that the page and the pictures are drawn with.
VEGA_LITE = "6.4"
#: Losses that span more than this are drawn on a logarithmic axis.
_WIDE = 100.0
_PICTURE_WIDTH, _HALF_WIDTH = 820, 360
#: Points a run in a picture: more would not be seen.
_PICTURE_BUCKETS = 120
#: Okabe and Ito's colours for light backgrounds; yellow, which is too pale there, is darkened.
_COLOURS = ["#111111", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
_PARTS = ["#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#9aa0a6"]

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A chart: its specification, and its data by name, as columns or rows."""

    name: str
    spec: dict[str, Any]
    data: dict[str, Table | Rows] = field(default_factory=dict)
    picture: str = ""


def make_figures(
    verdict: Mapping[str, Any],
    shown: Sequence[Shown],
    reference: Shown | None,
    buckets: int,
    *,
    pictures: bool,
) -> dict[str, Figure]:
    """The figures that the data allow, by name.

    Args:
        buckets: how many intervals of steps a trace is thinned to; each keeps its peaks.
        pictures: whether each figure gets a picture, as an SVG document in a data URL.
    """
    labels = [item.label for item in shown]
    figures: dict[str, Figure] = {}
    trained = [item for item in shown if item.run.trained]
    if trained:
        figures["training"] = _training(verdict, shown, reference, buckets, interactive=True)
    epochs = _many_epochs(shown)
    if epochs:
        last = max(row["epoch"] for row in epochs)
        figures["accuracy"] = Figure("accuracy", charts.accuracy(labels, last), {"epochs": epochs})
    times = time_rows(trained)
    if times:
        figures["times"] = Figure("times", charts.step_times(labels), {"times": times})
        figures["times"].spec["height"] = 30 * len(times)
    for name, draw, rows in (
        ("parts", charts.time_parts, part_rows(trained)),
        ("memory", charts.memory, memory_rows(shown)),
    ):
        if rows:
            present = {row["part"] for row in rows}
            figures[name] = Figure(name, draw(labels, present), {name: rows})
            figures[name].spec["height"] = 26 * len({row["engine"] for row in rows})
    if not pictures:
        return figures
    drawn = dict(figures)
    if trained:
        drawn["training"] = _training(
            verdict, shown, reference, min(buckets, _PICTURE_BUCKETS), interactive=False
        )
    return {
        name: Figure(name, figure.spec, figure.data, _picture(drawn[name]))
        for name, figure in figures.items()
    }


def _training(
    verdict: Mapping[str, Any],
    shown: Sequence[Shown],
    reference: Shown | None,
    buckets: int,
    *,
    interactive: bool,
) -> Figure:
    traces = trace_tables(shown, reference, verdict, buckets)
    marks = traces.marks
    envelope = envelope_table(verdict, reference, 3 * buckets)
    labels = [item.label for item in shown]
    marks += [mark for mark in flip_marks(verdict) if mark["engine"] in labels]
    losses = [value for value in traces.losses["loss"] if value is not None]
    wide = bool(losses) and min(losses) > 0 and max(losses) / min(losses) > _WIDE
    difference = any(value is not None for value in traces.gaps["difference"])
    spec = charts.training(
        labels, envelope=bool(envelope), difference=difference, logarithmic=wide, interactive=interactive
    )
    data: dict[str, Table | Rows] = {"trace": traces.losses}
    if difference:
        data |= {"gaps": traces.gaps, "marks": list(marks), "limits": list(charts.limits(departure(verdict)))}
    if envelope:
        data["envelope"] = envelope
    return Figure("training", spec, data)


def _many_epochs(shown: Sequence[Shown]) -> Rows:
    rows = rows_of(epoch_table(shown))
    return rows if len({row["epoch"] for row in rows}) > 1 else []


def time_rows(shown: Sequence[Shown]) -> Rows:
    """Milliseconds per step of each engine: quantiles without the first step, which is apart."""
    rows: Rows = []
    for item in shown:
        seconds = np.asarray(item.run.steps.get("step_seconds", ()), np.float64)
        first = item.run.steps["step"][0] == 0 if len(seconds) else False
        found = quantiles(seconds[1:] if first and len(seconds) > 1 else seconds)
        if found is None:
            continue
        row: dict[str, Any] = {"engine": item.label}
        row |= {name: _digits(1e3 * value) for name, value in found.items()}
        row["first"] = _digits(1e3 * float(seconds[0])) if first and seconds[0] > 0 else None
        row["steps"] = len(seconds)
        samples = finite_sum(item.run.steps.get("samples"))
        total = finite_sum(seconds)
        row["rate"] = _digits(samples / total) if samples and total > 0 else None
        rows.append(row)
    return rows


def part_rows(shown: Sequence[Shown]) -> Rows:
    """Seconds of each engine by what they were spent on."""
    rows: Rows = []
    for item in shown:
        parts = time_parts(item.run.steps)
        total = sum(parts.values())
        if total <= 0:
            continue
        for order, name in enumerate(charts.COMPONENTS):
            seconds = parts[name]
            if seconds > 0:
                share = _digits(seconds / total)
                values = {"part": name, "order": order, "seconds": _digits(seconds), "share": share}
                rows.append({"engine": item.label, **values})
    return rows


def memory_rows(shown: Sequence[Shown]) -> Rows:
    """Peak memory of each engine in megabytes (10^6 bytes)."""
    rows: Rows = []
    for item in shown:
        peak, start = item.run.memory_peak_bytes, item.run.memory_after_import_bytes
        parts: list[tuple[str, int]] = []
        if peak and start and start <= peak:
            parts = [("after import", start), ("added by the run", peak - start)]
        elif peak:
            parts = [("whole process", peak)]
        if item.run.gpu_memory_peak_bytes:
            parts.append(("GPU", item.run.gpu_memory_peak_bytes))
        for order, (name, size) in enumerate(parts):
            rows.append(
                {"engine": item.label, "part": name, "order": order, "megabytes": round(size / 1e6, 1)}
            )
    return rows


def _picture(figure: Figure) -> str:
    """The chart as a data URL; drawn in the colours of a light page."""
    spec = {**figure.spec, "datasets": {}, "background": "white"}
    for name, table in figure.data.items():
        spec["datasets"][name] = rows_of(table) if isinstance(table, dict) else table
    for view in spec.get("vconcat", [spec]):
        view["width"] = _PICTURE_WIDTH if figure.name in ("training", "accuracy") else _HALF_WIDTH
    config = {
        "range": {"category": _PARTS if figure.name in ("parts", "memory") else _COLOURS},
        "font": "sans-serif",
        "view": {"stroke": None},
        "axis": {"labelOverlap": "greedy", "titleFontWeight": "normal"},
        "axisY": {"minExtent": 56},
        "style": {"mark": {"stroke": "#000"}, "segment": {"stroke": "#fff"}},
    }
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=config)
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
