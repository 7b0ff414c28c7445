"""One supervised process: started, restarted with growing pauses, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: A process that ran so long, seconds, had started well: the next pause is the first again.
STABLE_SECONDS = 60.0
STOP_SECONDS = 10.0
#: A process that never became ready after so many starts is given up.
MAX_FRUITLESS_STARTS = 3
MAX_LOG_BYTES = 8 << 20


class Process:
    """A process that is kept running.

    Args:
        name: for logs and messages.
        command: made anew for every start, as a restart may need the port of the first one.
        log: its output is appended here; an old log above 8 MiB is put aside first.
        port_file: it writes its port here once it is ready.
        changed: called, from a thread of its own, after every start and end.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        log: Path,
        port_file: Path,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.log = log
        self.restarts = 0
        #: Why it was given up; empty while it is kept running.
        self.failure = ""
        self._command = command
        self._environment = dict(environment)
        self._port_file = port_file
        self._changed = changed
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"process {name}", daemon=True)

    def start(self) -> None:
        """Starts it, and from now on restarts it."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Id of the process while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def port(self) -> int:
        """Its port once it is ready, the earlier one while it restarts; 0 before."""
        with contextlib.suppress(OSError, ValueError):
            self._port = int(self._port_file.read_text(encoding="ascii"))
        return self._port

    def wait_ready(self, seconds: float) -> bool:
        """Waits until it is ready; false if it was given up, or not ready in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failure and not self._stopping.is_set():
            if self.port:
                return True
            time.sleep(0.05)
        return bool(self.port) and not self.failure

    def ask_to_stop(self) -> None:
        """Sends SIGTERM and restarts no more; :meth:`stop` waits for the end."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ends it: politely first, then by SIGKILL."""
        self.ask_to_stop()
        process = self._process
        if process is not None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                process.wait()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def last_output(self) -> str:
        """The last line of its log, for saying why it does not run."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, self.log.stat().st_size - 4000))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _signal(self, number: int) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def _keep(self) -> None:
        pause, fruitless = FIRST_PAUSE, 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                status = self._run()
            except OSError as error:
                status = None
                self.failure = f"cannot be started: {error.strerror}"
            if self._stopping.is_set():
                return
            fruitless = 0 if self.port else fruitless + 1
            if self.failure or fruitless >= MAX_FRUITLESS_STARTS:
                self.failure = self.failure or f"ended with status {status} before it was ready"
                self._changed()
                return
            if time.monotonic() - began > STABLE_SECONDS:
                pause = FIRST_PAUSE
            self.restarts += 1
            self._changed()
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _run(self) -> int:
        port = self.port
        self._port_file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                os.replace(self.log, self.log.with_suffix(".log.1"))
        with open(self.log, "ab") as output:
            # A session of its own: Ctrl-C in the terminal reaches the supervisor alone, which
            # ends everything in order.
            self._process = subprocess.Popen(
                list(self._command(port)),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        if self._stopping.is_set():  # stopped between the check and the start
            self._signal(signal.SIGTERM)
        self._changed()
        return self._process.wait()
