"""Runs between front and child: every order of events, damaged folders, watchers without number."""

import errno
import os
import subprocess
import sys
import threading
import time
import types

import grpc
import pytest
from local import Local

from crosstrain_protos.v1 import run_pb2, service_pb2, training_pb2
from crosstrain_service import convert
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.events import EventLog, state_of
from crosstrain_service.run_record import RunRecord
from crosstrain_service.rundir import RunDir
from crosstrain_service.runs import RunManager
from crosstrain_service.servicer import MAX_WATCHERS, TrainingServicer
from crosstrain_service.spool import SpoolWriter
from crosstrain_service.training import Execution
from support import HERE, failure

TRAIN = run_pb2.RUN_KIND_TRAIN


def environment(engine, execution, folder):
    return {}


def manager(folder):
    return RunManager(str(folder), "crosstrain_slow", str(folder / "artifacts"), environment)


def request(name):
    return service_pb2.TrainRequest(run_id=name, engine="slow")


def folder_of(state, name):
    directory = RunDir(str(state / "runs" / name))
    directory.create(TRAIN, request(name), time.time(), "1")
    return directory


def child(directory, artifacts, *arguments, **variables):
    variables = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(HERE, "engines")] + sys.path), **variables)
    return subprocess.Popen(
        [sys.executable, "-m", "crosstrain_service.child", "--run-dir", directory.path, "--artifacts", str(artifacts),
         "--package", "crosstrain_slow", "--attempt", "1"] + list(arguments), env=variables)


def test_child_that_starts_after_the_run_was_ended_does_nothing(tmp_path):
    for name in ("cancelled", "ended"):
        directory = folder_of(tmp_path, name)
        writer = SpoolWriter(directory.spool)
        if name == "cancelled":
            directory.request_cancel()
        else:
            EventLog(writer, name, 0).state(run_pb2.RUN_STATE_CANCELLED)
        before = writer.last_sequence
        assert child(directory, tmp_path).wait(30) == 75
        assert SpoolWriter(directory.spool).last_sequence == before


def test_front_does_not_write_while_a_child_has_the_lock(tmp_path):
    runs = manager(tmp_path)
    directory = folder_of(tmp_path, "busy")
    lock = directory.lock()
    runs.recover(lambda stored: Execution())
    record = runs.get("busy")
    assert record.note(run_pb2.RUN_STATE_CANCELLED) is False and state_of(directory.spool) == 1
    runs.close()
    os.close(lock)
    assert record.note(run_pb2.RUN_STATE_CANCELLED) is True
    assert record.note(run_pb2.RUN_STATE_FAILED) is True  # has ended, nothing is added
    assert state_of(directory.spool) == run_pb2.RUN_STATE_CANCELLED and record.refresh().last_sequence == 1


def test_refused_run_does_not_come_back(tmp_path, monkeypatch):
    runs = manager(tmp_path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(RunRecord, "note", full)
    with pytest.raises(CrosstrainError) as caught:
        runs.submit(TRAIN, request("refused"), "1", Execution())
    assert caught.value.reason == "STORAGE_FULL" and os.listdir(str(tmp_path / "runs")) == []


def test_damaged_folders_and_settings_that_fit_no_more_do_not_stop_the_start(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "stray").write_bytes(b"")
    damaged = folder_of(tmp_path, "damaged")
    with open(os.path.join(damaged.path, "request.pb"), "wb") as file:
        file.write(b"no header")
    folder_of(tmp_path, "other-cores")
    runs = manager(tmp_path)

    def execution_of(stored):
        raise CrosstrainError("INVALID_FIELD", "core 77 is not available here")

    runs.recover(execution_of)
    record = runs.get("other-cores")
    deadline = time.time() + 10
    while not record.ended and time.time() < deadline:
        time.sleep(0.01)
    runs.close()
    assert record.refresh().state == run_pb2.RUN_STATE_FAILED and "core 77" in record.refresh().error.message
    assert [item.run.run_id for item in runs.list()] == ["other-cores"]


def test_many_cancels_at_the_same_time_are_one(tmp_path):
    directory = folder_of(tmp_path, "many")
    failures = []

    def cancel():
        try:
            directory.request_cancel()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=cancel) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and directory.cancel_requested()
    assert os.path.exists(os.path.join(directory.path, "reserve"))


def test_process_left_behind_does_not_keep_the_run(service):
    service.train("orphaned", "orphaning", service.spec(10))
    last = list(service.watch("orphaned", timeout=40))[-1].state_changed
    assert last.state == run_pb2.RUN_STATE_FAILED and "SIGKILL in 3 attempts" in last.error.message


def test_ended_run_leaves_only_its_events(service):
    spec = service.spec(30, checkpoint_every_steps=7)
    service.train("tidy", spec=spec)
    service.train("tidy-after", spec=service.spec(2))
    assert list(service.watch("tidy"))[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED
    list(service.watch("tidy-after"))
    folder = os.path.join(service.state, "runs", "tidy")
    assert not {"checkpoints", "work", "reserve"} & set(os.listdir(folder))
    assert {"events.spool", "request.pb"} <= set(os.listdir(folder))


def test_watchers_never_keep_other_calls_waiting(service):
    service.train("watched", spec=service.spec(5000))
    service.train("unwatched", spec=service.spec(2))
    stub = service.training
    calls = [stub.WatchRun(service_pb2.WatchRunRequest(run_id="unwatched", after_sequence=1))
             for _ in range(MAX_WATCHERS)]
    refused, deadline = None, time.time() + 20
    while refused is None and time.time() < deadline:  # until all of them have arrived
        try:
            late = service_pb2.WatchRunRequest(run_id="watched", after_sequence=10 ** 6)
            next(iter(stub.WatchRun(late, timeout=0.3)))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                refused = failure(error)
    assert refused[0] == "RESOURCE_EXHAUSTED" and refused[1].reason == "LIMIT_EXCEEDED"
    begin = time.time()
    assert service.run("watched").run_id == "watched"
    service.train("meanwhile", spec=service.spec(2))
    assert service.cancel("watched").state == run_pb2.RUN_STATE_CANCELLED
    assert time.time() - begin < 4
    for call in calls:
        call.cancel()
    # A stream is free again once the service has noticed that its reader is gone.
    events, deadline = [], time.time() + 20
    while not events and time.time() < deadline:
        try:
            events = list(service.watch("meanwhile"))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            time.sleep(0.1)
    assert events[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED


@pytest.mark.parametrize("devices, supported, expected", [
    (("cpu:0", "cuda:0"), True, "cuda"), (("cpu:0", "cuda:0"), False, "cpu"), (("cpu:0",), True, "cpu")])
def test_device_that_is_not_named(tmp_path, devices, supported, expected):
    servicer = TrainingServicer("s", [], [service_pb2.DeviceDescription(name=name) for name in devices], None, None)
    message = training_pb2.Execution()
    assert servicer.execution(message, supported).device == expected
    assert convert.execution(message).device == expected, "the run's process reads the same"


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are looked up in /proc")
def test_every_thread_of_a_run_is_bound_to_its_cores(tmp_path):
    local = Local(tmp_path / "local")
    local.request.engine, local.spec.training.epochs = "slow", 100
    directory = RunDir(str(tmp_path / "bound"))
    directory.create(TRAIN, local.request, time.time(), "1")
    core = min(os.sched_getaffinity(0))
    process = child(directory, local.artifacts.root, "--affinity", str(core), OPENBLAS_NUM_THREADS="3",
                    OMP_NUM_THREADS="3")
    try:
        deadline = time.time() + 30
        while state_of(directory.spool) != run_pb2.RUN_STATE_RUNNING and time.time() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        tasks = os.listdir("/proc/%d/task" % process.pid)
        assert [os.sched_getaffinity(int(task)) for task in tasks] == [{core}] * len(tasks)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("check, value", [
    (convert.check_name, "name\n"), (convert.check_digest, "a" * 64 + "\n"), (convert._compiler, "xla\n")])
def test_line_break_at_the_end_is_refused(check, value):
    with pytest.raises(CrosstrainError):
        check(value, "field")
    check(value[:-1], "field")


@pytest.mark.parametrize("divisor", [1e-60, 1e60])
def test_divisor_that_single_precision_cannot_hold_is_refused(divisor, tmp_path):
    local = Local(tmp_path)
    local.spec.train.divisor = divisor
    with pytest.raises(CrosstrainError) as caught:
        convert.dataset(local.spec.train, types.SimpleNamespace(input_shape=(2, 6), classes=3), "train")
    assert caught.value.field == "train.divisor"
