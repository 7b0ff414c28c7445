"""Puts the page together: one HTML file that needs nothing else and runs nothing but its own script."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import ChainableUndefined, Environment, FunctionLoader
from markupsafe import Markup

from . import sections, text
from .charts import COLOURS, MARK_SHAPES, dash
from .data import ReportData
from .figures import VEGA_LITE, Figure, make_figures
from .ranks import rank_sections
from .shown import reference_of, same_losses, shown_runs
from .tables import departure

#: A page should not be larger than this, in bytes.
SIZE_LIMIT = 2_000_000
#: From fine to coarse: intervals of steps in a trace, rows in an engine's table of checks, pictures.
DETAILS = ((400, 400, True), (250, 150, True), (120, 60, True), (60, 25, False), (20, 5, False))

_OUTLINES = {
    "triangle-up": "M6 1 11 11 1 11z",
    "circle": "M1 6a5 5 0 1 0 10 0a5 5 0 1 0-10 0",
    "diamond": "M6 0 11 6 6 12 1 6z",
}
_FILTERS = (
    "breakable",
    "coordinates",
    "exact",
    "level",
    "number",
    "percent",
    "place",
    "prose",
    "ratio",
    "sign",
    "step",
    "verdict_class",
)


def write_report(path: Path, verdict: Mapping[str, Any] | None, data: ReportData) -> None:
    """Writes the report of a job as one HTML file that opens without network.

    Args:
        path: the file; an existing one is replaced in one go.
        verdict: content of verdict.json; None if the job has no verdict.
        data: what is known of the job besides; parts that are missing are left out of the page.
    """
    page = render_report(verdict, data)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(page, encoding="utf-8", newline="\n")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def render_report(verdict: Mapping[str, Any] | None, data: ReportData) -> str:
    """The report as HTML, with as much detail as fits into :data:`SIZE_LIMIT`."""
    page = ""
    for buckets, rows, pictures in DETAILS:
        page = _render(verdict or {}, data, buckets, rows, pictures=pictures, judged=verdict is not None)
        if len(page.encode()) <= SIZE_LIMIT:
            break
    return page


def _render(
    verdict: Mapping[str, Any], data: ReportData, buckets: int, rows: int, *, pictures: bool, judged: bool
) -> str:
    shown = shown_runs(verdict, data)
    reference = reference_of(verdict, shown)
    figures = make_figures(verdict, shown, reference, buckets, pictures=pictures)
    engines = sections.engine_sections(verdict, shown, rows)
    style, script = _source("report.css"), _script()
    context = {
        "judged": judged,
        "verdict": verdict,
        "lead": text.lead(verdict.get("sentence")),
        "data": data,
        "shown": shown,
        "reference": reference,
        "equal": same_losses(shown),
        "engines": engines,
        "causes": sections.shared_causes(engines),
        "next_steps": sections.strings(verdict.get("next_steps")),
        "could_not": sections.listed(verdict.get("could_not_compare")),
        "map": sections.check_map(engines, verdict),
        "pairs": sections.pairs(verdict),
        "facts": sections.fact_table(shown),
        "cross": sections.cross_matrix(data.cross),
        "figures": figures,
        "times": _rows(figures, "times"),
        "parts": _rows(figures, "parts"),
        "memory": _rows(figures, "memory"),
        "ranks": rank_sections(data.runs),
        "marks": _mark_keys(figures),
        "envelope": sections.mapped(verdict.get("envelope")),
        "departure": departure(verdict),
        "rounding": sections.rounding(verdict),
        "swatches": [
            {"label": item.label, "colour": index % COLOURS, "dash": " ".join(map(str, dash(index)))}
            for index, item in enumerate(shown)
            if item.run.trained
        ],
        "style": Markup(style),
        "script": Markup(script),
        "notices": Markup(_source("notices.txt")),
        "payload": Markup(embedded({name: _payload(figure) for name, figure in figures.items()})),
        "policy": _policy(style, script),
    }
    return _environment().get_template("report.html.jinja").render(context)


def _rows(figures: Mapping[str, Figure], name: str) -> Any:
    return figures[name].data[name] if name in figures else []


def _mark_keys(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """Kinds of marks that the training chart has, each with the outline of its shape."""
    rows = figures["training"].data.get("marks", []) if "training" in figures else []
    kinds = {row["kind"] for row in rows if isinstance(row, dict)}
    return [(kind, _OUTLINES[shape]) for kind, shape in MARK_SHAPES.items() if kind in kinds]


def _payload(figure: Figure) -> dict[str, Any]:
    return {"spec": figure.spec, "data": figure.data}


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element. NaN becomes null."""
    told = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return told.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _policy(style: str, script: str) -> str:
    """Only this page's script and style apply, and nothing is ever fetched."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


@functools.cache
def _script() -> str:
    """The chart library and the page's own script."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    script = (bundle + "\n" + _source("report.js")).replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in script.lower() or "<!--" in script or "\0" in script:
        raise ValueError("the chart library cannot be embedded in a page")
    return script


def _source(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_source),
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in _FILTERS:
        environment.filters[name] = getattr(text, name)
    return environment
