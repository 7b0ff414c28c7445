"""A run over two services: the leader waits for the other, both end together, and a stranger gets nowhere."""

import os
import signal
import socket
import time

import grpc
import numpy as np
import pytest
from test_ranks import SHORT, finished, loss, parallel, ranks_of, result, steps_done

from crosstrain_protos.v1 import run_pb2, service_pb2
from support import Service, curve

SECRET = b"s" * 32


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    running = [Service(folder / name, "crosstrain_ranks") for name in ("leader", "member")]
    yield running
    for service in running:
        service.close()


def request(services, place, run, spec, port=0, engine="ranks"):
    """The request to one of the two, its data uploaded there."""
    found = service_pb2.TrainRequest(run_id=run if not place else run + "-m1", engine=engine, spec=spec)
    group = found.group
    group.group_id, group.member, group.secret = run, place, SECRET
    group.ranks.extend([2, 1])
    group.host = "127.0.0.%d" % (place + 1)
    if place:
        group.leader_host, group.leader_port = "127.0.0.1", port
    return found


def both(services, run, steps=30, engine="ranks", **settings):
    """Starts a run of three ranks on both services; returns the leader's port."""
    specs = [parallel(service.spec(steps, batch=13), 3, **settings) for service in services]
    for spec in specs:
        spec.execution.checkpoint_every_steps = 5
    services[0].training.Train(request(services, 0, run, specs[0], engine=engine))
    port = next(event.group_opened.port for event in services[0].watch(run)
                if event.WhichOneof("event") == "group_opened")
    services[1].training.Train(request(services, 1, run, specs[1], port, engine))
    return port


def test_a_group_computes_what_one_rank_computes(services):
    both(services, "group", steps=14)
    services[0].train("group-alone", "ranks", parallel(services[0].spec(14, batch=13), 1))
    events = finished(services[0], "group")
    assert sorted(curve(events)) == list(range(14)) and result(events).ranks == 3
    np.testing.assert_allclose(list(curve(events).values()),
                               list(curve(finished(services[0], "group-alone")).values()), rtol=1e-12)
    finished(services[1], "group-m1")


def test_strangers_do_not_hold_up_a_group(services):
    """One is silent, one talks nonsense, one leaves: all before the member comes."""
    spec = parallel(services[0].spec(5, batch=13), 3)
    services[0].training.Train(request(services, 0, "strangers", spec))
    port = next(event.group_opened.port for event in services[0].watch("strangers")
                if event.WhichOneof("event") == "group_opened")
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    strangers[1].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    strangers[2].close()
    begin = time.time()
    services[1].training.Train(request(services, 1, "strangers", parallel(services[1].spec(5, batch=13), 3), port))
    finished(services[0], "strangers")
    assert time.time() - begin < 30
    for stranger in strangers[:2]:
        stranger.close()


def test_losses_of_the_member_are_noticed_and_the_run_goes_on(services):
    """Its rank is killed, then stopped; then its launcher is stopped, and goes on later."""
    losses = ["SIGKILL", "launcher"] if SHORT else ["SIGKILL", "SIGSTOP", "launcher"]
    steps = 40 + 40 * len(losses)
    both(services, "lost", steps=steps)
    for attempt, kind in enumerate(losses, 1):
        steps_done(services[0], "lost", 40 * attempt - 23, attempt)
        launcher = services[1].child_pid("lost-m1")
        if kind == "launcher":
            os.kill(launcher, signal.SIGSTOP)
        else:
            os.kill(ranks_of(services[1], "lost-m1")[0].pid, getattr(signal, kind))
        begin = time.time()
        found = loss(services[0], "lost", attempt)
        assert time.time() - begin < 10
        assert (found.rank, found.member) == ((-1, 1) if kind == "launcher" else (2, 1))
        if kind == "launcher":
            assert "nothing was heard" in found.reason
            os.kill(launcher, signal.SIGCONT)
    assert sorted(curve(finished(services[0], "lost"))) == list(range(steps))
    finished(services[1], "lost-m1")


def test_a_rank_of_the_member_hangs(services):
    both(services, "hangs", steps=20, engine="hanging-rank", stall_seconds=2)
    events = finished(services[0], "hangs")
    (lost,) = [event.rank_lost for event in events if event.WhichOneof("event") == "rank_lost"]
    assert (lost.rank, lost.member) == (2, 1)
    assert lost.reason.startswith("has not gone on for ")
    assert " s in step 12, while the others wait for it; rank 2 is at engine.py:" in lost.reason
    assert sorted(curve(events)) == list(range(20))
    finished(services[1], "hangs-m1")


def test_the_end_of_the_leader_is_the_end_of_the_member(services):
    both(services, "cancelled", steps=5000)
    steps_done(services[0], "cancelled", 5)
    assert services[0].cancel("cancelled").state == run_pb2.RUN_STATE_CANCELLED
    # Nobody is left to say so: the member looks for its leader until it is cancelled, too.
    assert services[1].cancel("cancelled-m1").state == run_pb2.RUN_STATE_CANCELLED


def test_groups_are_checked(services):
    spec = parallel(services[0].spec(3, batch=13), 3)
    for change, words in (
            (lambda group: group.ranks.append(1), "4 in all, but spec.execution.parallel asks for 3 ranks"),
            (lambda group: setattr(group, "secret", b"short"), "group.secret"),
            (lambda group: setattr(group, "host", "a b"), "'a b' is no host name"),
            (lambda group: setattr(group, "member", 2), "group.member"),
            (lambda group: setattr(group, "group_id", "../x"), "group.group_id")):
        found = request(services, 0, "checked", spec)
        change(found.group)
        with pytest.raises(grpc.RpcError) as caught:
            services[0].training.Train(found)
        assert words in caught.value.details()
