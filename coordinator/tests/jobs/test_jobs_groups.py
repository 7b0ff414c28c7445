"""Runs that span several real services of one engine: formed, watched, restarted and freed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from crosstrain.client import Client
from crosstrain.store import Store
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service import weights
from crosstrain_service.errors import CrosstrainError
from doubles.process import CoordinatorProcess
from doubles.replica import Replica
from doubles.world import check_events, upload_dataset, wait_for

SUCCEEDED = coordinator_pb2.JOB_STATE_SUCCEEDED
DOCUMENT = """
name: spread
model: cnn2
training: {epochs: %d, batch_size: 13, optimizer: {sgd: {learning_rate: 0.1}}}
parallel: {data: %d, hosts: %d%s}
execution: {precision: float64, checkpoint_every_steps: 5}
engines: [%s]
cross_evaluate: %s
verdict: %s
"""


def document(
    epochs: int = 3, data: int = 3, hosts: int = 2, more: str = "", engines: str = "ranks",
    evaluate: str = "false", verdict: str = "{judge: false}",
) -> str:  # fmt: skip
    return DOCUMENT % (epochs, data, hosts, more, engines, evaluate, verdict)


class Spread:
    """A coordinator and two replicas, each at an address of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = CoordinatorProcess(folder, "--patience-seconds", "20", "--lease-seconds", "3")
        self.process.start()
        self.client = Client(self.process.address)
        self.replicas = [
            Replica(folder, f"ranks-{index}", self.process.address, f"127.0.0.{index + 2}") for index in range(2)
        ]
        self.await_services()
        self.train = upload_dataset(self.client, 60)
        self.test = upload_dataset(self.client, 8, seed=1)

    def await_services(self) -> None:
        """Returns once both are registered and answer."""
        wait_for(lambda: len({item.service for item in self.client.list_engines() if item.healthy}) == 2, 40)

    def create(self, text: str, job_id: str) -> coordinator_pb2.Job:
        return self.client.create_job(text, self.train, self.test, job_id)

    def finished(self, job_id: str) -> tuple[coordinator_pb2.Job, list[coordinator_pb2.JobEvent]]:
        events = list(self.client.watch_job(job_id))
        check_events(events)
        return self.client.get_job(job_id), events

    def await_steps(self, job_id: str, count: int) -> None:
        """Returns once a run of the job has done so many steps."""
        for event in self.client.watch_job(job_id):
            steps = event.run_event.steps
            if len(steps.loss) and steps.first_step + len(steps.loss) >= count:
                return
            assert event.WhichOneof("event") != "state_changed" or event.state_changed.state == 1, event

    def free(self) -> bool:
        """Whether no process of any run is left."""
        return not any(replica.left() for replica in self.replicas)

    def close(self) -> None:
        self.client.close()
        for replica in self.replicas:
            replica.close()
        self.process.close()


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spread]:
    opened = Spread(tmp_path_factory.mktemp("spread"))
    yield opened
    opened.close()


def curve(events: list[coordinator_pb2.JobEvent], run_id: str) -> list[float]:
    """Losses of a run, step by step; the last word on each step counts."""
    found: dict[int, float] = {}
    for event in events:
        if event.run_event.run_id == run_id:
            steps = event.run_event.steps
            found.update({steps.first_step + index: loss for index, loss in enumerate(steps.loss)})
    assert sorted(found) == list(range(len(found)))
    return [found[step] for step in range(len(found))]


def rank_losses(events: list[coordinator_pb2.JobEvent]) -> list[run_pb2.RankLost]:
    return [event.run_event.rank_lost for event in events if event.run_event.WhichOneof("event") == "rank_lost"]


def test_a_group_computes_what_one_service_computes(spread: Spread) -> None:
    text = document(engines="ranks, 'ranks[data=1]'", evaluate="true")
    job, events = None, []
    spread.create(text, "parity")
    job, events = spread.finished("parity")
    assert job.state == SUCCEEDED, job.error
    spans, alone = (run for run in job.runs if run.run.kind == run_pb2.RUN_KIND_TRAIN)
    assert [(item.service, item.ranks) for item in spans.members] == [("ranks-0", 2), ("ranks-1", 1)]
    assert (spans.service, spans.result.ranks, len(alone.members)) == ("ranks-0", 3, 0)
    one, other = curve(events, alone.run.run_id), curve(events, spans.run.run_id)
    assert len(one) == 15
    np.testing.assert_allclose(other, one, rtol=1e-12)
    tensors = [weights.from_bytes(spread.client.read(run.result.weights_digest))[0] for run in (alone, spans)]
    for name, value in tensors[0].items():
        np.testing.assert_allclose(tensors[1][name], value, rtol=0, atol=1e-12 * np.abs(value).max())
    # Saved weights are evaluated by one service; members' runs are no runs of the job.
    assert len(job.runs) == 4
    assert spread.replicas[1].runs() == [f"{spans.run.run_id}-m1"]
    wait_for(spread.free)


def test_a_probe_is_made_by_the_group_too(spread: Spread) -> None:
    job = spread.create(document(engines="ranks, 'ranks[data=1]'", verdict="{steps: [0, 3], envelope: 1}"), "judged")
    job, _ = spread.finished("judged")
    assert job.state == SUCCEEDED, job.error
    assert coordinator_pb2.Verdict.Name(job.verdict) in ("VERDICT_ROUNDING", "VERDICT_IDENTICAL")
    probe = next(run for run in job.runs if run.purpose == coordinator_pb2.RUN_PURPOSE_PROBE and run.members)
    assert f"{probe.run.run_id}-m1" in spread.replicas[1].runs()
    # Every kind of run of that engine is spread, however it came into the job.
    assert all(
        bool(run.members) == (not run.variant) for run in job.runs if run.run.kind != run_pb2.RUN_KIND_EVALUATE
    )


def test_the_secret_is_nowhere_to_be_read(spread: Spread) -> None:
    spread.create(document(epochs=60), "secret")
    spread.await_steps("secret", 3)
    store = Store(f"sqlite:///{spread.folder / 'state' / 'coordinator.sqlite'}")
    run = spread.client.get_job("secret").runs[0].run.run_id
    group = store.groups.get(run)
    assert group is not None
    secret = group.secret
    assert secret is not None
    assert len(secret) == 32
    spread.client.cancel_job("secret")
    job, events = spread.finished("secret")
    answers = [job.SerializeToString(), *(event.SerializeToString() for event in events)]
    logs = [path.read_bytes() for path in spread.folder.rglob("*") if path.suffix == ".log" or path.name == "log"]
    for text in answers + logs:
        assert secret not in text
        assert secret.hex().encode() not in text
    ended = store.groups.get(run)
    assert ended is not None
    assert ended.secret is None
    store.close()
    wait_for(spread.free)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_rank_is_reported_and_the_run_goes_on(spread: Spread, number: signal.Signals, victim: int) -> None:
    name = f"lost-{number}-{victim}"
    run = spread.create(document(epochs=16), name).runs[0].run.run_id
    spread.await_steps(name, 20)
    spread.replicas[victim].ranks(run if not victim else f"{run}-m1")[-1].send_signal(number)
    begin = time.monotonic()
    for event in spread.client.watch_job(name):
        if event.run_event.WhichOneof("event") == "rank_lost":
            break
    assert time.monotonic() - begin < 10
    job, events = spread.finished(name)
    assert job.state == SUCCEEDED, job.error
    assert len(curve(events, run)) == 16 * 5
    assert [(lost.rank, lost.member) for lost in rank_losses(events)] == [(victim + 1, victim)]
    wait_for(spread.free)


def test_a_member_whose_machine_is_lost_comes_back(spread: Spread) -> None:
    run = spread.create(document(epochs=16), "machine").runs[0].run.run_id
    spread.await_steps("machine", 20)
    replica = spread.replicas[1]
    replica.kill()
    for event in spread.client.watch_job("machine"):
        if event.run_event.WhichOneof("event") == "rank_lost":
            assert event.run_event.rank_lost.member == 1
            break
    time.sleep(2)
    replica.start()
    job, events = spread.finished("machine")
    assert job.state == SUCCEEDED, job.error
    assert len(curve(events, run)) == 16 * 5
    wait_for(spread.free)


def test_a_leader_whose_machine_is_lost_comes_back(spread: Spread) -> None:
    run = spread.create(document(epochs=16), "leader").runs[0].run.run_id
    spread.await_steps("leader", 20)
    spread.replicas[0].kill()
    wait_for(lambda: "ranks-0" in spread.client.get_job("leader").runs[0].notice, 10)
    spread.replicas[0].start()
    job, events = spread.finished("leader")
    assert job.state == SUCCEEDED, job.error
    assert not job.runs[0].notice
    assert any("ranks-0" in event.run_changed.notice for event in events)
    assert len(curve(events, run)) == 16 * 5
    wait_for(spread.free)


def test_a_cancelled_job_frees_both(spread: Spread) -> None:
    spread.create(document(epochs=500), "cancelled")
    spread.await_steps("cancelled", 3)
    spread.client.cancel_job("cancelled")
    job, _ = spread.finished("cancelled")
    assert job.state == coordinator_pb2.JOB_STATE_CANCELLED
    wait_for(spread.free, 10)


def test_an_error_of_one_rank_ends_all(spread: Spread) -> None:
    spread.create(document(epochs=50, engines="raising-rank"), "raising")
    job, _ = spread.finished("raising")
    assert job.state == coordinator_pb2.JOB_STATE_FAILED
    assert "rank 1" in job.error.message
    assert "kernel image is invalid" in job.error.message
    wait_for(spread.free, 10)


def test_the_port_of_a_rendezvous_may_be_taken(spread: Spread) -> None:
    """The usual port of such meetings, and the leader's own choice for the ranks, are whatever is free."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", 29500))
        taken.listen()
        spread.create(document(epochs=1), "taken")
        job, events = spread.finished("taken")
    assert job.state == SUCCEEDED, job.error
    ports = [
        event.run_event.group_opened.port
        for event in events
        if event.run_event.WhichOneof("event") == "group_opened"
    ]
    assert len(ports) == 1
    assert ports[0] not in (0, 29500)


def test_a_killed_coordinator_goes_on_and_frees_what_it_left(spread: Spread) -> None:
    run = spread.create(document(epochs=40), "killed").runs[0].run.run_id
    for pause in (0.0, 0.3, 0.5, 1.0, 1.5):
        time.sleep(pause)
        spread.process.kill()
        spread.process.start()
    job, events = spread.finished("killed")
    assert job.state == SUCCEEDED, job.error
    assert len(curve(events, run)) == 200
    assert rank_losses(events) == []
    assert [name for name in spread.replicas[1].runs() if name.startswith(run)] == [f"{run}-m1"]
    spread.await_services()
    spread.create(document(epochs=500), "killed-2")
    spread.await_steps("killed-2", 3)
    spread.client.cancel_job("killed-2")
    spread.process.kill()
    spread.process.start()
    assert spread.finished("killed-2")[0].state == coordinator_pb2.JOB_STATE_CANCELLED
    wait_for(spread.free, 15)
    spread.await_services()


def test_a_service_that_is_away_at_the_start_is_named(spread: Spread) -> None:
    replica = spread.replicas[1]
    spread.await_services()
    os.kill(replica.process.pid, signal.SIGSTOP)
    try:
        spread.create(document(), "away")
        job, _ = spread.finished("away")
    finally:
        os.kill(replica.process.pid, signal.SIGCONT)
    assert job.state == coordinator_pb2.JOB_STATE_FAILED
    assert "service ranks-1" in job.error.message
    assert spread.free()
    spread.await_services()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 3}, "3 services with ranks@"),
        ({"hosts": 4}, "3 ranks cannot be spread over 4 hosts"),
    ],
)
def test_what_cannot_be_formed_is_refused(spread: Spread, options: dict[str, int], words: str) -> None:
    with pytest.raises(CrosstrainError) as caught:
        spread.create(document(**options), "refused")  # type: ignore[arg-type]
    assert words in str(caught.value)
