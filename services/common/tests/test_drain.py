"""A service that is told to stop where its runs end with it: they go on from a checkpoint saved then."""

import glob
import os
import signal
import time

import pytest

from crosstrain_protos.v1 import run_pb2
from support import Service, curve


def steps_done(service, run_id, at_least):
    for event in service.watch(run_id):
        if event.WhichOneof("event") == "steps" and event.steps.first_step + len(event.steps.loss) >= at_least:
            return


@pytest.fixture
def draining(tmp_path):
    running = Service(tmp_path / "state", "crosstrain_single", ("--metrics-port", "0", "--drain-seconds", "20"))
    yield running
    running.close()


def test_a_run_goes_on_from_the_checkpoint_saved_at_the_end(draining):
    service = draining
    spec = service.spec(250, batch=1)
    spec.train.CopyFrom(service.dataset(samples=600))  # the epoch does not end, so nothing is saved by itself
    service.train("drained", spec=spec)
    service.train("waiting", spec=service.spec(3))
    steps_done(service, "drained", 10)
    child = service.child_pid("drained")
    begin = time.time()
    service.process.terminate()
    assert service.process.wait(30) == 0
    assert time.time() - begin < 10
    os.kill(child, signal.SIGKILL)  # as the end of a container does
    names = glob.glob(os.path.join(service.state, "runs", "drained", "checkpoints", "*.safetensors"))
    saved = max(int(os.path.basename(name)[:12]) for name in names)
    assert 10 <= saved < 250
    assert not os.path.exists(os.path.join(service.state, "runs", "waiting", "child.json"))
    service.channel.close()
    service.start()
    events = list(service.watch("drained"))
    assert events[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED
    assert sorted(curve(events)) == list(range(250))
    starts = [event.attempt_started.resume_step for event in events if event.WhichOneof("event") == "attempt_started"]
    assert starts == [0, saved]
    assert list(service.watch("waiting"))[-1].state_changed.state == run_pb2.RUN_STATE_SUCCEEDED


def test_an_idle_service_stops_at_once(draining):
    begin = time.time()
    draining.process.terminate()
    assert draining.process.wait(20) == 0
    assert time.time() - begin < 5
    draining.channel.close()
    draining.start()
