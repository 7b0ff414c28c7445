"""The processes of runs: a child for each attempt, in a session of its own, or one that an earlier front started."""

import os
import signal
import subprocess
import sys
import time
from typing import Callable, Optional

from . import allocator
from .child import EXIT_ALREADY_RUNNING
from .describe import Environment
from .errors import CrosstrainError, without_paths
from .parallel.plan import needs_launcher
from .parallel.watch import signal_group
from .pauses import Pauses
from .run_record import RunRecord
from .rundir import RunDir, start_time
from .training import Execution

#: Time a child gets to end by itself before it is killed, seconds.
TERMINATE_SECONDS = 1.0
_POLL_SECONDS = 0.05
_END_SECONDS = 0.01


class RunProcesses:
    """Starts children and waits for their end; a run that is to be cancelled is ended.

    Args:
        package: of the engines.
        artifacts: folder of the service's artifacts.
        environment: gives what an engine's process needs in its environment.
        closed: whether the front ends; children go on.
    """

    def __init__(self, package: str, artifacts: str, environment: Environment, closed: Callable[[], bool]) -> None:
        self._package = package
        self._artifacts = artifacts
        self._environment = environment
        self._closed = closed

    def start(self, record: RunRecord, execution: Execution) -> Optional[int]:
        """Starts a child and waits for its end; returns its exit status."""
        directory = record.directory
        environment = dict(os.environ)
        environment["PYTHONHASHSEED"] = "0"
        allocator.keep_memory(environment)
        module = "crosstrain_service.child"
        if needs_launcher(self._package, record.stored, execution):
            module = "crosstrain_service.parallel.launch"  # which sets the environment of every rank
        else:
            environment.update(self._environment(record.run.engine, execution, directory.work))
        command = [
            sys.executable, "-m", module, "--run-dir", directory.path,
            "--artifacts", self._artifacts, "--package", self._package, "--attempt", str(record.refresh().attempt + 1),
            "--affinity", ",".join(map(str, execution.cpu_affinity)),
        ]
        with open(directory.log, "ab") as log:
            # A session of its own: signals meant for the front do not reach the child, and all of
            # the child's processes can be ended together.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       env=environment, start_new_session=True, close_fds=True)
        pauses = Pauses()
        while not self._closed():
            if _exited(process.pid):
                _end_rest(process.pid, directory)
                return process.wait()
            if directory.cancel_requested():
                _end_group(process.pid, lambda: not _exited(process.pid))
            pauses.wait()
        return None

    def adopt(self, record: RunRecord) -> Optional[int]:
        """Waits for the end of a child that another front started."""
        directory = record.directory
        pauses = Pauses()
        while directory.alive() and not self._closed():
            child = directory.child()
            started = start_time(child["pid"]) if child is not None else -1
            if child is not None and started == 0:
                _end_rest(child["pid"], directory)
            elif child is not None and started == child["started"] and directory.cancel_requested():
                _end_group(child["pid"], directory.alive)
            pauses.wait()
        return None


def death(record: RunRecord, status: Optional[int], attempts: int) -> CrosstrainError:
    """The error of a run whose process ended without a result in so many attempts in a row."""
    how = "without a result"
    if status is not None and status < 0:
        try:
            how = "by signal %s" % signal.Signals(-status).name
        except ValueError:
            how = "by signal %d" % -status
    elif status not in (None, EXIT_ALREADY_RUNNING):
        how = "with exit status %d" % status
    output = record.directory.last_output()
    return CrosstrainError("CHILD_DIED", "the process of the run ended %s in %d attempts in a row%s" % (
        how, attempts, "; its last output: " + without_paths(output) if output else ""))


def _end_group(pid: int, alive: Callable[[], bool]) -> None:
    """Ends a process and all of its session: first politely, then not."""
    deadline = time.time() + TERMINATE_SECONDS
    signal_group(pid, signal.SIGTERM)
    while alive() and time.time() < deadline:
        time.sleep(_POLL_SECONDS)
    signal_group(pid, signal.SIGKILL)
    deadline = time.time() + TERMINATE_SECONDS
    while alive() and time.time() < deadline:
        time.sleep(_POLL_SECONDS)


def _end_rest(pid: int, directory: RunDir) -> None:
    """Ends what a child that has ended left behind, and returns once it is gone, or after a second: it would keep the
    run's lock, and pass for the child of the next attempt."""
    signal_group(pid, signal.SIGKILL)
    deadline = time.time() + TERMINATE_SECONDS
    while directory.alive() and time.time() < deadline:
        # Ranks have sessions of their own.
        for holder in directory.holders():
            try:
                os.kill(holder, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(_END_SECONDS)


def _exited(pid: int) -> bool:
    """Whether a child of this process has ended; it is not reaped, so that its id stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped already, as where SIGCHLD is ignored
        return True
