"""Metrics of the coordinator, and the page that documents all metrics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crosstrain.metrics import METRICS, record_verdict
from crosstrain.metrics.document import page
from crosstrain.metrics.recording import VALUES
from doubles.world import World, document, wait_for

ROOT = Path(__file__).resolve().parents[3]
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[World]:
    port_file = tmp_path / "metrics"
    world = World(tmp_path, metrics_port="auto", metrics_port_file=str(port_file))
    yield world
    world.close()


def scrape(world: World) -> Found:
    port = (world.folder / "metrics").read_text().strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: Found, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset(labels.items())))


def test_a_job_is_seen_from_its_queue_to_its_end(measured: World) -> None:
    measured.service("fake", True)
    job = measured.create(document("torch"), "seen")
    wait_for(lambda: measured.client.get_job("seen").runs[0].run.state != 1)
    measured.finished(job.job_id)
    wait_for(lambda: of(scrape(measured), "crosstrain_coordinator_jobs", state="succeeded") == 1)
    found = scrape(measured)
    run = measured.client.get_job("seen").runs[0].run
    labels = {"engine": "torch", "version": run.engine_version, "kind": "train", "state": "succeeded"}
    assert of(found, "crosstrain_coordinator_runs", **labels) == 1
    assert of(found, "crosstrain_coordinator_service_healthy", service="fake") == 1
    assert (of(found, "crosstrain_coordinator_fanout_duration_seconds_count", service="fake") or 0) >= 1
    assert of(found, "crosstrain_coordinator_events_total") == measured.client.get_job("seen").last_sequence
    assert of(found, "crosstrain_store_up") == 1
    assert (of(found, "crosstrain_store_free_bytes", store="artifacts") or 0) > 0
    assert not any(name == "crosstrain_coordinator_run_info" for name, _ in found), "the run has ended"


def test_an_unfinished_run_names_its_job(measured: World) -> None:
    service = measured.service("fake", True)
    measured.create(document("torch"), "waiting")
    service.stop()
    run = measured.client.get_job("waiting").runs[0].run
    labels = {"run": run.run_id, "job_id": "waiting", "engine": "torch", "version": run.engine_version}
    if run.state in (1, 2):
        assert of(scrape(measured), "crosstrain_coordinator_run_info", service="fake", **labels) == 1


def test_a_store_that_does_not_answer_is_said(measured: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from crosstrain.metrics import collector
    from crosstrain_service.errors import CrosstrainError

    def silent(_database: object) -> None:
        raise CrosstrainError("SERVICE_UNREACHABLE", "the job store does not answer")

    monkeypatch.setattr(collector, "statistics", silent)
    found = scrape(measured)
    assert of(found, "crosstrain_store_up") == 0
    assert not any(name == "crosstrain_coordinator_jobs" for name, _ in found)


def test_verdicts_are_counted_by_kind() -> None:
    def count(verdict: str) -> float:
        return VALUES.get("crosstrain_coordinator_verdicts_total", (verdict,))

    before = {verdict: count(verdict) for verdict in ("mismatch", "other")}
    record_verdict("job-1", "MISMATCH")
    record_verdict("job-1", "perhaps")
    assert count("mismatch") == before["mismatch"] + 1
    assert count("other") == before["other"] + 1


def test_names_follow_the_rules() -> None:
    for metric in METRICS:
        assert metric.name.startswith(("crosstrain_coordinator_", "crosstrain_store_"))
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert ("run" in metric.labels) <= (metric.kind == "gauge")


def test_a_busy_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        port = str(busy.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "crosstrain.api", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path),
             "--metrics-port", port],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"the coordinator cannot start: metrics cannot be served on 127.0.0.1:{port}: ")


def test_the_documentation_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == page(), (
        "run python -m crosstrain.metrics.document > docs/metrics.md"
    )
