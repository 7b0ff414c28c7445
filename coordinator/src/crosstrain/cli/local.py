"""``crosstrain up`` and ``crosstrain down``."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from crosstrain.launch.catalogue import load_catalogue
from crosstrain.launch.state import InUse, Running, StateFolder, end_process, running, state_folder
from crosstrain.launch.supervise import DEFAULT_ADDRESS, StartError, Supervisor
from crosstrain_service.rundir import start_time

from .exits import COULD_NOT_RUN, USAGE, CommandError
from .output import Output
from .signals import uninterrupted

_POLL_SECONDS = 0.5


def up(
    output: Output,
    services: Sequence[str] | None,
    listen: str,
    data_dir: Path | None,
    background: bool,
    state_dir: Path | None,
    additions: Sequence[str] = (),
) -> None:
    """Runs until it is told to stop, or returns once another process does so in the background."""
    path = state_folder(state_dir)
    catalogue = load_catalogue()
    for name in services or ():
        catalogue.service(name)
    known = sorted({extra.name for extra in catalogue.extras})
    for name in additions:
        if name not in known:
            raise CommandError(f"--with {name!r}: known are {', '.join(known)}", USAGE)
    if background:
        _in_background(output, services, additions, listen, data_dir, path)
        return
    folder = StateFolder(path)
    told = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        # The first signal ends everything in order; one more during the start interrupts that.
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    supervisor = Supervisor(
        folder, catalogue, services, listen or _free_address(output), data_dir, say=output.note, extras=additions
    )
    try:
        starter = threading.Thread(target=_start, args=(supervisor, told), name="start", daemon=True)
        starter.start()
        while starter.is_alive() and not told.is_set():
            starter.join(_POLL_SECONDS)
        if supervisor.failure:
            reason = f"the coordinator {supervisor.failure}"
            raise CommandError(reason, COULD_NOT_RUN, f"read {folder.log('coordinator')}")
        if not told.is_set():
            _print(output, supervisor.address, [status.to_json() for status in supervisor.services])
            output.note("ready; Ctrl-C stops everything")
        told.wait()
    finally:
        with uninterrupted():
            output.note("stopping")
            supervisor.stop()
        folder.release()


def down(output: Output, state_dir: Path | None) -> None:
    """Stops the 'crosstrain up' of a state folder."""
    found = running(state_folder(state_dir))
    if found is None:
        output.document({"stopped": False})
        output.text("nothing runs here")
        return
    if not end_process(found.pid, start_time(found.pid), patience=60.0):
        raise CommandError(f"process {found.pid} does not end")
    output.document({"stopped": True, "pid": found.pid})
    output.text(f"stopped (process {found.pid})")


def _start(supervisor: Supervisor, told: threading.Event) -> None:
    try:
        supervisor.start()
    except StartError:
        told.set()


def _free_address(output: Output) -> str:
    """The usual address, or one with a free port if something else has it."""
    host, _, port = DEFAULT_ADDRESS.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            output.note(f"{DEFAULT_ADDRESS} is in use; taking a free port")
            return f"{host}:0"
    return DEFAULT_ADDRESS


def _in_background(
    output: Output,
    services: Sequence[str] | None,
    additions: Sequence[str],
    listen: str,
    data_dir: Path | None,
    path: Path,
) -> None:
    found = running(path)
    if found is not None:
        raise InUse(found.pid)
    command = [sys.executable, "-m", "crosstrain", "up", "--state-dir", str(path)]
    command += [part for name in services or () for part in ("--service", name)]
    command += [part for name in additions for part in ("--with", name)]
    command += ["--listen", listen] if listen else []
    command += ["--data-dir", str(data_dir.absolute())] if data_dir else []
    log = path / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    output.note(f"starting; progress is in {log}")
    ready = _wait(process, path)
    if ready is None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CommandError(lines[-1] if lines else "crosstrain up ended at once", remedy=f"read {log}")
    _print(output, ready.address, ready.services)
    output.text("running in the background; stop it with 'crosstrain down'")


def _wait(process: subprocess.Popen[bytes], path: Path) -> Running | None:
    while process.poll() is None:
        found = running(path)
        if found is not None and found.ready and found.pid == process.pid:
            return found
        time.sleep(_POLL_SECONDS)
    return None


def _print(output: Output, address: str, services: list[dict[str, Any]]) -> None:
    output.document({"address": address, "services": services})
    output.text(f"coordinator at {address}")
    service_table(output, services)


def service_table(output: Output, services: list[dict[str, Any]]) -> None:
    """Engines by service: ready, or unavailable with reason and remedy."""
    rows = []
    for service in services:
        for engine in service["engines"]:
            reason = service["reason"]
            if reason and service["remedy"]:
                reason = f"{reason}; to fix it: {service['remedy']}"
            rows.append((engine, service["service"], service["state"], reason))
    output.table("", ("engine", "service", "state", "reason"), rows)
