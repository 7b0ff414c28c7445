"""Small helpers over Grafana's own builders: panels, variables and dashboards in one look."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

#: Every query asks the data source that the user has chosen.
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel: ``kind`` is "lines", "stacked", "points" or "number"; ``width`` of 24 columns."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "lines"
    width: int = 12
    height: int = 8
    description: str = ""


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard, filled by a query."""

    name: str
    label: str
    query: str
    multiple: bool = False


@dataclass(frozen=True)
class Board:
    """A dashboard: rows of panels under a title each."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)


def to_json(board: Board) -> str:
    """The dashboard as Grafana imports it."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["crosstrain"])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        built = built.with_variable(
            dashboard.QueryVariable(variable.name)
            .label(variable.label)
            .query(variable.query)
            .datasource(SOURCE)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(variable.multiple)
            .include_all(variable.multiple)
        )
    number = 0
    for title, row in board.rows.items():
        built = built.with_row(dashboard.Row(title))
        for panel in row:
            number += 1
            built = built.with_panel(_panel(panel, number))
    value = json.loads(JSONEncoder().encode(built.build()))
    _place(value)
    # Read once by Grafana's own model, which fills in what the builders left out.
    register_default_plugins()
    return JSONEncoder(sort_keys=True, indent=1).encode(models.Dashboard.from_json(value)) + "\n"


def _place(value: dict[str, Any]) -> None:
    """Gives rows and panels their places, from left to right and from top to bottom."""
    x = y = height = 0
    for number, panel in enumerate(value["panels"], 1):
        panel["id"] = number
        place = panel["gridPos"]
        if panel["type"] == "row" or x + place["w"] > 24:
            x, y, height = 0, y + height, 0
        place["x"], place["y"] = x, y
        if panel["type"] == "row":
            y += 1
        else:
            x, height = x + place["w"], max(height, place["h"])


def _panel(panel: Panel, number: int) -> Any:
    if panel.kind == "number":
        built: Any = stat.Panel().graph_mode(common_models.BigValueGraphMode.AREA)
    else:
        built = timeseries.Panel().legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        built = built.tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        if panel.kind == "points":
            built = built.draw_style(common_models.GraphDrawStyle.POINTS)
        if panel.kind == "stacked":
            built = built.fill_opacity(40).stacking(
                common.StackingConfig().mode(common_models.StackingMode.NORMAL)
            )
    built = built.id(number).title(panel.title).unit(panel.unit).datasource(SOURCE)
    built = built.span(panel.width).height(panel.height)
    if panel.description:
        built = built.description(panel.description)
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).range()
        built = built.with_target(target.legend_format(query.legend or "__auto"))
    return built
