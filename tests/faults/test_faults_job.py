"""A job whose coordinator, service front or child is killed at 20 random moments each.

Every run of the job trains the same thing with a deterministic engine, so every curve must be complete,
without doubles, and equal to every other curve, bit for bit.
"""

from __future__ import annotations

import io
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from crosstrain.client import Client
from crosstrain_protos.v1 import coordinator_pb2, data_pb2, run_pb2

from .processes import Platform

KILLS = 20
STEPS = 40
RUNS = 40

DOCUMENT = f"""
name: killed
model:
  name: tiny
  layers:
    - convolution: {{channels: 2, kernel: 3, padding: 1}}
    - relu
    - max_pool: {{kernel: 2}}
    - flatten
    - dense: {{units: classes}}
training:
  epochs: 4
  batch_size: 6
  optimizer: {{sgd: {{learning_rate: 0.05, momentum: 0.9}}}}
engines: [slow]
repeats: {RUNS}
cross_evaluate: false
verdict: {{judge: false}}
execution: {{checkpoint_every_steps: 7, threads: 1}}
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    started = Platform(tmp_path)
    yield started
    started.close()


def dataset(client: Client) -> data_pb2.Dataset:
    random_state = np.random.RandomState(3)
    pixels = random_state.randint(0, 256, (60, 1, 8, 8)).astype(np.uint8)
    labels = (pixels[:, 0, 0, 0] % 4).astype("<i8")
    return data_pb2.Dataset(
        pixels_digest=client.upload(npy(pixels)), labels_digest=client.upload(npy(labels)), samples=60,
        input_shape=(1, 8, 8), classes=4, divisor=255,
    )  # fmt: skip


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def wait_for_engine(client: Client) -> None:
    deadline = time.monotonic() + 60
    while not any(engine.healthy for engine in client.list_engines()):
        assert time.monotonic() < deadline, "the service did not register"
        time.sleep(0.05)


def curves(events: list[coordinator_pb2.JobEvent]) -> tuple[dict[str, dict[int, float]], dict[str, list[int]]]:
    """Losses by step of every run, and the attempts that were started; fails on gaps and doubles."""
    losses: dict[str, dict[int, float]] = {}
    attempts: dict[str, list[int]] = {}
    numbers: dict[str, int] = {}
    for index, event in enumerate(events, 1):
        assert event.sequence == index, "the job's sequence numbers have a gap"
        if not event.HasField("run_event"):
            continue
        item = event.run_event
        curve = losses.setdefault(item.run_id, {})
        assert item.sequence == numbers.get(item.run_id, 0) + 1, "a run's sequence numbers have a gap"
        numbers[item.run_id] = item.sequence
        kind = item.WhichOneof("event")
        if kind == "attempt_started":
            attempts.setdefault(item.run_id, []).append(item.attempt)
            for step in [step for step in curve if step >= item.attempt_started.resume_step]:
                del curve[step]
        elif kind == "steps":
            for offset, loss in enumerate(item.steps.loss):
                step = item.steps.first_step + offset
                assert step == len(curve), f"step {step} of {item.run_id} is lost or doubled"
                curve[step] = loss
    return losses, attempts


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["coordinator", "front", "child"])
def test_nothing_is_lost_doubled_or_executed_twice(platform: Platform, victim: str) -> None:
    moments = random.Random(victim)
    client = Client(platform.coordinator.address, retry=30)
    wait_for_engine(client)
    data = dataset(client)
    client.create_job(DOCUMENT, data, data, "job")
    kills = 0
    killed: Counter[str] = Counter()
    while kills < KILLS and client.get_job("job").state == coordinator_pb2.JOB_STATE_RUNNING:
        time.sleep(moments.uniform(0.1, 1.2))
        if victim == "coordinator":
            platform.coordinator.kill()
            platform.coordinator.start()
            kills += 1
        elif victim == "front":
            platform.service.kill()
            platform.service.start()
            kills += 1
        else:
            # Three deaths in a row without a checkpoint end a run, by design.
            run_id = platform.kill_child([name for name, count in killed.items() if count == 2])
            killed[run_id] += 1
            kills += bool(run_id)
    events = list(client.watch_job("job"))
    job = client.get_job("job")
    assert kills == KILLS, f"the job ended after {kills} kills; it is too short for this machine"
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED, job.error.message
    assert [run.run.state for run in job.runs] == [run_pb2.RUN_STATE_SUCCEEDED] * RUNS
    losses, attempts = curves(events)
    assert len(losses) == RUNS
    first = next(iter(losses.values()))
    assert sorted(first) == list(range(STEPS))
    assert all(curve == first for curve in losses.values()), "a resumed curve differs"
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in attempts.values())
    started = sum(len(numbers) for numbers in attempts.values())
    if victim == "child":
        # A child may be killed before its first event, so kills and restarts are not equal.
        assert RUNS < started <= RUNS + KILLS
    else:
        assert started == RUNS, "a run was executed twice"
    client.close()


def test_fifty_submissions_at_once_are_one_job(platform: Platform) -> None:
    from concurrent.futures import ThreadPoolExecutor

    client = Client(platform.coordinator.address)
    wait_for_engine(client)
    data = dataset(client)
    document = DOCUMENT.replace(f"repeats: {RUNS}", "repeats: 1")
    with ThreadPoolExecutor(50) as pool:
        jobs = list(pool.map(lambda _: client.create_job(document, data, data, "one"), range(50)))
    assert len({(job.job_id, job.create_time.ToNanoseconds()) for job in jobs}) == 1
    assert len(list(client.list_jobs())) == 1
    losses, attempts = curves(list(client.watch_job("one")))
    assert len(losses) == 1 and list(attempts.values()) == [[1]]
    client.close()
