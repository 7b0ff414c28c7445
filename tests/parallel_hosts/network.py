"""Hosts of a test: network namespaces of this machine on one bridge (Linux, root, iproute2)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: Addresses for tests of networks, used nowhere else (RFC 2544).
SUBNET = "198.18.%d" % (os.getpid() % 250)


class Unavailable(Exception):
    """There can be no such network here; the message says why."""


def ip(*arguments: str, check: bool = True) -> str:
    """Runs ``ip``."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable("the command ip is missing (Debian package iproute2)") from None
    if check and done.returncode:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Network:
    """A bridge in a namespace of its own; this process's own host is at ``.1``.

    Raises:
        Unavailable: without root, iproute2, or the kernel's leave.
    """

    def __init__(self) -> None:
        if os.geteuid():
            raise Unavailable("network namespaces need root")
        self._tag = f"xt{os.getpid() % 100000}"
        self._count = 0
        self._namespaces: list[str] = []
        try:
            self._bridge = self._namespace("b")
            ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
            ip("-n", self._bridge, "link", "set", "bridge", "up")
            # This host, whose tests call the coordinator.
            self._own = f"{self._tag}own"
            ip("link", "add", self._own, "type", "veth", "peer", "name", "own", "netns", self._bridge)
            ip("-n", self._bridge, "link", "set", "own", "master", "bridge", "up")
            ip("address", "add", f"{SUBNET}.1/24", "dev", self._own)
            ip("link", "set", self._own, "up")
        except Unavailable:
            self.close()
            raise

    def _namespace(self, name: str) -> str:
        full = f"{self._tag}{name}"
        ip("netns", "add", full)
        self._namespaces.append(full)
        ip("-n", full, "link", "set", "lo", "up")
        return full

    def host(self) -> Host:
        """A new host."""
        self._count += 1
        name, port = f"h{self._count}", f"p{self._count}"
        namespace = self._namespace(name)
        address = f"{SUBNET}.{10 + self._count}"
        ip("-n", self._bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        return Host(namespace, address, self._bridge, port)

    def close(self) -> None:
        """Ends every process of every host, and removes them."""
        for name in self._namespaces:
            for pid in ip("netns", "pids", name, check=False).split():
                os.kill(int(pid), 9)
        for name in self._namespaces:
            ip("netns", "delete", name, check=False)


class Host:
    """One host: its namespace, its address, and its port of the bridge."""

    def __init__(self, namespace: str, address: str, bridge: str, port: str) -> None:
        self.namespace = namespace
        self.address = address
        self._bridge = bridge
        self._port = port

    def cut(self) -> None:
        """Takes the host off the network: nothing arrives any more, and nobody is told."""
        ip("-n", self._bridge, "link", "set", self._port, "down")

    def join(self) -> None:
        """Puts it back."""
        ip("-n", self._bridge, "link", "set", self._port, "up")

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs here."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def pids(self) -> list[int]:
        """Processes here that have not ended."""
        found = [int(pid) for pid in ip("netns", "pids", self.namespace).split()]
        return [pid for pid in found if _state(pid) not in ("", "Z")]

    def listening(self) -> list[tuple[str, int]]:
        """Addresses and ports at which something listens for TCP here."""
        found = []
        for line in ip("netns", "exec", self.namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines():
            fields = line.split()
            if fields[3] == "0A":
                words, port = fields[1].split(":")
                # The kernel shows words of 32 bits in the byte order of the machine.
                packed = b"".join(
                    int(words[place : place + 8], 16).to_bytes(4, sys.byteorder) for place in range(0, len(words), 8)
                )
                family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
                address = socket.inet_ntop(family, packed)
                found.append((address.removeprefix("::ffff:"), int(port, 16)))
        return found


class Server:
    """A process of the platform on a host; it may be killed and started again on the same port and state."""

    def __init__(self, host: Host, folder: Path, command: list[str], variables: dict[str, str]) -> None:
        self.host = host
        self.folder = folder
        folder.mkdir(parents=True)
        self._command = command
        self._variables = variables
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it is ready."""
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [*self._command, "--listen", self.address, "--port-file", str(port_file), "--metrics-port", "0"]
        environment = {**os.environ, **self._variables, "OMP_NUM_THREADS": "1"}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.host.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + 120
        while not port_file.exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the process did not become ready"
            time.sleep(0.02)
        self.port = int(port_file.read_text())

    def left(self) -> list[int]:
        """Processes of its host beside it."""
        return [pid for pid in self.host.pids() if pid != self.process.pid]

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def await_true(condition: Callable[[], bool], seconds: float) -> None:
    """Returns when a condition holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def network_or_skip() -> Network:
    """The network; skips the test, with the reason, where it cannot be had."""
    try:
        return Network()
    except Unavailable as reason:
        pytest.skip(f"hosts cannot be made here: {reason}")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
