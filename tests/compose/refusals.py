"""Containers that are started with something wrong, as compose starts them: read-only, without rights."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .docker import docker, inspect, run

_LIMIT_SECONDS = 90


@dataclass
class Ended:
    """How a container ended."""

    code: int
    log: list[str]
    health: str


def run_until_it_ends(image: str, arguments: Iterable[str] = (), options: Iterable[str] = ()) -> Ended:
    """Starts a container and waits until its process has ended; the container is removed."""
    name = start(image, arguments, options)
    try:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while (state := inspect(name)["State"])["Running"]:
            assert time.monotonic() < deadline, f"it still runs: {log(name)}"
            assert state["Health"]["Status"] != "healthy", "it says that it is healthy"
            time.sleep(0.3)
        return Ended(state["ExitCode"], log(name), state["Health"]["Status"])
    finally:
        docker("rm", "--force", name)


def start(image: str, arguments: Iterable[str] = (), options: Iterable[str] = ()) -> str:
    """Starts a container with the rights that compose gives; its id."""
    return docker(
        "run", "--detach", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        "--tmpfs=/tmp:size=256m,mode=1777,exec", "--health-interval=1s", *options, image, *arguments,
    ).strip()  # fmt: skip


def wait_healthy(name: str) -> None:
    """Returns once a container is healthy."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while (state := inspect(name)["State"])["Health"]["Status"] != "healthy":
        assert state["Running"] and time.monotonic() < deadline, log(name)
        time.sleep(0.3)


def log(name: str) -> list[str]:
    """Lines that a container printed."""
    done = run(["docker", "logs", name])
    return (done.stdout + done.stderr).splitlines()


def address(name: str, network: str) -> str:
    """A container's address in a network."""
    found = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", name))
    return str(found[network]["IPAddress"])
