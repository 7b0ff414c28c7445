"""Runs the coordinator and the services of one machine, without containers.

Environments are built side by side, then every process is started, watched and restarted.
A service that cannot be had is listed with the reason and the remedy; the others run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosstrain_service.rundir import RunDir, start_time

from .catalogue import Catalogue, Service
from .environments import Environment, Unavailable
from .extras import equipped_environment
from .processes import Process
from .state import StateFolder

#: Environments built at the same time.
_PARALLEL_BUILDS = 2
#: The first start of a service may compile bytecode of a whole framework.
READY_SECONDS = 180.0
DEFAULT_ADDRESS = "127.0.0.1:7440"

Say = Callable[[str], None]


class StartError(Exception):
    """The coordinator does not start; the message says why."""


@dataclass
class ServiceStatus:
    """One service of the catalogue and how it stands."""

    service: Service
    state: str  # "building", "starting", "ready" or "unavailable"
    reason: str = ""
    remedy: str = ""
    process: Process | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values, as kept in the state folder and shown by ``--json``."""
        return {
            "service": self.service.name,
            "engines": [f"{name}@{version}" for name, version in self.service.engines.items()],
            "default_for": sorted(self.service.default_for),
            "state": self.state,
            "reason": self.reason,
            "remedy": self.remedy,
            "address": f"127.0.0.1:{self.process.port}" if self.process and self.process.port else "",
            "pid": self.process.pid if self.process else None,
            "restarts": self.process.restarts if self.process else 0,
        }


class Supervisor:
    """All processes of one state folder.

    Args:
        folder: the state folder, held by this process.
        catalogue: the services known.
        names: names of the services to run; None means all.
        listen: host:port of the coordinator; port 0 takes a free one.
        data_dir: the folder whose files jobs may name by path; None means none.
        temporary: it ends with one job, so that others should not rely on it.
        say: takes one line of progress.
        extras: names of additions that the services are to have where they can (Horovod, MPI).
    """

    def __init__(
        self,
        folder: StateFolder,
        catalogue: Catalogue,
        names: Iterable[str] | None = None,
        listen: str = DEFAULT_ADDRESS,
        data_dir: Path | None = None,
        temporary: bool = False,
        say: Say = lambda line: None,
        extras: Iterable[str] = (),
    ) -> None:
        wanted = None if names is None else set(names)
        self._folder = folder
        self._catalogue = catalogue
        self._listen = listen
        self._data_dir = data_dir
        self._temporary = temporary
        self._say = say
        self._extras = tuple(extras)
        self._guard = threading.RLock()
        self._builds = threading.Semaphore(_PARALLEL_BUILDS)
        self._stopping = False
        self._ready = False
        self.services = [
            ServiceStatus(service, "building")
            for service in catalogue.services
            if wanted is None or service.name in wanted
        ]
        self._coordinator = self._process("coordinator", self._coordinator_command, dict(os.environ))

    @property
    def address(self) -> str:
        """host:port of the coordinator; empty before it is ready."""
        port = self._coordinator.port
        return f"{self._listen.rpartition(':')[0]}:{port}" if port else ""

    @property
    def failure(self) -> str:
        """Why the coordinator was given up; empty while it runs."""
        return self._coordinator.failure

    def start(self) -> None:
        """Starts everything and returns when each service is ready or unavailable.

        Raises:
            StartError: the coordinator does not start.
        """
        self._publish()
        self._coordinator.start()
        if not self._coordinator.wait_ready(READY_SECONDS):
            reason = self._coordinator.failure or "is not ready in time"
            raise StartError(f"the coordinator {reason}: {self._coordinator.last_output()}")
        self._publish()
        # Daemon threads: a build takes minutes, and must not keep an interrupted command from ending.
        starts = [
            threading.Thread(
                target=self._start, args=(status,), name=f"start {status.service.name}", daemon=True
            )
            for status in self.services
        ]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        with self._guard:
            self._ready = True
        self._publish()

    def stop(self) -> None:
        """Ends all processes, those of runs included; unfinished runs go on at the next start."""
        with self._guard:
            self._stopping = True
        processes = [status.process for status in self.services if status.process]
        for process in processes:
            process.ask_to_stop()
        for process in processes:
            process.stop()
        for status in self.services:
            end_runs(self._state_of(status.service))
        self._coordinator.stop()

    def _environment(self, service: Service) -> Environment | Unavailable:
        with self._builds:
            return equipped_environment(service, self._catalogue, self._extras, progress=self._say)

    def _start(self, status: ServiceStatus) -> None:
        try:
            environment = self._environment(status.service)
            if isinstance(environment, Unavailable):
                self._unavailable(status, environment.reason, environment.remedy)
                return
            with self._guard:
                if self._stopping:
                    return
                status.process = self._service_process(status.service, environment)
                status.state = "starting"
                status.process.start()
            self._say(f"{status.service.name}: starting")
            if status.process.wait_ready(READY_SECONDS):
                status.state = "ready"
                self._say(f"{status.service.name}: ready")
            else:
                reason = status.process.failure or "is not ready in time"
                self._unavailable(
                    status, f"{reason}: {status.process.last_output()}", f"read {status.process.log}"
                )
        except Exception as error:  # one service must not take the others down
            self._unavailable(status, f"{type(error).__name__}: {error}", "report this defect")

    def _unavailable(self, status: ServiceStatus, reason: str, remedy: str) -> None:
        status.state, status.reason, status.remedy = "unavailable", reason, remedy
        self._say(f"{status.service.name}: unavailable: {reason}")
        self._publish()

    def _service_process(self, service: Service, environment: Environment) -> Process:
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
        variables.update(environment.variables())
        variables["PYTHONUNBUFFERED"] = "1"

        def command(_port: int) -> list[str]:
            result = [str(environment.python), "-m", "crosstrain_service"]
            result += ["--package", service.package, "--service", service.name, "--listen", "127.0.0.1:0"]
            result += ["--state", str(self._state_of(service)), "--coordinator", self.address]
            result += ["--artifacts", str(self._folder.artifacts / "sha256")]
            result += ["--port-file", str(self._folder.port_file(service.name))]
            result += self._metrics_options(service.name)
            return result + (["--preferred"] if service.default_for else [])

        return self._process(service.name, command, variables)

    def _coordinator_command(self, port: int) -> list[str]:
        # After a crash services and clients look for it where it was.
        listen = f"{self._listen.rpartition(':')[0]}:{port}" if port else self._listen
        command = [sys.executable, "-m", "crosstrain.api", "--listen", listen]
        command += ["--state-dir", str(self._folder.path / "coordinator")]
        command += ["--artifacts-url", str(self._folder.artifacts)]
        command += ["--port-file", str(self._folder.port_file("coordinator"))]
        command += self._metrics_options("coordinator")
        return command + (["--data-dir", str(self._data_dir)] if self._data_dir else [])

    def _process(
        self, name: str, command: Callable[[int], list[str]], environment: dict[str, str]
    ) -> Process:
        log, port_file = self._folder.log(name), self._folder.port_file(name)
        port_file.unlink(missing_ok=True)
        self._folder.metrics_port_file(name).unlink(missing_ok=True)
        return Process(name, command, environment, log, port_file, self._publish)

    def _metrics_options(self, name: str) -> list[str]:
        # After a crash Prometheus looks for them where they were.
        port = self._metrics_port(name) or "auto"
        return ["--metrics-port", port, "--metrics-port-file", str(self._folder.metrics_port_file(name))]

    def _metrics_port(self, name: str) -> str:
        try:
            return self._folder.metrics_port_file(name).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def _metrics_host(self, process: Process) -> str:
        host = self._listen.rpartition(":")[0] if process is self._coordinator else ""
        return "127.0.0.1" if host in ("", "0.0.0.0", "[::]") else host

    def _state_of(self, service: Service) -> Path:
        return self._folder.path / "services" / service.name

    def _publish(self) -> None:
        """Brings the files of the state folder up to date."""
        with self._guard:
            processes = [self._coordinator, *(status.process for status in self.services if status.process)]
            for status in self.services:
                if status.process and status.process.failure and status.state == "ready":
                    status.state, status.reason = "unavailable", status.process.failure
            if self._stopping:
                return
            self._folder.remember([process.pid for process in processes if process.pid])
            services = [status.to_json() for status in self.services]
            self._folder.publish(self.address, self._ready, services, self._temporary)
            self._folder.publish_metrics({
                process.name: f"{self._metrics_host(process)}:{port}"
                for process in processes
                if (port := self._metrics_port(process.name))
            })  # fmt: skip


def end_runs(service_state: Path) -> None:
    """Ends the run processes that a stopped service left at work, each with its own children."""
    try:
        folders = list((service_state / "runs").iterdir())
    except OSError:
        return
    for folder in folders:
        directory = RunDir(str(folder))
        child = directory.child() if directory.alive() else None
        if child is not None and start_time(child["pid"]) == child["started"]:
            try:
                os.killpg(child["pid"], signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
