"""Real service processes of the runtime's test engine ``ranks``: replicas that share runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ENGINES = Path(__file__).resolve().parents[3] / "services" / "common" / "tests" / "engines"


class Replica:
    """One service, always on the same port and state once it was started."""

    def __init__(self, folder: Path, name: str, coordinator: str, host: str = "127.0.0.1") -> None:
        self.name = name
        self.state = folder / name
        self.state.mkdir(parents=True)
        self._coordinator = coordinator
        self._host = host
        self.port = 0
        self.start()

    def start(self) -> None:
        port_file = self.state / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "crosstrain_service", "--package", "crosstrain_ranks", "--service", self.name,
            "--listen", f"{self._host}:{self.port}", "--port-file", str(port_file), "--state", str(self.state),
            "--coordinator", self._coordinator, "--metrics-port", "0",
        ]  # fmt: skip
        paths = os.pathsep.join([str(ENGINES), *(path for path in sys.path if path)])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with open(self.state / "front.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert self.process.poll() is None, (self.state / "front.log").read_text()
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.02)
        self.port = int(port_file.read_text())

    def launcher(self, run_id: str) -> psutil.Process | None:
        """The process that starts a run's ranks; None while there is none."""
        try:
            child = json.loads((self.state / "runs" / run_id / "child.json").read_text())
            return psutil.Process(child["pid"])
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def ranks(self, run_id: str) -> list[psutil.Process]:
        """The processes of a run's ranks here."""
        launcher = self.launcher(run_id)
        return [] if launcher is None else launcher.children(recursive=True)

    def left(self) -> list[int]:
        """Processes of any run that are at work here."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = " ".join(process.info["cmdline"] or ())
            if f"{self.state}/runs/" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        return found

    def runs(self) -> list[str]:
        """Ids of all runs that were ever begun here."""
        return sorted(path.name for path in (self.state / "runs").iterdir())

    def kill(self) -> None:
        """Ends the service and everything that it started, as the loss of its machine does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=20)
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
