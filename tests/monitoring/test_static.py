"""Rules and dashboards on their own: promtool's checks and unit tests, Grafana's schema, names that exist."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as models

from crosstrain.metrics import METRICS
from crosstrain_service import run_metrics, service_metrics

from .queries import DASHBOARDS, FOLDER, RULES, metric_names, panel_queries, rules, variable_queries

PROMTOOL = shutil.which("promtool")


def promtool(*arguments: object) -> str:
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_well_formed() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", RULES.with_name("crosstrain.test.yaml"))


def test_every_alert_has_a_test_that_it_fires() -> None:
    import yaml

    cases = yaml.safe_load(RULES.with_name("crosstrain.test.yaml").read_text(encoding="utf-8"))["tests"]
    firing = {
        check["alertname"] for case in cases for check in case.get("alert_rule_test", ()) if check["exp_alerts"]
    }
    assert firing == {rule["alert"] for rule in rules() if "alert" in rule}


def known() -> set[str]:
    """Names of all series that the code gives, and of the recording rules."""
    found = set()
    for metric in (*service_metrics.METRICS, *run_metrics.METRICS, *run_metrics.GAUGES, *METRICS):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
        found |= {metric.name + suffix for suffix in suffixes.get(metric.kind, ("",))}
    found |= {rule["record"] for rule in rules() if "record" in rule}
    return found


def test_every_name_in_queries_and_rules_exists() -> None:
    from_elsewhere = {
        "process_resident_memory_bytes", "process_cpu_seconds_total", "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_POWER_USAGE",
    }  # fmt: skip
    expressions = [query.expr for query in (*panel_queries(), *variable_queries())]
    expressions += [rule["expr"] for rule in rules()]
    names = set().union(*map(metric_names, expressions))
    assert names - from_elsewhere <= known(), names - from_elsewhere - known()
    assert from_elsewhere <= names


def test_generated_files_are_up_to_date() -> None:
    script = "import sys; sys.path.insert(0, sys.argv[1]); import generate, json; " + (
        "print(json.dumps({str(path): text for path, text in generate.files().items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(FOLDER)], capture_output=True, text=True, check=True
    )
    files = json.loads(done.stdout)
    assert set(files) == {*map(str, DASHBOARDS), str(RULES.with_name("prometheusrule.yaml"))}
    for path, text in files.items():
        assert Path(path).read_text(encoding="utf-8") == text, "run deploy/monitoring/generate.py"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_follow_grafanas_schema(path: Path) -> None:
    """Grafana's own model reads the file and writes the same again: no key is unknown to it, none has a wrong type."""
    register_default_plugins()
    text = path.read_text(encoding="utf-8")
    read = models.Dashboard.from_json(json.loads(text))
    assert json.loads(JSONEncoder().encode(read)) == json.loads(text)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_places_and_sources(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert board["uid"] == path.stem
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        cells = set(_cells(panel["gridPos"]))
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def _cells(place: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for x in range(place["x"], place["x"] + place["w"]):
        for y in range(place["y"], place["y"] + place["h"]):
            yield x, y
