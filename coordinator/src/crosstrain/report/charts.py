"""The charts, as Altair specifications without data: the page binds tables to their names.

Colours come from the theme's ``category`` range, in the order of the labels. Every engine has a
dash pattern or a shape besides, so that no chart needs colour to be read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import altair as alt

from .tables import DEPARTS, DEPARTURE, DIVERGES, FLIPS, FLOOR, HORIZON

#: With seven colours these give 35 distinguishable lines.
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4])
COLOURS = 7
MARK_SHAPES = {FLIPS: "triangle-up", DEPARTS: "circle", DIVERGES: "diamond"}
MEMORY = ("after import", "added by the run", "whole process", "GPU")
COMPONENTS = ("data", "copy", "compute", "sync", "callback", "other")
_STEP = "Step"
#: Ticks of a logarithmic axis of milliseconds.
_TIMES = [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]


def dash(index: int) -> list[int]:
    """Dash pattern of the engine with this index."""
    return DASHES[index % len(DASHES)]


def _engine_colour(labels: Sequence[str]) -> alt.Color:
    return alt.Color("engine:N", scale=alt.Scale(domain=list(labels)), legend=None)


def _engine_dash(labels: Sequence[str]) -> alt.StrokeDash:
    patterns = [dash(index) for index in range(len(labels))]
    return alt.StrokeDash("engine:N", scale=alt.Scale(domain=list(labels), range=patterns), legend=None)


def training(
    labels: Sequence[str], *, envelope: bool, difference: bool, logarithmic: bool, interactive: bool
) -> dict[str, Any]:
    """Losses, differences to the reference below, and a strip to choose the steps to look at.

    Args:
        labels: of the engines; the first colour and dash belongs to the first.
        envelope: whether there is a table ``envelope``.
        difference: whether any run can be compared with a reference.
        logarithmic: whether the losses span so much that their axis has to be logarithmic.
        interactive: False leaves out what answers to the pointer.
    """
    focus = alt.param(name="focus", value="")
    zoom = alt.selection_interval(name="zoom", encodings=["x"])
    domain: Any = zoom if interactive else alt.Undefined
    x = alt.X(
        "step:Q",
        title=_STEP,
        scale=alt.Scale(domain=domain, nice=False, zero=False),
        axis=alt.Axis(tickMinStep=1),
    )
    loss_scale = alt.Scale(type="log") if logarithmic else alt.Scale(zero=False)
    loss = _lines(
        labels, x, alt.Y("loss:Q", title="Training loss", scale=loss_scale), focus, interactive, "loss"
    )
    layers = [*([_loss_band(x)] if envelope else []), *loss]
    views: list[Any] = [alt.layer(*layers).properties(height=260)]
    if difference:
        views.append(_difference(labels, x, focus, envelope, interactive))
    if interactive:
        views[0] = views[0].add_params(focus)
        views.append(_overview(labels, loss_scale, zoom))
    return _spec(alt.vconcat(*views, spacing=18))


def _lines(
    labels: Sequence[str], x: alt.X, y: alt.Y, focus: alt.Parameter, interactive: bool, field: str
) -> list[Any]:
    table = "trace" if field == "loss" else "gaps"
    base = alt.Chart(alt.NamedData(table)).encode(x=x, y=y, color=_engine_colour(labels))
    line = base.mark_line(clip=True, strokeWidth=1.6).encode(strokeDash=_engine_dash(labels))
    if not interactive:
        return [line]
    line = line.encode(
        opacity=alt.condition((focus == "") | (alt.datum.engine == focus), alt.value(1), alt.value(0.1))
    )
    hover = alt.selection_point(
        name=f"hover_{field}",
        nearest=True,
        on="pointermove",
        clear="pointerout",
        fields=["engine", "step"],
        empty=False,
    )
    tooltip = [
        alt.Tooltip("engine:N", title="Engine"),
        alt.Tooltip("step:Q", title=_STEP, format=",d"),
        alt.Tooltip("loss:Q", title="Loss", format=".6g"),
        alt.Tooltip("difference:Q", title="Difference / reference", format=".2e"),
    ]
    points = (
        base.mark_circle(size=60, clip=True)
        .encode(opacity=alt.condition(hover, alt.value(1), alt.value(0)), tooltip=tooltip)
        .add_params(hover)
    )
    return [line, points]


def _loss_band(x: alt.X) -> Any:
    return (
        alt.Chart(alt.NamedData("envelope"))
        .mark_area(clip=True, opacity=0.28, color="#888", line=False)
        .encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
    )


def _difference(
    labels: Sequence[str], x: alt.X, focus: alt.Parameter, envelope: bool, interactive: bool
) -> Any:
    scale = alt.Scale(type="log", domainMin=FLOOR, nice=False)
    axis = alt.Axis(
        values=[10.0**power for power in range(-9, 10)],
        labelExpr=f"datum.value <= {FLOOR} ? 'equal' : format(datum.value, '.0e')",
    )
    y = alt.Y("difference:Q", title="Difference to reference (relative)", scale=scale, axis=axis)
    layers: list[Any] = []
    if envelope:
        layers.append(
            alt.Chart(alt.NamedData("envelope"))
            .transform_filter("isValid(datum.gap)")
            .transform_calculate(floor=str(FLOOR))
            .mark_area(clip=True, opacity=0.28, color="#888")
            .encode(x=x, y=alt.Y("gap:Q", scale=scale), y2="floor:Q")
        )
    limits = alt.Chart(alt.NamedData("limits")).mark_rule(strokeDash=[3, 3], opacity=0.7, color="#888")
    layers.append(limits.encode(y=alt.Y("difference:Q", scale=scale)))
    layers += _lines(labels, x, y, focus, interactive, "difference")
    shapes = alt.Scale(domain=list(MARK_SHAPES), range=list(MARK_SHAPES.values()))
    marks = alt.Chart(alt.NamedData("marks")).mark_point(size=110, filled=True, strokeWidth=1.3, style="mark")
    tooltip = [
        alt.Tooltip("engine:N", title="Engine"),
        alt.Tooltip("kind:N", title="Mark"),
        alt.Tooltip("step:Q", title=_STEP, format=",d"),
    ]
    layers.append(
        marks.encode(
            x=x,
            y=alt.Y("difference:Q", scale=scale),
            color=_engine_colour(labels),
            shape=alt.Shape("kind:N", scale=shapes, legend=None),
            tooltip=tooltip,
        )
    )
    return alt.layer(*layers).properties(height=260)


def _overview(labels: Sequence[str], scale: alt.Scale, zoom: alt.Parameter) -> Any:
    x = alt.X(
        "step:Q",
        title="Drag here to zoom, double-click to see all",
        scale=alt.Scale(nice=False, zero=False),
        axis=alt.Axis(grid=False, tickMinStep=1),
    )
    y = alt.Y("loss:Q", title=None, scale=scale, axis=alt.Axis(labels=False, ticks=False, grid=False))
    chart = alt.Chart(alt.NamedData("trace")).mark_line(strokeWidth=0.8, clip=True)
    return chart.encode(x=x, y=y, color=_engine_colour(labels)).properties(height=36).add_params(zoom)


def accuracy(labels: Sequence[str], epochs: int) -> dict[str, Any]:
    """Accuracy by epoch, of at most ``epochs`` epochs."""
    ticks = list(range(1, epochs + 1, -(-epochs // 20)))
    base = alt.Chart(alt.NamedData("epochs")).encode(
        x=alt.X("epoch:Q", title="Epoch", axis=alt.Axis(values=ticks, format="d")),
        y=alt.Y("accuracy:Q", title="Accuracy (%)", scale=alt.Scale(zero=False)),
        color=_engine_colour(labels),
        tooltip=[
            alt.Tooltip("engine:N", title="Engine"),
            alt.Tooltip("epoch:Q", title="Epoch"),
            alt.Tooltip("accuracy:Q", title="Accuracy (%)", format=".2f"),
        ],
    )
    lines = base.mark_line(strokeWidth=1.6).encode(strokeDash=_engine_dash(labels))
    return _spec(alt.layer(lines, base.mark_circle(size=40)).properties(height=220))


def step_times(labels: Sequence[str]) -> dict[str, Any]:
    """Distribution of the step times on a logarithmic axis, the first step apart."""
    y = _engine_rows(labels)
    scale = alt.Scale(type="log", nice=False, padding=14)
    tooltip = [
        alt.Tooltip("engine:N", title="Engine"),
        *(
            alt.Tooltip(f"{name}:Q", title=f"{title} (ms)", format=".3~g")
            for name, title in (
                ("median", "Median"),
                ("q1", "Quartile 1"),
                ("q3", "Quartile 3"),
                ("p5", "5 %"),
                ("p95", "95 %"),
                ("most", "Slowest"),
                ("first", "First step"),
            )
        ),
    ]
    base = alt.Chart(alt.NamedData("times")).encode(y=y, color=_engine_colour(labels), tooltip=tooltip)

    def x(name: str) -> alt.X:
        return alt.X(
            f"{name}:Q", title="ms per step (logarithmic)", scale=scale, axis=alt.Axis(values=_TIMES)
        )

    return _spec(
        alt.layer(
            base.mark_rule(strokeWidth=1.5).encode(x=x("p5"), x2="p95"),
            base.mark_bar(size=14, opacity=0.55).encode(x=x("q1"), x2="q3"),
            base.mark_tick(thickness=3, size=20).encode(x=x("median")),
            base.transform_filter("isValid(datum.first)")
            .mark_point(shape="diamond", size=70, filled=False, strokeWidth=1.6)
            .encode(x=x("first")),
        )
    )


def time_parts(labels: Sequence[str], present: Collection[str]) -> dict[str, Any]:
    """Seconds of training by what they were spent on."""
    chart = alt.Chart(alt.NamedData("parts")).mark_bar(style="segment", strokeWidth=0.8)
    y = _engine_rows(labels)
    legend = _part_legend(COMPONENTS, present)
    return _spec(
        chart.encode(
            y=y,
            x=alt.X("seconds:Q", title="Seconds of all training steps"),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(COMPONENTS)), legend=legend),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("engine:N", title="Engine"),
                alt.Tooltip("part:N", title="Part"),
                alt.Tooltip("seconds:Q", title="Seconds", format=".3~g"),
                alt.Tooltip("share:Q", title="Share", format=".1%"),
            ],
        )
    )


def memory(labels: Sequence[str], present: Collection[str]) -> dict[str, Any]:
    """Peak memory, divided into what importing the framework took and what the training added."""
    y = _engine_rows(labels)
    legend = _part_legend(MEMORY, present)
    return _spec(
        alt.Chart(alt.NamedData("memory"))
        .mark_bar(style="segment", strokeWidth=0.8)
        .encode(
            y=y,
            x=alt.X("megabytes:Q", title="Peak memory (MB)"),
            color=alt.Color("part:N", scale=alt.Scale(domain=list(MEMORY)), legend=legend),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("engine:N", title="Engine"),
                alt.Tooltip("part:N", title="Part"),
                alt.Tooltip("megabytes:Q", title="MB", format=",.0f"),
            ],
        )
    )


def _engine_rows(labels: Sequence[str]) -> alt.Y:
    axis = alt.Axis(labelLimit=220, ticks=False, domain=False)
    return alt.Y("engine:N", sort=list(labels), title=None, axis=axis)


def _part_legend(parts: Sequence[str], present: Collection[str]) -> alt.Legend:
    """A legend of the parts that occur; all keep their colours."""
    return alt.Legend(orient="top", title=None, columns=4, values=[part for part in parts if part in present])


def limits(departure: float = DEPARTURE) -> list[dict[str, float]]:
    """Rows of the table ``limits``."""
    return [{"difference": departure}, {"difference": HORIZON}]


def _spec(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    return spec
