"""The Prometheus of the compose file scrapes the stack while a job trains in all engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from crosstrain.cli.jobfile import send_data
from crosstrain.data import DataCache, ImportOptions, import_sources
from tests.e2e import inputs
from tests.monitoring.queries import GPU_ONLY, metric_names, panel_queries, rules, substituted, variable_queries

from .prometheus import Prometheus
from .stack import SERVICES, Stack

JOB = "watched"
ENGINES = ["reference", "torch", "tensorflow@2.12", "tensorflow@2.21", "keras-theano", "caffe"]
#: Four scrapes of 15 seconds.
RATE = "1m"
_WAIT_SECONDS = 300


@pytest.fixture(scope="module")
def prometheus(stack: Stack) -> Iterator[Prometheus]:
    stack.up("prometheus", profile="monitoring")
    found = Prometheus(stack.prometheus_port)
    wait("Prometheus does not scrape all processes", lambda: len(ask(found, "up == 1")) == 1 + len(SERVICES))
    cache = DataCache(stack.folder / "cache" / "data")
    files = inputs.write_digits(stack.folder / "digits")
    imported = import_sources(*files, ImportOptions(), cache)
    with closing(stack.client()) as client:
        data = [send_data(client, item, cache) for item in (imported.train, imported.test)]
        training = {"epochs": 100000}
        text = inputs.document(ENGINES, training=training, devices={"kind": "cpu", "shared": True})
        client.create_job(text, *data, JOB)
        curves = f'count(crosstrain_run_test_loss{{run=~"{JOB}[.].*"}}) == {len(ENGINES)}'
        wait("the engines do not train", lambda: ask(found, curves))
        yield found
        client.cancel_job(JOB)
        list(client.watch_job(JOB))


def ask(prometheus: Prometheus, expr: str) -> list[dict[str, object]]:
    try:
        return prometheus.ask(expr)
    except OSError:  # it starts
        return []


def wait(complaint: str, condition: Callable[[], object], seconds: float = _WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(2)


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """What a user of the dashboards would choose."""
    return {
        "__rate_interval": RATE, "__range": "5m", "job_id": JOB, "engine": "tensorflow", "version_a": "2.12.1",
        "version_b": "2.21.0",
    }  # fmt: skip


def test_every_panel_has_data(
    prometheus: Prometheus, variables: dict[str, str], report: Callable[[str], None]
) -> None:
    queries = [query for query in [*panel_queries(), *variable_queries()]]
    waiting = [query for query in queries if not query.needs_gpu]
    asked = len(waiting)
    deadline = time.monotonic() + _WAIT_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = [query for query in waiting if not prometheus.ask(substituted(query.expr, variables))]
        time.sleep(2)
    assert not {query.place: query.expr for query in waiting}
    report(f"{asked} queries of dashboards have data from the stack; {len(queries) - asked} more need a GPU")


def test_curves_of_both_versions(prometheus: Prometheus) -> None:
    found = prometheus.ask(f'crosstrain_run_loss{{run=~"{JOB}[.].*"}}')
    versions = {(item["metric"]["engine"], item["metric"]["version"]) for item in found}
    assert {("tensorflow", "2.12.1"), ("tensorflow", "2.21.0")} <= versions
    assert len(versions) == len(ENGINES)


def test_every_rule_is_evaluated(prometheus: Prometheus) -> None:
    expected = {rule.get("alert") or rule["record"] for rule in rules()}

    def healthy() -> bool:
        found = {rule["name"]: rule["health"] for rule in prometheus.rules()}
        return found == dict.fromkeys(expected, "ok")

    wait("rules are not evaluated", healthy, 90)
    for rule in rules():
        if "record" in rule:
            wait(rule["record"], lambda: prometheus.ask(rule["record"]), 90)  # noqa: B023
        for name in metric_names(rule["expr"]):
            assert prometheus.ask(name) or GPU_ONLY.search(name), (rule, name)


def test_nothing_alerts_while_all_is_well(prometheus: Prometheus) -> None:
    firing = prometheus.ask('ALERTS{alertstate="firing", alertname!~"CrosstrainStorage.*"}')
    assert {item["metric"]["alertname"] for item in firing} == set()
