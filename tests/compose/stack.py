"""The compose stack under a project name and ports of its own, and the command line outside of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosstrain.client import Client

from .docker import compose_command, docker, inspect, run
from .images import ROOT

#: Another name lets two of these test runs go on one daemon.
PROJECT = os.environ.get("CROSSTRAIN_E2E_PROJECT", "crosstrain-e2e")
#: Services of compose.yaml by the name under which they register.
SERVICES = {
    "reference": "reference", "torch": "torch", "tensorflow-2.21": "tensorflow", "tensorflow-2.12": "tensorflow-2.12",
    "keras_theano": "keras-theano", "caffe": "caffe",
}  # fmt: skip
_UP_SECONDS = 900


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Ran:
    """What the command line did, and how long it took."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Stack:
    """Started with :meth:`up`. ``datasets`` is the folder whose files jobs may name."""

    def __init__(self, folder: Path, datasets: Path, variables: dict[str, str], project: str = PROJECT) -> None:
        self.folder = folder
        self.project = project
        self.port = free_port()
        self.prometheus_port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._variables = {
            **variables, "CROSSTRAIN_PORT": str(self.port), "CROSSTRAIN_DATASETS": str(datasets),
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }  # fmt: skip
        self.overrides: list[Path] = []

    def compose(self, *arguments: str, check: bool = True, timeout: float = _UP_SECONDS) -> Ran:
        """Runs a compose command on the stack."""
        files = [str(ROOT / "docker" / "compose.yaml"), *map(str, self.overrides)]
        command = [*compose_command(), "--project-name", self.project]
        command += [part for file in files for part in ("--file", file)]
        began = time.monotonic()
        done = run([*command, *arguments], check=check, timeout=timeout, variables=self._variables, folder=ROOT)
        return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def up(self, *services: str, profile: str = "", check: bool = True) -> Ran:
        """Starts the stack, or some services of it, and waits until all are healthy."""
        profiles = ("--profile", profile) if profile else ()
        wait = str(_UP_SECONDS - 60)
        return self.compose(*profiles, "up", "--detach", "--wait", "--wait-timeout", wait, *services, check=check)

    def down(self) -> None:
        """Removes the containers, volumes and networks."""
        self.compose("--profile", "monitoring", "down", "--volumes", "--timeout", "5", check=False)

    def client(self) -> Client:
        """A client of the coordinator."""
        return Client(self.address, retry=60)

    def container(self, service: str) -> str:
        """Id of a service's container."""
        return self.compose("ps", "--all", "--quiet", service).out.strip()

    def health(self, service: str) -> str:
        """``healthy``, ``unhealthy`` or ``starting``."""
        return str(inspect(self.container(service))["State"]["Health"]["Status"])

    def wait_healthy(self, service: str, seconds: float = 300) -> None:
        """Returns once a container runs and is healthy."""
        deadline = time.monotonic() + seconds
        while self.health(service) != "healthy":
            assert time.monotonic() < deadline, self.logs(service)
            time.sleep(1)

    def logs(self, service: str) -> str:
        """What a service printed."""
        return self.compose("logs", "--no-color", "--no-log-prefix", service).out

    def python(self, service: str, code: str) -> str:
        """Runs Python code in a service's container: there is no other tool in it that it needs."""
        return docker("exec", self.container(service), "python", "-c", code)

    def crosstrain(self, *arguments: object, timeout: float = 3000) -> Ran:
        """Runs the command line outside of the containers; it reaches the coordinator by its published port."""
        variables = {
            **os.environ,
            "CROSSTRAIN_CACHE": str(self.folder / "cache"),
            "CROSSTRAIN_STATE_DIR": str(self.folder / "no-state"),
            "CROSSTRAIN_COORDINATOR": self.address,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "crosstrain", *map(str, arguments)],
            env=variables, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def wait_registered(self, seconds: float = 120) -> None:
        """Returns once every service has registered at the coordinator and answers."""
        with closing(self.client()) as client:
            deadline = time.monotonic() + seconds
            while not set(SERVICES) <= {item.service for item in client.list_engines() if item.healthy}:
                assert time.monotonic() < deadline, "services did not register"
                time.sleep(1)
