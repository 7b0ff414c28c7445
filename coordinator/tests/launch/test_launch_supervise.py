"""Processes on one machine: started, restarted, stopped; state folders; what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crosstrain.client import Client
from crosstrain.launch.catalogue import load_catalogue
from crosstrain.launch.environments import Environment, Unavailable
from crosstrain.launch.processes import Process
from crosstrain.launch.state import InUse, StateFolder, is_alive, running
from crosstrain.launch.supervise import StartError, Supervisor
from crosstrain_service.rundir import start_time
from doubles.environments import reference_cache

READY = "import sys, time; open(sys.argv[1], 'w').write('4711\\n'); time.sleep(60)"


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    started: list[Process] = []

    def make(code: str) -> Process:
        port_file = tmp_path / "port"
        command = [sys.executable, "-c", code, str(port_file)]
        made = Process("x", lambda port: command, os.environ, tmp_path / "x.log", port_file, lambda: None)
        started.append(made)
        made.start()
        return made

    yield make
    for made in started:
        made.stop(1.0)


def test_a_killed_process_is_started_again(process: Callable[[str], Process]) -> None:
    made = process(READY)
    assert made.wait_ready(20)
    assert made.port == 4711
    first = made.pid
    assert first
    os.kill(first, signal.SIGKILL)
    eventually(lambda: made.pid not in (None, first))
    assert made.restarts == 1
    made.stop()
    assert made.pid is None


def test_a_process_that_never_is_ready_is_given_up(
    process: Callable[[str], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crosstrain.launch.processes.FIRST_PAUSE", 0.01)
    made = process("import sys; sys.exit('no such library')")
    assert not made.wait_ready(20)
    assert made.failure == "ended with status 1 before it was ready"
    assert made.last_output() == "no such library"
    assert made.restarts == 2


def test_a_process_that_ignores_sigterm_is_killed(process: Callable[[str], Process]) -> None:
    made = process("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY)
    assert made.wait_ready(20)
    began = time.monotonic()
    made.stop(0.5)
    assert made.pid is None
    assert time.monotonic() - began < 10


def test_two_holders_of_a_state_folder_are_refused(tmp_path: Path) -> None:
    first = StateFolder(tmp_path)
    first.publish("127.0.0.1:1", True, [])
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        StateFolder(tmp_path)
    found = running(tmp_path)
    assert found is not None
    assert (found.pid, found.address, found.ready) == (os.getpid(), "127.0.0.1:1", True)
    first.release()
    assert running(tmp_path) is None
    StateFolder(tmp_path).release()


def test_a_stale_or_damaged_state_file_is_nobody(tmp_path: Path) -> None:
    assert running(tmp_path) is None
    (tmp_path / "up.json").write_text('{"pid": 1, "started": 5, "address": "x", "ready": true, "services": []}')
    assert running(tmp_path) is None
    for damaged in ("", "[]", "{", '{"pid": 1}', "null"):
        (tmp_path / "up.json").write_text(damaged)
        assert running(tmp_path) is None


def test_the_next_holder_ends_what_a_kill_left_behind(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    orphan = subprocess.Popen(["sleep", "60"], start_new_session=True)
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        folder.remember([orphan.pid])
        # A process id that was given to somebody else since.
        text = (tmp_path / "children.json").read_text()
        other = f'{{"pid": {bystander.pid}, "started": {start_time(bystander.pid) - 1}}}'
        (tmp_path / "children.json").write_text(text.replace("]", f", {other}]"))
        os.close(folder._lock)  # as a kill does
        StateFolder(tmp_path).release()
        assert orphan.poll() == -signal.SIGTERM
        assert bystander.poll() is None
    finally:
        for process in (orphan, bystander):
            process.kill()
            process.wait()


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """Reference service and coordinator; nothing is built."""
    variables = reference_cache(tmp_path / "cache")
    for name in ("CROSSTRAIN_CACHE", "PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, variables[name])
    folder = StateFolder(tmp_path / "state")
    made = Supervisor(folder, load_catalogue(), ["reference"], "127.0.0.1:0")
    yield made
    made.stop()
    folder.release()


def test_services_register_and_come_back_after_a_kill(supervisor: Supervisor) -> None:
    supervisor.start()
    (status,) = supervisor.services
    assert status.state == "ready", status.reason
    process = status.process
    assert process is not None
    with Client(supervisor.address) as client:
        eventually(lambda: [item.description.name for item in client.list_engines()] == ["reference"])
        assert client.list_engines()[0].preferred
        first = process.pid
        assert first
        os.kill(first, signal.SIGKILL)
        eventually(lambda: process.pid not in (None, first) and process.port)
        address = supervisor.address
        coordinator = supervisor._coordinator
        assert coordinator.pid
        os.kill(coordinator.pid, signal.SIGKILL)
        eventually(lambda: coordinator.restarts == 1)
        eventually(lambda: supervisor.address == address)
        eventually(lambda: any(item.healthy for item in _engines(client)))


def test_metrics_of_all_processes_are_listed_for_prometheus(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start()
    file = tmp_path / "state" / "metrics-targets.json"
    targets = {item["labels"]["component"]: item["targets"][0] for item in json.loads(file.read_text())}
    assert set(targets) == {"coordinator", "reference"}
    process = supervisor.services[0].process
    assert process is not None and process.pid
    first = process.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: process.pid not in (None, first) and process.port)
    for name, address in targets.items():
        wanted = f"crosstrain_{'coordinator' if name == 'coordinator' else 'service'}_info"
        eventually(lambda address=address, wanted=wanted: wanted in _page(address))


def _page(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _engines(client: Client) -> list[object]:
    from crosstrain_service.errors import CrosstrainError

    try:
        return list(client.list_engines())
    except CrosstrainError:
        return []


def test_nothing_is_left_after_stop(supervisor: Supervisor) -> None:
    supervisor.start()
    pids = [process.pid for process in (supervisor._coordinator, supervisor.services[0].process) if process]
    started = {pid: start_time(pid) for pid in pids if pid}
    assert len(started) == 2
    supervisor.stop()
    assert not any(is_alive(pid, value) for pid, value in started.items())


def test_an_environment_that_cannot_be_had_is_listed_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor
) -> None:
    def unavailable(self: Supervisor, service: object) -> Environment | Unavailable:
        return Unavailable("reference", "no Python 3.11", "uv python install 3.11")

    monkeypatch.setattr(Supervisor, "_environment", unavailable)
    supervisor.start()
    (status,) = supervisor.services
    assert (status.state, status.reason, status.remedy) == (
        "unavailable", "no Python 3.11", "uv python install 3.11",
    )  # fmt: skip
    with Client(supervisor.address) as client:
        assert client.list_engines() == []


def test_a_coordinator_that_cannot_listen_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosstrain.launch.processes.FIRST_PAUSE", 0.01)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    folder = StateFolder(tmp_path / "state")
    made = Supervisor(folder, load_catalogue(), [], "192.0.2.1:1")
    try:
        with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:1"):
            made.start()
    finally:
        made.stop()
        folder.release()
