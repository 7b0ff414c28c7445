"""Metrics: values, what events make of them, and the page that Prometheus reads."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from crosstrain_protos.v1 import errors_pb2, run_pb2, service_pb2
from crosstrain_service import exposition, run_metrics, run_record, rundir
from crosstrain_service.events import EventLog
from crosstrain_service.metrics import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Metric, Values
from crosstrain_service.spool import SpoolWriter
from support import Service

WHERE = ("torch", "2", "cpu:0")


def page(port, path="/metrics"):
    with urllib.request.urlopen("http://127.0.0.1:%s%s" % (port, path), timeout=10) as answer:
        return answer.read().decode()


def samples(text):
    """Values by name and labels."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def of(found, name, **labels):
    return found.get((name, tuple(sorted(labels.items()))))


def test_a_histogram_counts_a_column_like_the_usual_one():
    values = Values([Metric("h_seconds", HISTOGRAM, "h", ("a",), (0.1, 1.0)), Metric("s_seconds", SUMMARY, "s")])
    values.observe("h_seconds", ("x",), [0.05, 0.1, 0.5, 1.0, 7.0])
    values.observe("s_seconds", (), 2.0)
    values.observe("s_seconds", (), [])
    found = {(s.name, s.labels.get("le")): s.value for family in values.collect() for s in family.samples}
    assert found == {
        ("h_seconds_bucket", "0.1"): 2, ("h_seconds_bucket", "1.0"): 4, ("h_seconds_bucket", "+Inf"): 5,
        ("h_seconds_count", None): 5, ("h_seconds_sum", None): 8.65, ("s_seconds_count", None): 1,
        ("s_seconds_sum", None): 2.0}


def test_misuse_of_values_is_an_error():
    values = Values([Metric("a_total", COUNTER, "a", ("x",)), Metric("b_bytes", GAUGE, "b")])
    with pytest.raises(KeyError):
        values.add("c_total")
    with pytest.raises(ValueError):
        values.add("a_total")
    with pytest.raises(ValueError):
        values.add("b_bytes")


class Run:
    """Reports events of one run to fresh metrics."""

    def __init__(self, run_id="r", metrics=None):
        self.values = Values((*run_metrics.METRICS, *run_metrics.GAUGES)) if metrics is None else metrics._values
        self.metrics = metrics or run_metrics.RunMetrics(self.values)
        self.run = run_pb2.Run(run_id=run_id, kind=run_pb2.RUN_KIND_TRAIN, engine="torch", engine_version="2")
        self.attempt = 1

    def event(self, **event):
        self.metrics.observe(self.run, "cpu:0", run_pb2.RunEvent(attempt=self.attempt, **event))

    def start(self, step=0):
        self.event(attempt_started=run_pb2.AttemptStarted(resume_step=step))

    def steps(self, first, count, seconds=0.02):
        self.event(steps=run_pb2.StepRecords(
            first_step=first, loss=[2.0 - 0.1 * i for i in range(count)], learning_rate=[0.05] * count,
            step_seconds=[seconds] * count, data_seconds=[0.001] * count, copy_seconds=[0.0] * count,
            compute_seconds=[seconds - 0.001] * count, sync_seconds=[0.0] * count, callback_seconds=[0.0] * count,
            samples=[64] * count, correct=[16] * count))

    def end(self, state=run_pb2.RUN_STATE_SUCCEEDED, **error):
        self.event(state_changed=run_pb2.StateChanged(state=state, error=errors_pb2.Error(**error)))

    def shown(self, name="crosstrain_run_loss"):
        return [s.labels["run"] for family in self.values.collect() for s in family.samples if s.name == name]


def test_steps_are_counted_without_the_first_of_each_process():
    run = Run()
    run.start()
    run.steps(0, 5)
    run.steps(5, 3)
    get = run.values.get
    assert get("crosstrain_step_duration_seconds", WHERE) == 7
    assert get("crosstrain_step_first_duration_seconds", WHERE) == 1
    assert get("crosstrain_step_phase_duration_seconds", WHERE + ("compute",)) == 7
    assert get("crosstrain_step_samples_total", WHERE) == 8 * 64
    assert get("crosstrain_run_steps", ("r", "torch", "2")) == 8
    assert get("crosstrain_run_loss", ("r", "torch", "2")) == pytest.approx(1.8)
    assert get("crosstrain_run_batch_accuracy_ratio", ("r", "torch", "2")) == 0.25
    run.attempt = 2
    run.start(6)
    run.steps(6, 2)
    assert get("crosstrain_run_restarts_total", WHERE) == 1
    assert get("crosstrain_step_first_duration_seconds", WHERE) == 2


def test_ranks_are_counted_with_what_they_wait_for():
    run = Run()
    run.event(attempt_started=run_pb2.AttemptStarted(ranks=2))
    slow = run_pb2.RankTimes(step_seconds=[0.4], compute_seconds=[0.3], sync_seconds=[0.0], samples=[32])
    quick = run_pb2.RankTimes(step_seconds=[0.4], compute_seconds=[0.1], sync_seconds=[0.2], samples=[32])
    run.event(steps=run_pb2.StepRecords(
        loss=[1.0], learning_rate=[0.1], step_seconds=[0.4], data_seconds=[0], copy_seconds=[0], compute_seconds=[0.3],
        sync_seconds=[0], callback_seconds=[0], samples=[64], ranks=[slow, quick]))
    run.event(rank_lost=run_pb2.RankLost(rank=1, reason="ended by signal SIGKILL"))
    by_run = ("r", "torch", "2")
    assert run.values.get("crosstrain_run_ranks", by_run) == 2
    assert run.values.get("crosstrain_run_sync_ratio", by_run) == pytest.approx(0.25)
    assert run.values.get("crosstrain_run_rank_imbalance_ratio", by_run) == pytest.approx(1.5)
    assert run.values.get("crosstrain_run_ranks_lost_total", WHERE) == 1


def test_gauges_of_a_run_are_shown_once_after_its_end_and_never_again():
    run = Run()
    run.start()
    run.steps(0, 2)
    run.metrics.scraped()
    assert run.shown() == ["r"]
    run.end()
    run.metrics.scraped()
    assert run.shown() == ["r"]
    run.metrics.scraped()
    for metric in run_metrics.GAUGES:
        assert run.shown(metric.name) == []
    assert run.values.get("crosstrain_run_ended_total", ("torch", "2", "train", "succeeded")) == 1


def test_ended_runs_do_not_pile_up_without_scrapes():
    run = Run()
    for index in range(run_metrics.MAX_ENDED + 20):
        other = Run("r%d" % index, run.metrics)
        other.start()
        other.steps(0, 1)
        other.end()
    assert len(run.shown()) == run_metrics.MAX_ENDED


def test_a_failure_is_counted_by_its_reason():
    run = Run()
    run.start()
    run.end(run_pb2.RUN_STATE_FAILED, reason=errors_pb2.ERROR_REASON_NOT_FINITE)
    assert run.values.get("crosstrain_run_failures_total", ("torch", "2", "not_finite")) == 1


def test_a_defect_in_counting_does_not_reach_the_run(tmp_path, caplog):
    directory = rundir.RunDir(str(tmp_path / "r"))
    directory.create(run_pb2.RUN_KIND_TRAIN, service_pb2.TrainRequest(run_id="r", engine="torch"), 0.0, "2")
    record = run_record.RunRecord(directory, directory.stored())
    values = Values((*run_metrics.METRICS, *run_metrics.GAUGES))
    metrics = run_metrics.RunMetrics(values)
    record.observer = lambda record, event: metrics.observe(record.run, "cpu:0", event)
    log = EventLog(SpoolWriter(directory.spool), "r", 1)
    log.emit(steps=run_pb2.StepRecords())  # without a step, which no child writes
    log.state(run_pb2.RUN_STATE_SUCCEEDED)
    assert record.refresh().state == run_pb2.RUN_STATE_SUCCEEDED
    assert "a defect while counting" in caplog.text
    assert values.get("crosstrain_run_ended_total", ("torch", "2", "train", "succeeded")) == 1


def test_names_labels_and_units_follow_the_rules():
    from crosstrain_service import service_metrics

    closed = {"engine", "version", "device", "phase", "stage", "kind", "state", "reason", "service",
              "service_version", "store"}
    units = ("_seconds", "_bytes", "_ratio", "_total", "_info")
    plain = {"crosstrain_run_loss", "crosstrain_run_steps", "crosstrain_run_learning_rate",
             "crosstrain_run_epoch_train_loss", "crosstrain_run_test_loss", "crosstrain_service_engine_available",
             "crosstrain_service_registered", "crosstrain_service_active_runs", "crosstrain_service_queue_runs",
             "crosstrain_service_watchers", "crosstrain_run_ranks"}
    everything = (*service_metrics.METRICS, *run_metrics.METRICS, *run_metrics.GAUGES)
    assert len({metric.name for metric in everything}) == len(everything)
    for metric in everything:
        assert metric.name.startswith("crosstrain_") and metric.help.endswith(".")
        assert metric.name.endswith(units) or metric.name in plain, metric.name
        assert metric.name.endswith("_total") == (metric.kind == COUNTER)
        assert bool(metric.buckets) == (metric.kind == HISTOGRAM)
        own = set(metric.labels) - closed
        assert own == ({"run"} if metric in run_metrics.GAUGES else set()), metric.name


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A service with metrics."""
    folder = tmp_path_factory.mktemp("measured")
    port_file = str(folder / "metrics")
    running = Service(folder / "state", options=("--metrics-port", "auto", "--metrics-port-file", port_file))
    with open(port_file) as file:
        running.metrics_port = int(file.read())
    yield running
    running.close()


def test_a_service_shows_a_run_while_it_lasts(measured):
    port = measured.metrics_port
    before = samples(page(port))
    assert of(before, "crosstrain_service_engine_available", engine="slow", version="1") == 1
    assert of(before, "crosstrain_step_samples_total", engine="slow", version="1", device="cpu:0") == 0
    assert of(before, "crosstrain_store_free_bytes", store="state") > 0
    assert any(name == "process_resident_memory_bytes" for name, _ in before)
    measured.train("shown", spec=measured.spec(30))
    run = {"run": "shown", "engine": "slow", "version": "1"}
    for event in measured.watch("shown"):
        if event.WhichOneof("event") == "steps":
            break
    during = samples(page(port))
    assert of(during, "crosstrain_service_active_runs", engine="slow", version="1", kind="train", state="running") == 1
    assert of(during, "crosstrain_run_loss", **run) > 0
    list(measured.watch("shown"))
    last = samples(page(port))
    assert of(last, "crosstrain_run_steps", **run) == 30
    assert of(last, "crosstrain_run_test_accuracy_ratio", **run) is not None
    where = {"engine": "slow", "version": "1", "device": "cpu:0"}
    assert of(last, "crosstrain_step_samples_total", **where) == 30 * 6
    assert of(last, "crosstrain_step_duration_seconds_count", **where) == 29
    assert of(last, "crosstrain_run_epochs_total", **where) == 3
    assert of(last, "crosstrain_run_ended_total", engine="slow", version="1", kind="train", state="succeeded") == 1
    after = samples(page(port))
    assert not any(dict(labels).get("run") for _, labels in after)
    assert of(after, "crosstrain_spool_size_bytes") > 1000


def test_a_restarted_front_does_not_count_history_again(measured):
    measured.train("history", spec=measured.spec(5))
    list(measured.watch("history"))
    measured.kill()
    measured.start()
    with open(measured.options[-1]) as file:
        found = samples(page(int(file.read())))
    assert of(found, "crosstrain_step_samples_total", engine="slow", version="1", device="cpu:0") == 0
    assert of(found, "crosstrain_run_ended_total", engine="slow", version="1", kind="train", state="succeeded") == 0


def test_only_metrics_are_served(measured):
    with open(measured.options[-1]) as file:
        port = int(file.read())
    with pytest.raises(urllib.error.HTTPError) as caught:
        page(port, "/other")
    assert caught.value.code == 404


def start(tmp_path, *options):
    """Output of a service that does not start."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines")] + sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "crosstrain_service", "--package", "crosstrain_single", "--service", "slow",
         "--state", str(tmp_path), *options], env=environment, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, done.stderr.decode().strip().splitlines()


def test_a_port_that_was_asked_for_and_is_busy_refuses_the_start(tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        port = busy.getsockname()[1]
        status, lines = start(tmp_path, "--metrics-port", str(port))
    assert status == 1 and len(lines) == 1
    assert lines[0].startswith("metrics cannot be served on 127.0.0.1:%d: " % port) and "--metrics-port" in lines[0]


def test_a_port_must_be_one(tmp_path):
    for text in ("70000", "-1", "x"):
        status, lines = start(tmp_path, "--metrics-port=" + text)
        assert status == 2 and "number from 0" in lines[-1]


def test_the_default_port_may_be_busy_and_zero_means_none(monkeypatch, caplog):
    registry = exposition.registry_of(Values([]))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        monkeypatch.setattr(exposition, "DEFAULT_PORT", busy.getsockname()[1])
        assert exposition.bind("127.0.0.1:0", "", registry) is None
        assert "has no metrics" in caplog.text
    assert exposition.bind("127.0.0.1:0", "0", registry) is None
    server = exposition.bind("[::1]:0", "auto", registry)
    assert server is not None and server.port > 0
    server.close()
