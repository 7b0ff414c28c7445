"""A real coordinator process, killed with SIGKILL at random moments, against fake services."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crosstrain.client import Client
from crosstrain.compare.verdict import read_verdict
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError
from doubles.fake_service import FakeService
from doubles.process import CoordinatorProcess
from doubles.world import check_events, document, upload_dataset

STEPS = 60
KILLS = 6


@pytest.fixture
def services(tmp_path: Path) -> Iterator[list[FakeService]]:
    started = [
        FakeService(tmp_path, "a", (("torch", "2.13.0"),), STEPS, 0.01).start(),
        FakeService(tmp_path, "b", (("lasagne", "0.1"),), STEPS, 0.01, host="127.0.0.2").start(),
    ]
    yield started
    for service in started:
        service.stop()


def test_kills_at_random_moments_lose_and_double_nothing(
    tmp_path: Path, url: str, services: list[FakeService]
) -> None:
    process = CoordinatorProcess(tmp_path, "--database-url", url)
    process.start()
    client = Client(process.address)
    try:
        for service in services:
            client.register_service(service.name, service.address)
        train, test = upload_dataset(client), upload_dataset(client, 8, seed=1)
        text = document("torch", "lasagne", repeats=3, cross_evaluate=True)
        client.create_job(text, train, test, "j")
        seen: list[coordinator_pb2.JobEvent] = []
        watcher = threading.Thread(target=lambda: seen.extend(client.watch_job("j")))
        watcher.start()
        moments = random.Random(int(time.time()))
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 0.6))
            process.kill()
            process.start()
            # The same request again, as a client does that got no answer.
            client.create_job(text, train, test, "j")
        watcher.join(timeout=60)
        assert not watcher.is_alive()
        job = client.get_job("j")
    finally:
        client.close()
        process.close()
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    check_events(seen)
    assert len(seen) == job.last_sequence
    executions = services[0].executions + services[1].executions
    assert len(executions) == 3 * 2 + 2
    assert set(executions.values()) == {1}
    for run in job.runs:
        mine = [event.run_event for event in seen if event.run_event.run_id == run.run.run_id]
        made = next(service.runs[run.run.run_id] for service in services if run.run.run_id in service.runs).events
        assert mine == made
        if run.run.kind == run_pb2.RUN_KIND_TRAIN:
            steps = [event.steps.first_step for event in mine if event.HasField("steps")]
            assert steps == list(range(STEPS))


def test_a_kill_while_jobs_are_created_leaves_each_of_them_once(
    tmp_path: Path, services: list[FakeService]
) -> None:
    process = CoordinatorProcess(tmp_path)
    process.start()
    client = Client(process.address)
    try:
        for service in services:
            client.register_service(service.name, service.address)
            service.delay, service.steps = 0.0, 2
        train = upload_dataset(client)
        names = [f"job{index}" for index in range(12)]

        def submit(name: str) -> None:
            while True:
                try:
                    client.create_job(document("torch"), train, None, name, timeout=20.0)
                    return
                except CrosstrainError as error:
                    if error.reason != "SERVICE_UNREACHABLE":
                        raise
                    time.sleep(0.05)

        threads = [threading.Thread(target=submit, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        for _ in range(2):
            process.kill()
            process.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join(timeout=60)
        for name in names:
            check_events(list(client.watch_job(name)))
            assert client.get_job(name).state == coordinator_pb2.JOB_STATE_SUCCEEDED
        assert sorted(job.job_id for job in client.list_jobs()) == sorted(names)
    finally:
        client.close()
        process.close()
    assert set(services[0].executions.values()) == {1}
    assert len(services[0].executions) == len(names)


def test_kills_while_probing_and_judging_give_one_verdict(
    tmp_path: Path, url: str, services: list[FakeService]
) -> None:
    process = CoordinatorProcess(tmp_path, "--database-url", url)
    process.start()
    client = Client(process.address)
    try:
        for service in services:
            client.register_service(service.name, service.address)
        train, test = upload_dataset(client), upload_dataset(client, 8, seed=1)
        text = document("torch", "lasagne", verdict="{steps: [0], envelope: 1}")
        client.create_job(text, train, test, "j")
        seen: list[coordinator_pb2.JobEvent] = []
        watcher = threading.Thread(target=lambda: seen.extend(client.watch_job("j")))
        watcher.start()
        moments = random.Random(int(time.time()))
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.0, 3.0))
            process.kill()
            process.start()
        watcher.join(timeout=90)
        assert not watcher.is_alive()
        job = client.get_job("j")
        document_found = read_verdict(client.read(job.verdict_digest))
    finally:
        client.close()
        process.close()
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    check_events(seen)
    assert sum(event.WhichOneof("event") == "verdict_reached" for event in seen) == 1
    assert coordinator_pb2.Verdict.Name(job.verdict) == f"VERDICT_{document_found['verdict']}"
    executions = services[0].executions + services[1].executions
    assert set(executions.values()) == {1}
    checked = [
        event.run_changed.run.run_id
        for event in seen
        if event.WhichOneof("event") == "run_changed" and event.run_changed.certificate_digest
    ]
    assert sorted(set(checked)) == sorted(run.run.run_id for run in job.runs if run.certificate_digest)
    assert len(set(checked)) == 2


def test_the_process_ends_when_told_and_stays_small(tmp_path: Path, services: list[FakeService]) -> None:
    process = CoordinatorProcess(tmp_path)
    process.start()
    with Client(process.address) as client:
        for service in services:
            client.register_service(service.name, service.address)
            service.delay = 0.0
        train, test = upload_dataset(client), upload_dataset(client, 8, seed=1)
        client.create_job(document("torch", "lasagne", cross_evaluate=True), train, test, "j")
        check_events(list(client.watch_job("j")))
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak < 200 * 1024
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "pyarrow" not in maps
        assert "pandas" not in maps
    assert process.terminate() == 0
