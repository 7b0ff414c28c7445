"""A coordinator in a process of its own, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc


class CoordinatorProcess:
    """``python -m crosstrain.api`` on a state folder; always on the same port once it has one."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, ready: bool = True) -> None:
        """Starts the process, and waits until it answers unless told not to."""
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "crosstrain.api", "--listen", f"127.0.0.1:{self.port}",
            "--state-dir", str(self._folder / "state"), "--port-file", str(port_file), *self._options,
        ]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with open(self._folder / "coordinator.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        if not ready:
            return
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert self._process.poll() is None, (self._folder / "coordinator.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.port = int(port_file.read_text())
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)

    def kill(self) -> None:
        """Ends the process without any warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> int:
        """Asks the process to end and returns its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=30)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
