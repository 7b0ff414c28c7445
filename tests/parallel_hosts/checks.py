"""What several tests do with a platform."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from crosstrain_protos.v1 import run_pb2

from .network import Host, Server
from .platform import Platform, document


def curve(events: Iterable[run_pb2.RunEvent], run_id: str) -> list[float]:
    """Losses of a run, step by step; the last word on each step counts. Fails on a gap."""
    found: dict[int, float] = {}
    for event in events:
        if event.run_id == run_id:
            found.update({event.steps.first_step + index: loss for index, loss in enumerate(event.steps.loss)})
    assert sorted(found) == list(range(len(found)))
    return [found[step] for step in range(len(found))]


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


def check_parity(platform: Platform, job_id: str, engines: list[str], tolerance: float) -> None:
    """The runs of a job: the last engine on one rank, the others on two hosts; all compute the same."""
    platform.create(document(", ".join(f"'{name}'" for name in engines), epochs=2, data=2), job_id)
    job, events = platform.finished(job_id)
    alone = job.runs[-1]
    expected, trained = curve(events, alone.run.run_id), platform.tensors(alone)
    assert len(expected) == 10
    for run in job.runs[:-1]:
        assert [item.ranks for item in run.members] == [1, 1]
        np.testing.assert_allclose(curve(events, run.run.run_id), expected, rtol=tolerance)
        found = platform.tensors(run)
        for name, value in trained.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * np.abs(value).max())
    platform.await_free()


def check_loss(platform: Platform, job_id: str, run_id: str, steps: int) -> None:
    """Kills the last rank of the second member: it is reported within 10 seconds, and the curve is complete."""
    platform.ranks(1, run_id)[-1].kill()
    seconds, rank, member = noticed(platform, job_id)
    assert seconds < 10
    assert (rank, member) == (1, 1)
    _, events = platform.finished(job_id)
    assert len(curve(events, run_id)) == steps
    platform.await_free()


def stores(host: Host, address: str, ports: Iterable[int]) -> dict[int, str]:
    """Ports of an address at which a key-value store answers a client on a host, and whose it is."""
    command = host.command(sys.executable, str(Path(__file__).with_name("stores.py")), address, *map(str, ports))
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {int(port): name for port, name in found.items()}


def check_stores(platform: Platform, kind: str) -> None:
    """Both members reach the store of a run at their loopback interface; a stranger reaches it nowhere."""
    for member in platform.members:
        listening = member.host.listening()
        assert {address for address, _ in listening} <= {"127.0.0.1", member.host.address}
        inside = stores(member.host, "127.0.0.1", [port for address, port in listening if address == "127.0.0.1"])
        assert list(inside.values()) == [kind]
        assert not stores(platform.stranger, member.host.address, {port for _, port in listening})
