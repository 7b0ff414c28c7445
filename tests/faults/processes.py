"""Real processes of the platform that a test kills and starts again on the same state and port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[2]
#: The runtime's own test engines: the reference, 20 ms slower per step.
SLOW_ENGINES = ROOT / "services" / "common" / "tests" / "engines"


class Process:
    """A server that writes its port into a file once it is ready."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self._command = command
        self._port_file = self.folder / "port"
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._port_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", *self._command, "--listen", f"127.0.0.1:{self.port}",
            "--port-file", str(self._port_file),
        ]  # fmt: skip
        paths = [str(SLOW_ENGINES), *(path for path in sys.path if path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder
            )
        deadline = time.monotonic() + 60
        while not self._port_file.exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the process did not become ready"
            time.sleep(0.01)
        self.port = int(self._port_file.read_text())
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()


class Platform:
    """A coordinator and one service of the slow test engine."""

    def __init__(self, folder: Path) -> None:
        state = folder / "coordinator-state"
        self.coordinator = Process(folder, "coordinator", "crosstrain.api", "--state-dir", str(state))
        self.state = folder / "service-state"
        self.service = Process(
            folder, "service", "crosstrain_service", "--package", "crosstrain_single", "--service", "slow",
            "--state", str(self.state), "--coordinator", self.coordinator.address,
        )  # fmt: skip

    def kill_child(self, spared: Collection[str] = ()) -> str:
        """Kills the child of the run at work, unless its run is spared; returns the run's id, or "" for none."""
        for path in sorted((self.state / "runs").glob("*/child.json")):
            try:
                child = json.loads(path.read_text())
                fields = Path(f"/proc/{child['pid']}/stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, ValueError, IndexError):
                continue
            if int(fields[19]) == child["started"] and fields[0] != "Z" and path.parent.name not in spared:
                os.kill(child["pid"], signal.SIGKILL)
                return path.parent.name
        return ""

    def close(self) -> None:
        self.service.close()
        self.coordinator.close()
