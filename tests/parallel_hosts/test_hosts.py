"""A run over two hosts computes what one computes, and loses neither its way nor a process, whatever happens."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from .network import Network, Server, network_or_skip
from .platform import Platform, ServicesMissing, await_true, curve, document

#: Connects to an address again and again: silent, talking nonsense, leaving at once.
STRANGER = """
import socket, sys, time
kept = []
while True:
    for text in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n" * 20, None):
        try:
            found = socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
            if text is None:
                found.close()
            else:
                found.sendall(text)
                kept.append(found)
        except OSError:
            pass
        time.sleep(1.0)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    opened = network_or_skip()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Platform]:
    started = Platform(tmp_path_factory.mktemp("hosts"), network)
    yield started
    started.close()


@contextlib.contextmanager
def cut_off(server: Server) -> Iterator[None]:
    """Takes a server's host off the network for a while."""
    server.host.cut()
    try:
        yield
    finally:
        server.host.join()


def noticed(platform: Platform, job_id: str) -> tuple[float, int, int]:
    """Seconds until the loss of a rank is reported, which one, and of which member."""
    begin = time.monotonic()
    lost = platform.await_event(job_id, "rank_lost")
    assert lost.reason
    return time.monotonic() - begin, lost.rank, lost.member


def test_two_hosts_compute_what_one_rank_computes(platform: Platform) -> None:
    platform.create(document("ranks, 'ranks[data=1]'"), "parity")
    job, events = platform.finished("parity")
    spans, alone = job.runs
    assert [(item.service, item.ranks) for item in spans.members] == [("member-0", 2), ("member-1", 1)]
    assert spans.result.ranks == 3
    np.testing.assert_allclose(curve(events, spans.run.run_id), curve(events, alone.run.run_id), rtol=1e-12)
    one, other = platform.tensors(alone), platform.tensors(spans)
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-12 * np.abs(value).max())
    platform.await_free()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_rank_is_reported_and_the_run_completes(
    platform: Platform, number: signal.Signals, victim: int
) -> None:
    name = f"lost-{number}-{victim}"
    run = platform.create(document("ranks", epochs=16), name)
    platform.await_steps(name, 20)
    platform.ranks(victim, run)[-1].send_signal(number)
    seconds, rank, member = noticed(platform, name)
    assert seconds < 10
    assert (rank, member) == (victim + 1, victim)
    _, events = platform.finished(name)
    assert len(curve(events, run)) == 80
    platform.await_free()


def test_a_member_cut_off_is_reported_and_awaited(platform: Platform) -> None:
    run = platform.create(document("ranks", epochs=30), "cut")
    platform.await_steps("cut", 20)
    with cut_off(platform.members[1]):
        seconds, _, place = noticed(platform, "cut")
        assert seconds < 10
        assert place == 1
        # Nothing computes on either side: the leader awaits its member, and that its leader.
        await_true(lambda: not any(platform.ranks(side, run) for side in (0, 1)), 10)
        time.sleep(3)
    _, events = platform.finished("cut")
    assert len(curve(events, run)) == 150
    platform.await_free()


def test_a_group_is_freed_though_a_member_is_cut_off(platform: Platform) -> None:
    platform.create(document("ranks", epochs=500), "cancelled")
    platform.await_steps("cancelled", 10)
    with cut_off(platform.members[1]):
        platform.client.cancel_job("cancelled")
        for _ in platform.events("cancelled"):
            pass
        await_true(lambda: not platform.members[0].left(), 5)
    platform.await_services()
    platform.await_free()


def test_a_stranger_does_not_disturb(platform: Platform) -> None:
    """One that knows the leader's address and port, but not the secret, before and while the members meet."""
    member = platform.members[1]
    # The member waits behind another run, so that the stranger comes first.
    member.process.send_signal(signal.SIGSTOP)
    threading.Timer(6.0, member.process.send_signal, [signal.SIGCONT]).start()
    run = platform.create(document("ranks", epochs=4), "stranger")
    port = platform.await_event("stranger", "group_opened").port
    leader = platform.members[0].host
    with subprocess.Popen(
        platform.stranger.command(sys.executable, "-c", STRANGER, leader.address, str(port))
    ) as intruder:
        try:
            _, events = platform.finished("stranger")
        finally:
            intruder.kill()
    assert len(curve(events, run)) == 20
    assert not any(event.WhichOneof("event") == "rank_lost" for event in events)
    platform.await_free()


def test_usual_ports_may_be_taken_and_nothing_listens_for_all(platform: Platform) -> None:
    listener = "import socket,time; s=socket.socket(); s.bind(('0.0.0.0',29500)); s.listen(); time.sleep(60)"
    hosts = [member.host for member in platform.members]
    takers = [subprocess.Popen(host.command(sys.executable, "-c", listener)) for host in hosts]
    try:
        while not all(("0.0.0.0", 29500) in host.listening() for host in hosts):
            time.sleep(0.05)
        platform.create(document("ranks", epochs=16), "taken")
        platform.await_steps("taken", 5)
        for host in hosts:
            assert {address for address, port in host.listening() if port != 29500} <= {host.address, "127.0.0.1"}
        platform.finished("taken")
    finally:
        for taker in takers:
            taker.kill()
            taker.wait()
    platform.await_free()
    with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
        socket.create_connection((hosts[0].address, 29500), 1)


def test_the_coordinator_may_be_killed(platform: Platform) -> None:
    run = platform.create(document("ranks", epochs=30), "killed")
    for pause in (0.2, 0.6, 1.2):
        time.sleep(pause)
        platform.coordinator.process.kill()
        platform.coordinator.process.wait()
        platform.coordinator.start()
    _, events = platform.finished("killed")
    assert len(curve(events, run)) == 150
    platform.await_free()


def test_torch_over_two_hosts(tmp_path: Path, network: Network) -> None:
    """The real engine: Gloo between the namespaces, parity of two ranks with one, a lost rank."""
    try:
        started = Platform(tmp_path, network, "torch")
    except ServicesMissing as reason:
        pytest.skip(str(reason))
    try:
        features = {
            item.name: item.support
            for engine in started.client.list_engines()
            for item in engine.description.features
        }
        if features.get("parallel.hosts", 3) == 3:
            pytest.skip("the engine does not declare parallel.hosts")
        started.create(document("torch, 'torch[data=1]'", epochs=2, data=2), "torch")
        job, events = started.finished("torch")
        spans, alone = job.runs
        np.testing.assert_allclose(curve(events, spans.run.run_id), curve(events, alone.run.run_id), rtol=1e-10)
        run = started.create(document("torch", epochs=60, data=2), "torch-lost")
        started.await_steps("torch-lost", 20)
        started.ranks(1, run)[-1].send_signal(signal.SIGKILL)
        seconds, rank, member = noticed(started, "torch-lost")
        assert seconds < 10
        assert (rank, member) == (1, 1)
        _, events = started.finished("torch-lost")
        assert len(curve(events, run)) == 300
        started.await_free()
    finally:
        started.close()
