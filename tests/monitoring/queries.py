"""Every query of the dashboards and every rule, as Prometheus would be asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
RULES = FOLDER / "rules" / "crosstrain.rules.yaml"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
#: Metrics that exist only where a GPU is: by NVML, or by NVIDIA's dcgm-exporter.
GPU_ONLY = re.compile(r"\b(crosstrain_gpu_\w+|crosstrain_run_gpu_\w+|DCGM_\w+)")
_NAME = re.compile(r"\b((?:crosstrain|process|DCGM|engine_version)[A-Za-z0-9_:]*|up)\b(?!\s*=)")


class Query(NamedTuple):
    """Where an expression comes from, and the expression."""

    place: str
    expr: str

    @property
    def needs_gpu(self) -> bool:
        return bool(GPU_ONLY.search(self.expr))


def panel_queries() -> Iterator[Query]:
    """Queries of all panels, with their variables as they are."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                yield Query(f"{path.stem}: {panel['title']} {target['refId']}", target["expr"])


def variable_queries() -> Iterator[Query]:
    """Queries behind the choices at the top of dashboards."""
    for path in DASHBOARDS:
        for variable in json.loads(path.read_text(encoding="utf-8"))["templating"]["list"]:
            if variable["type"] == "query":
                text = variable["query"]
                expr = text if isinstance(text, str) else text["query"]
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", expr)
                assert match, expr
                yield Query(f"{path.stem}: ${variable['name']}", f"count by ({match[2]}) ({match[1]})")


def rules() -> list[dict[str, Any]]:
    """All rules as written."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metric_names(expr: str) -> set[str]:
    """Names of metrics in an expression."""
    without_strings = re.sub(r'"[^"]*"', '""', expr)
    without_labels = re.sub(r"\b(?:by|on|ignoring|without)\s*\([^)]*\)", "", without_strings)
    return set(_NAME.findall(without_labels))


def substituted(expr: str, values: dict[str, str]) -> str:
    """The expression with Grafana's variables replaced."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, expr
    return expr
