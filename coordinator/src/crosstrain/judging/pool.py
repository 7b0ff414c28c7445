"""Worker processes that judge: started when there is a task, ended after a while without one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from crosstrain_service.errors import CrosstrainError

_LOG = logging.getLogger("crosstrain.judging")
#: A worker that has nothing to do for so long is ended: it holds memory.
IDLE_SECONDS = 20.0
#: A task that takes longer is given up.
TASK_SECONDS = 1800.0
#: One thread each: checks of several engines run side by side instead.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """One process."""

    def __init__(self, database_url: str, artifacts_url: str) -> None:
        environment = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crosstrain.judging"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, encoding="utf-8",
        )  # fmt: skip
        self.used = time.monotonic()
        # Not on the command line, which all users of the machine can read.
        self._send({"database_url": database_url, "artifacts_url": artifacts_url})

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def call(self, task: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to a task. Raises ``CHILD_DIED`` if the process ends or takes too long."""
        timer = threading.Timer(timeout, self._process.kill)
        timer.start()
        try:
            self._send(task)
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
            self.used = time.monotonic()
        if not line.endswith("\n"):
            raise CrosstrainError("CHILD_DIED", "the process that judges ended without an answer")
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        """Ends the process; a call at work fails."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process and frees what belongs to it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _send(self, values: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise CrosstrainError("CHILD_DIED", "the process that judges ended without an answer") from None


class Pool:
    """At most ``size`` workers on the stores of one coordinator."""

    def __init__(self, database_url: str, artifacts_url: str, size: int) -> None:
        self._urls = (database_url, artifacts_url)
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()
        self._closed = False

    def call(self, timeout: float = TASK_SECONDS, **task: Any) -> dict[str, Any]:
        """Does a task, when there is a free worker.

        Raises:
            CrosstrainError: what the task raised, or ``CHILD_DIED``.
        """
        with self._slots, self._worker() as worker:
            answer = worker.call(task, timeout)
        if "error" in answer:
            raise CrosstrainError(**answer["error"])
        found: dict[str, Any] = answer["ok"]
        return found

    def trim(self) -> None:
        """Ends workers that have had nothing to do for a while."""
        limit = time.monotonic() - IDLE_SECONDS
        with self._lock:
            old = [worker for worker in self._idle if worker.used < limit]
            self._idle = [worker for worker in self._idle if worker.used >= limit]
        for worker in old:
            worker.close()

    def close(self) -> None:
        """Ends all workers; tasks at work fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._busy:
                # Whoever waits for its answer closes it.
                worker.kill()
        for worker in idle:
            worker.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        with self._lock:
            return [worker.pid for worker in [*self._idle, *self._busy]]

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Worker]:
        with self._lock:
            if self._closed:
                raise CrosstrainError("CHILD_DIED", "the coordinator is stopping")
            worker = self._idle.pop() if self._idle else Worker(*self._urls)
            self._busy.add(worker)
        try:
            yield worker
        except BaseException:
            with self._lock:
                self._busy.discard(worker)
            worker.close()
            raise
        with self._lock:
            self._busy.discard(worker)
            if not self._closed:
                self._idle.append(worker)
                reminder = threading.Timer(IDLE_SECONDS + 1.0, self.trim)
                reminder.daemon = True
                reminder.start()
                return
        worker.close()
