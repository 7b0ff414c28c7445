"""Whoever does not belong to a run reaches nothing of it, and disturbs nobody."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from .checks import curve
from .platform import Platform, document

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
