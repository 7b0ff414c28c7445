"""The state folder of ``crosstrain up``: who runs there, and where it can be reached."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_state_dir

from crosstrain_service.rundir import start_time

_UP = "up.json"
_CHILDREN = "children.json"
_METRICS = "metrics-targets.json"


class InUse(Exception):
    """Another ``crosstrain up`` runs in the state folder; ``pid`` is 0 where it is not known."""

    def __init__(self, pid: int) -> None:
        who = f" (process {pid})" if pid else ""
        super().__init__(f"another crosstrain up uses this state folder{who}")
        self.pid = pid


@dataclass(frozen=True)
class Running:
    """What a running ``crosstrain up`` says about itself."""

    pid: int
    address: str
    ready: bool
    services: list[dict[str, Any]]
    #: It ends with the one job that it was started for.
    temporary: bool = False


def state_folder(given: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """The folder given, else ``$CROSSTRAIN_STATE_DIR``, else ``crosstrain`` in the user's state folder."""
    environment = os.environ if environ is None else environ
    chosen = given or environment.get("CROSSTRAIN_STATE_DIR") or user_state_dir("crosstrain")
    return Path(chosen).expanduser().absolute()


class StateFolder:
    """A state folder held by this process alone, until :meth:`release`.

    Raises:
        InUse: another process holds it.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("", "logs", "services", "coordinator", "ports"):
            (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            found = running(path)
            raise InUse(found.pid if found else 0) from None
        self._end_leftovers()

    def log(self, name: str) -> Path:
        """Where the output of a process goes."""
        return self.path / "logs" / f"{name}.log"

    def port_file(self, name: str) -> Path:
        """Where a process writes its port."""
        return self.path / "ports" / name

    def metrics_port_file(self, name: str) -> Path:
        """Where a process writes the port of its metrics."""
        return self.path / "ports" / f"{name}.metrics"

    @property
    def artifacts(self) -> Path:
        """Artifacts of the coordinator and of all services: none of them is ever copied."""
        return self.path / "artifacts"

    def publish(
        self, address: str, ready: bool, services: list[dict[str, Any]], temporary: bool = False
    ) -> None:
        """Tells other processes where the coordinator is."""
        values = {
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "address": address,
            "ready": ready,
            "services": services,
            "temporary": temporary,
        }
        _write(self.path / _UP, values)

    def publish_metrics(self, targets: Mapping[str, str]) -> None:
        """Tells Prometheus (``file_sd_configs``) where the metrics of each process are: host:port by its name."""
        values = [{"targets": [address], "labels": {"component": name}} for name, address in targets.items()]
        _write(self.path / _METRICS, values)

    def remember(self, pids: list[int]) -> None:
        """Notes the child processes, so that the next holder can end those that a kill left behind."""
        _write(self.path / _CHILDREN, [{"pid": pid, "started": start_time(pid)} for pid in pids])

    def release(self) -> None:
        """Gives the folder free."""
        for name in (_UP, _CHILDREN, _METRICS):
            (self.path / name).unlink(missing_ok=True)
        os.close(self._lock)

    def _end_leftovers(self) -> None:
        for entry in _read(self.path / _CHILDREN) or []:
            end_process(entry["pid"], entry["started"])


def running(path: Path) -> Running | None:
    """Who runs in a state folder; None if nobody does."""
    values = _read(path / _UP)
    try:
        if not values or not is_alive(values["pid"], values["started"]):
            return None
        names = ("pid", "address", "ready", "services", "temporary")
        return Running(**{name: values[name] for name in names})
    except (KeyError, TypeError):
        return None


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that began at ``started`` still runs; one that only waits to be reaped does not."""
    if start_time(pid) != started or not started:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def end_process(pid: int, started: int, patience: float = 10.0) -> bool:
    """Ends a process by SIGTERM and, after ``patience`` seconds, by SIGKILL; whether it is gone.

    ``started`` tells the process apart from a later one with the same id.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not is_alive(pid, started):
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not is_alive(pid, started):
                return True
            time.sleep(0.05)
    return False


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path: Path, value: Any) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(value) + "\n", encoding="utf-8")
    os.replace(aside, path)
