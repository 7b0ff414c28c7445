"""scale.html: the table and the chart of speed-up by ranks, in one file that opens without network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import altair as alt
import vl_convert
from jinja2 import Environment, FunctionLoader
from markupsafe import Markup

from .measure import ScaleRow

#: Version of Vega-Lite that the picture is drawn with.
_VEGA_LITE = "6.4"
_COLOURS = ["#111111", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]


def scale_page(rows: Sequence[ScaleRow], name: str, note: str) -> str:
    """The page; ``note`` tells batch and learning rate."""
    style = _source("scale.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    drawn = [row for row in rows if row.speed_up is not None]
    picture = ""
    if drawn:
        svg = vl_convert.vegalite_to_svg(chart(drawn), vl_version=_VEGA_LITE)
        picture = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    environment = Environment(
        autoescape=True, loader=FunctionLoader(_source), trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("scale.html.jinja").render(
        name=name,
        note=note,
        rows=rows,
        picture=picture,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        unlike=[row for row in rows if not row.same],
        bare=any(row.bare is not None for row in rows),
        notes=[(row.label, row.launcher, text) for row in rows for text in row.bare_notes],
    )


def chart(rows: Sequence[ScaleRow]) -> dict[str, Any]:
    """Speed-up by number of ranks with its intervals, and the line of perfect scaling.

    A point is hollow where the verdict does not say that the function is the same. Thin dotted lines with hollow
    diamonds are bare scripts, against their own fewest ranks.
    """
    series = list(dict.fromkeys(f"{row.engine}@{row.version}" for row in rows))
    values = []
    for row in rows:
        assert row.speed_up is not None
        low, high = row.speed_up.low, row.speed_up.high
        values.append(
            {
                "engine": f"{row.engine}@{row.version}",
                "ranks": row.ranks,
                "speed_up": row.speed_up.mean,
                "low": row.speed_up.mean if low is None else low,
                "high": row.speed_up.mean if high is None else high,
                "same": row.same,
            }
        )
    counts = sorted({row.ranks for row in rows})
    base = counts[0]
    ideal = alt.Chart(alt.InlineData([{"ranks": count, "speed_up": count / base} for count in counts])).mark_line(
        color="#9aa0a6", strokeDash=[4, 4], strokeWidth=1.5
    )
    x = alt.X("ranks:Q", title="Ranks", axis=alt.Axis(values=counts, format="d"), scale=alt.Scale(nice=False))
    # An interval of two repeats can be a thousand times as wide as its mean: what is beyond the axis is cut off.
    means = [value.mean for row in rows for value in (row.speed_up, row.bare_speed_up) if value is not None]
    top = 1.25 * max([counts[-1] / base, *means])
    title = f"Speed-up against {base} rank{'s' if base > 1 else ''}"
    y = alt.Y("speed_up:Q", title=title, scale=alt.Scale(domain=[0, top], nice=False))
    colour = alt.Color("engine:N", title=None, scale=alt.Scale(domain=series, range=_COLOURS[: len(series)] * 9))
    own = alt.Chart(alt.InlineData(values))
    bare = [
        {"engine": f"{row.engine}@{row.version}", "ranks": row.ranks, "speed_up": row.bare_speed_up.mean}
        for row in rows
        if row.bare_speed_up is not None
    ]
    theirs = alt.Chart(alt.InlineData(bare)).encode(x=x, y=y, color=colour)
    layers = [
        ideal.encode(x=x, y=y),
        own.mark_rule(strokeWidth=1.5, clip=True).encode(x=x, y=alt.Y("low:Q", title=""), y2="high:Q", color=colour),
        own.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour),
        own.transform_filter("datum.same").mark_point(filled=True, size=70, opacity=1).encode(x=x, y=y, color=colour),
        own.transform_filter("!datum.same").mark_point(filled=False, size=70, strokeWidth=2).encode(
            x=x, y=y, color=colour
        ),
    ]
    if bare:
        layers[1:1] = [
            theirs.mark_line(strokeWidth=1, strokeDash=[2, 2]),
            theirs.mark_point(filled=False, shape="diamond", size=110, strokeWidth=1),
        ]
    found: dict[str, Any] = (
        # Browsers' letters may be wider than those that the picture was laid out with.
        alt.layer(*layers)
        .properties(width=560, height=320, padding={"left": 5, "top": 5, "right": 60, "bottom": 5})
        .configure_axis(titleFontWeight="normal", titlePadding=14)
        .to_dict()
    )
    return found


def _source(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
