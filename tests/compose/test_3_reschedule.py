"""Services whose containers go away during a run, like a deleted pod: the next one goes on from the checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from crosstrain.cli.jobfile import send_data
from crosstrain.client import Client
from crosstrain.data import DataCache, ImportOptions, import_sources
from crosstrain.results import JobRecord, RunRecord
from crosstrain_protos.v1 import coordinator_pb2
from tests.e2e import inputs
from tests.faults.test_faults_job import curves

from .stack import SERVICES, Stack

STEPS = 3000
#: Service by the engine that trains in it.
ENGINES = {"torch": "torch", "keras-theano": "keras_theano", "caffe": "caffe"}


def create(stack: Stack, client: Client, job_id: str, engine: str, **fields: object) -> None:
    """A job of 3,000 steps with a checkpoint every 50."""
    cache = DataCache(stack.folder / "cache" / "data")
    files = inputs.write_digits(stack.folder / "digits")
    found = import_sources(*files, ImportOptions(), cache)
    data = [send_data(client, item, cache) for item in (found.train, found.test)]
    text = inputs.document([engine], training={"epochs": 300}, execution={"checkpoint_every_steps": 50}, **fields)
    client.create_job(text, *data, job_id)


def watched(client: Client, job_id: str) -> JobRecord:
    record = JobRecord(client.get_job(job_id)).add_all(client.watch_job(job_id))
    record.update(client.get_job(job_id))
    return record


def recreate(stack: Stack, name: str) -> None:
    stack.compose("up", "--detach", "--force-recreate", "--no-deps", name)


def kill(stack: Stack, name: str) -> None:
    """Ends the service's processes at once, as a node that fails does; the container's restart policy does the rest."""
    stack.python(name, (
        "import os, signal\n"
        "for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):\n"
        "    command = open('/proc/%d/cmdline' % pid, 'rb').read()\n"
        "    if pid not in (1, os.getpid()) and b'crosstrain_service' in command:\n"
        "        os.kill(pid, signal.SIGKILL)\n"
    ))  # fmt: skip


def stop_and_start(stack: Stack, name: str) -> None:
    stack.compose("stop", name)
    stack.compose("start", name)


@pytest.mark.parametrize(
    ("engine", "away"), [("torch", recreate), ("keras-theano", stop_and_start), ("caffe", kill)],
    ids=["torch-recreated", "theano-stopped", "caffe-killed"],
)  # fmt: skip
def test_a_run_goes_on_in_the_next_container(
    stack: Stack, engine: str, away: Callable[[Stack, str], None], report: Callable[[str], None]
) -> None:
    service = SERVICES[ENGINES[engine]]
    with closing(stack.client()) as client:
        whole = f"whole-{engine}"
        create(stack, client, whole, engine)
        expected = one(watched(client, whole))
        job_id = f"moved-{engine}"
        create(stack, client, job_id, engine)
        wait_for_steps(client, job_id, STEPS // 6)
        began = time.monotonic()
        away(stack, service)
        gone = time.monotonic() - began
        record = watched(client, job_id)
        events = list(client.watch_job(job_id))
    assert record.state == coordinator_pb2.JOB_STATE_SUCCEEDED, record.error
    run = one(record)
    assert run.attempts == 2, f"{engine} was through before its container went"
    (losses,) = curves(events)[0].values()
    assert sorted(losses) == list(range(STEPS)), "one record per step"
    assert run.steps()["loss"].tolist() == expected.steps()["loss"].tolist(), "the curve is that of an undisturbed run"
    resumed = [event.attempt_started.resume_step for event in run.events if event.HasField("attempt_started")][-1]
    assert resumed > 0, "it began again"
    stack.wait_healthy(service)
    report(f"{engine}: resumed at step {resumed} of {STEPS}; its container was away after {gone:.1f} s")


def test_the_coordinator_may_go_meanwhile(stack: Stack) -> None:
    with closing(stack.client()) as client:
        create(stack, client, "coordinator-moved", "torch")
        wait_for_steps(client, "coordinator-moved", STEPS // 6)
        recreate(stack, "coordinator")
        stack.wait_healthy("coordinator")
        record = watched(client, "coordinator-moved")
    assert record.state == coordinator_pb2.JOB_STATE_SUCCEEDED, record.error
    run = one(record)
    assert run.attempts == 1, "the run went on without it"
    assert run.steps()["step"].tolist() == list(range(STEPS))
    stack.wait_registered()
    listed = stack.crosstrain("jobs", "--json")
    assert "coordinator-moved" in {item["job_id"] for item in json.loads(listed.out)}


def one(record: JobRecord) -> RunRecord:
    (run,) = record.training_runs()
    return run


def wait_for_steps(client: Client, job_id: str, count: int) -> None:
    """Returns once a job's run has recorded so many steps."""
    record = JobRecord(client.get_job(job_id))
    for event in client.watch_job(job_id):
        record.add(event)
        if any(run.last_step >= count for run in record.runs.values()):
            return
    raise AssertionError(f"the job ended before step {count}: {record.error}")
