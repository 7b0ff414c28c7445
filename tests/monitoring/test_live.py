"""A real Prometheus scrapes a running stack: every query of every dashboard and every rule gives data meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from tests.support.service import ServiceUnavailable

from .queries import GPU_ONLY, metric_names, panel_queries, rules, substituted, variable_queries
from .stack import SERVICES, Stack

JOB = "watched"
WAIT_SECONDS = 120


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian package prometheus)")
    try:
        started = Stack(tmp_path_factory.mktemp("monitoring"))
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))
    started.start_job(JOB)
    yield started
    started.client.cancel_job(JOB)
    started.close()


@pytest.fixture(scope="module")
def variables(stack: Stack) -> dict[str, str]:
    """What a user of the dashboards would choose, once the job is well on its way."""
    deadline = time.monotonic() + WAIT_SECONDS
    steps = f'crosstrain_run_steps{{run=~"{JOB}[.].*"}}'
    done = f"min({steps}) >= 30 and count(crosstrain_run_test_loss) == {len(SERVICES)}"
    while not stack.ask(done):
        assert time.monotonic() < deadline, "the engines do not train"
        time.sleep(0.5)
    time.sleep(3)  # rates need several scrapes
    (version,) = {item["metric"]["version"] for item in stack.ask('crosstrain_run_steps{engine="torch"}')}
    return {
        "__rate_interval": "30s", "__range": "2m", "job_id": JOB, "engine": "torch", "version_a": version,
        "version_b": version,
    }  # fmt: skip


def test_all_processes_are_scraped(stack: Stack, variables: dict[str, str]) -> None:
    found = {item["metric"]["component"]: item["value"][1] for item in stack.ask("up")}
    assert found == dict.fromkeys(["coordinator", *SERVICES.values()], "1")


def test_every_panel_has_data(stack: Stack, variables: dict[str, str]) -> None:
    queries = list(panel_queries())
    needs_gpu = [query for query in queries if query.needs_gpu]
    open_queries = [query for query in queries if not query.needs_gpu]
    deadline = time.monotonic() + WAIT_SECONDS
    while open_queries and time.monotonic() < deadline:  # a rate needs several scrapes
        open_queries = [query for query in open_queries if not stack.ask(substituted(query.expr, variables))]
        time.sleep(0.5)
    assert not {query.place: query.expr for query in open_queries}
    assert len(queries) - len(needs_gpu) >= 45
    # These are parsed and evaluated too; only their data needs a GPU.
    for query in needs_gpu:
        stack.ask(substituted(query.expr, variables))
    assert {name for query in needs_gpu for name in metric_names(query.expr)} == {
        "crosstrain_gpu_memory_size_bytes", "crosstrain_gpu_memory_used_bytes", "crosstrain_gpu_utilization_ratio",
        "crosstrain_run_gpu_memory_peak_bytes", "crosstrain_run_gpu_utilization_ratio", "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE",
    }  # fmt: skip


def test_every_choice_has_values(stack: Stack, variables: dict[str, str]) -> None:
    queries = list(variable_queries())
    assert len(queries) == 4
    for query in queries:
        assert stack.ask(substituted(query.expr, variables)), query


def test_loss_curves_of_all_engines_lie_over_one_another(stack: Stack, variables: dict[str, str]) -> None:
    found = stack.ask(f'crosstrain_run_loss{{run=~"{JOB}[.].*"}}')
    assert {item["metric"]["engine"] for item in found} == set(SERVICES)
    jobs = stack.ask(f'crosstrain_coordinator_run_info{{job_id="{JOB}"}}')
    assert {item["metric"]["run"] for item in jobs} == {item["metric"]["run"] for item in found}


def test_every_rule_is_evaluated_and_what_it_asks_for_exists(stack: Stack, variables: dict[str, str]) -> None:
    evaluated = {rule["name"]: rule for rule in stack.rules()}
    deadline = time.monotonic() + 20
    while any(rule["health"] == "unknown" for rule in evaluated.values()) and time.monotonic() < deadline:
        time.sleep(0.5)
        evaluated = {rule["name"]: rule for rule in stack.rules()}
    assert set(evaluated) == {rule.get("alert") or rule["record"] for rule in rules()}
    assert {name: rule.get("lastError") for name, rule in evaluated.items() if rule["health"] != "ok"} == {}
    for rule in rules():
        while "record" in rule and not stack.ask(rule["record"]):
            assert time.monotonic() < deadline, rule["record"]
            time.sleep(0.5)
        for name in metric_names(rule["expr"]):
            assert stack.ask(name) or GPU_ONLY.search(name), (rule, name)


def test_nothing_alerts_while_all_is_well(stack: Stack, variables: dict[str, str]) -> None:
    # The machine that runs the tests may be short of room for its own reasons.
    found = {item["metric"]["alertname"] for item in stack.ask('ALERTS{alertname!~"CrosstrainStorage.*"}')}
    assert found == set()
