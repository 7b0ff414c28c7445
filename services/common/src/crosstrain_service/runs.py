"""The runs of a service: one child process each, queued per device, surviving restarts of the front."""

import collections
import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional

from crosstrain_protos.v1 import run_pb2

from .checkpoint import CheckpointStore
from .child import EXIT_ALREADY_RUNNING, EXIT_RANK_LOST, EXIT_STORAGE_FULL
from .describe import Environment
from .errors import CrosstrainError, without_paths
from .events import ENDED, EventLog
from .parallel.plan import devices_of, follows, needs_launcher
from .rundir import RunDir, StoredRequest, body_of, start_time
from .spool import SpoolReader, SpoolWriter
from .training import Execution

_LOG = logging.getLogger("crosstrain.service")
#: Runs that may wait at the same time.
MAX_WAITING = 1000
#: Attempts in a row that may end without a new checkpoint before the run fails.
MAX_FRUITLESS_ATTEMPTS = 3
#: Time a child gets to end by itself before it is killed, seconds.
TERMINATE_SECONDS = 1.0
_POLL_SECONDS = 0.05
#: A run that is asked for a checkpoint is asked again after this time, seconds.
_ASK_SECONDS = 1.0
#: Head start of the answer to a call over the start of the run's process.
_ANSWER_SECONDS = 0.03
#: Time between attempts to note the end of a run on a full disk, seconds.
_RETRY_SECONDS = 0.5


#: Takes each event of a run once, in order.
Observer = Callable[["RunRecord", run_pb2.RunEvent], None]


class Status(NamedTuple):
    """How the front stands: unfinished runs, runs that wait by device, and what their spools hold, bytes."""

    unfinished: List[run_pb2.Run]
    waiting: Dict[str, int]
    spool_bytes: int


class RunRecord:
    """A run as the front knows it, kept up to date from its spool."""

    def __init__(self, directory: RunDir, stored: StoredRequest) -> None:
        self.directory = directory
        #: Told of new events; what was read before it is set is history.
        self.observer: Optional[Observer] = None
        self.stored = stored
        self.run = run_pb2.Run(
            run_id=stored.request.run_id, kind=stored.kind, engine=stored.request.engine,
            engine_version=stored.version, state=run_pb2.RUN_STATE_QUEUED)
        self.run.create_time.FromNanoseconds(int(stored.created * 1e9))
        self._reader = SpoolReader(directory.spool)
        self._lock = threading.Lock()

    def refresh(self) -> run_pb2.Run:
        """Reads new events and returns the run as it stands (a copy)."""
        with self._lock:
            while True:
                records = self._reader.read()
                for sequence, payload in records:
                    event = run_pb2.RunEvent.FromString(payload)
                    self._apply(sequence, event)
                    self._observe(event)
                if not records:
                    break
            copy = run_pb2.Run()
            copy.CopyFrom(self.run)
            return copy

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.refresh().state in ENDED

    @property
    def spool_bytes(self) -> int:
        """Size of the spool as far as it was read."""
        return self._reader.offset

    def _observe(self, event: run_pb2.RunEvent) -> None:
        if self.observer is None:
            return
        try:
            self.observer(self, event)
        except Exception:  # what only watches must not keep a run from ending
            _LOG.exception("a defect while counting an event of run %s", self.run.run_id)

    def _apply(self, sequence: int, event: run_pb2.RunEvent) -> None:
        run = self.run
        run.last_sequence = sequence
        run.attempt = max(run.attempt, event.attempt)
        kind = event.WhichOneof("event")
        if kind == "attempt_started" and not run.HasField("start_time"):
            run.start_time.CopyFrom(event.time)
        elif kind == "state_changed":
            run.state = event.state_changed.state
            if run.state in ENDED:
                run.end_time.CopyFrom(event.time)
                if event.state_changed.HasField("error"):
                    run.error.CopyFrom(event.state_changed.error)


class RunManager:
    """Accepts, queues, executes, adopts and cancels runs."""

    def __init__(self, state_dir: str, package: str, artifacts_dir: str, environment: Environment,
                 observer: Optional[Observer] = None) -> None:
        self._observer = observer
        self._root = os.path.join(state_dir, "runs")
        self._package = package
        self._artifacts = artifacts_dir
        self._environment = environment
        self._records: Dict[str, RunRecord] = collections.OrderedDict()
        self._queues: Dict[str, Deque[RunRecord]] = {}
        self._executions: Dict[str, Execution] = {}
        # One for each device: a run with several takes them in order of their names.
        self._devices: Dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._draining = False
        os.makedirs(self._root, mode=0o700, exist_ok=True)

    def recover(self, execution_of: Callable[[StoredRequest], Execution]) -> None:
        """Loads the runs of an earlier front; unfinished ones are adopted or queued again."""
        found = []
        for name in os.listdir(self._root):
            directory = RunDir(os.path.join(self._root, name))
            try:
                stored = directory.stored()
            except Exception:  # one damaged folder must not keep the service from starting
                _LOG.exception("the stored run %s cannot be read", name)
                continue
            if stored is not None:
                found.append(RunRecord(directory, stored))
        found.sort(key=lambda record: (record.stored.created, record.run.run_id))
        with self._lock:
            for record in found:
                self._records[record.run.run_id] = record
                if record.ended:
                    record.directory.clean()
                    continue
                # What an earlier front has counted is not counted again.
                record.observer = self._observer
                alive = record.directory.alive()
                try:
                    execution = execution_of(record.stored)
                except CrosstrainError as error:  # the machine has changed, for example its cores
                    if not alive:
                        threading.Thread(target=self._fail, args=(record, error), daemon=True).start()
                        continue
                    execution = Execution()
                self._enqueue(record, execution, adopt=alive)

    def submit(self, kind: int, request: Any, version: str, execution: Execution) -> run_pb2.Run:
        """Accepts a run, or finds it again by its id; raises ``ID_REUSED``, ``LIMIT_EXCEEDED``, ``STORAGE_FULL``."""
        with self._lock:
            record = self._records.get(request.run_id)
            if record is not None:
                if record.stored.kind != kind or record.stored.body != body_of(request):
                    raise CrosstrainError(
                        "ID_REUSED", "run_id %s was used before with another request" % request.run_id, "run_id")
                return record.refresh()
            if sum(len(queue) for queue in self._queues.values()) >= MAX_WAITING:
                raise CrosstrainError("LIMIT_EXCEEDED", "%d runs are waiting already" % MAX_WAITING)
            directory = RunDir(os.path.join(self._root, request.run_id))
            try:
                directory.create(kind, request, time.time(), version)
                stored = directory.stored()
                assert stored is not None
                record = RunRecord(directory, stored)
                record.observer = self._observer
                self._append(record, run_pb2.RUN_STATE_QUEUED)
            except OSError as error:
                directory.discard()  # what was refused must not come back with the next front
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise CrosstrainError("STORAGE_FULL", "no room to store the run") from error
                raise
            self._records[request.run_id] = record
            self._enqueue(record, execution)
            return record.refresh()

    def get(self, run_id: str) -> RunRecord:
        """A run by its id; raises ``RUN_NOT_FOUND``."""
        with self._lock:
            record = self._records.get(run_id)
        if record is None:
            raise CrosstrainError("RUN_NOT_FOUND", "there is no run %r" % run_id[:140], "run_id")
        return record

    def list(self) -> List[RunRecord]:
        """All runs, newest first."""
        with self._lock:
            return list(reversed(list(self._records.values())))

    def status(self) -> Status:
        """The present state, with new events of the runs at work taken in."""
        with self._lock:
            records = list(self._records.values())
            at_work = [queue[0] for queue in self._queues.values() if queue]
            waiting = {device: max(0, len(queue) - 1) for device, queue in self._queues.items()}
        for record in at_work:
            record.refresh()
        unfinished = [record.run for record in records if record.run.state not in ENDED]
        return Status(unfinished, waiting, sum(record.spool_bytes for record in records))

    def cancel(self, run_id: str) -> run_pb2.Run:
        """Ends a run; returns once its process is gone (or it never started)."""
        record = self.get(run_id)
        if record.ended:
            return record.refresh()
        record.directory.request_cancel()
        with self._lock:
            for queue in self._queues.values():
                if record in queue and record is not queue[0]:  # the first one is being executed
                    if self._append(record, run_pb2.RUN_STATE_CANCELLED):
                        queue.remove(record)
                        record.directory.clean()
        deadline = time.time() + 10
        while not record.ended and time.time() < deadline:
            time.sleep(_POLL_SECONDS)
        return record.refresh()

    def drain(self, seconds: float) -> None:
        """Starts no further run, asks the training runs at work for a checkpoint and waits for these.

        For a front whose runs end with it, as in a container: the next front goes on from there. Waits
        at most so many seconds.
        """
        with self._lock:
            self._draining = True
            at_work = [queue[0] for queue in self._queues.values() if queue]
        before = {record: CheckpointStore(record.directory.checkpoints).newest_step() for record in at_work
                  if record.run.kind == run_pb2.RUN_KIND_TRAIN}
        deadline = time.time() + seconds
        asked = 0.0
        while before and time.time() < deadline:
            again = time.time() - asked >= _ASK_SECONDS
            for record, step in list(before.items()):
                if record.ended or CheckpointStore(record.directory.checkpoints).newest_step() > step:
                    del before[record]
                elif again:
                    record.directory.request_checkpoint()
            if again:
                asked = time.time()
            time.sleep(_POLL_SECONDS)
        for record in before:
            _LOG.warning("run %s has saved no checkpoint in %g seconds", record.run.run_id, seconds)

    def close(self) -> None:
        """Stops supervising; children go on and are adopted by the next front."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _enqueue(self, record: RunRecord, execution: Execution, adopt: bool = False) -> None:
        device = "%s:%d" % (execution.device, execution.device_index)
        self._executions[record.run.run_id] = execution
        if device not in self._queues:
            self._queues[device] = collections.deque()
            threading.Thread(target=self._serve, args=(self._queues[device],), name="device " + device,
                             daemon=True).start()
        if adopt:
            self._queues[device].appendleft(record)
        else:
            self._queues[device].append(record)
        self._changed.notify_all()

    def _serve(self, queue: "Deque[RunRecord]") -> None:
        """Executes the runs of one device, one after the other."""
        while True:
            with self._changed:
                while not queue and not self._closed:
                    self._changed.wait()
                if self._closed or self._draining:
                    return
                record = queue[0]
            # Frameworks that start on every core at once would hold up the answers of their services.
            time.sleep(_ANSWER_SECONDS)
            try:
                with self._devices_of(record):
                    self._execute(record)
            except Exception as error:  # a defect must not stop the queue
                self._fail(record, CrosstrainError("INTERNAL", "%s: %s" % (type(error).__name__, error)))
            with self._changed:
                if self._closed:
                    return
                queue.popleft()
            if record.ended:
                record.directory.clean()

    @contextlib.contextmanager
    def _devices_of(self, record: RunRecord) -> Iterator[None]:
        """Holds every device that a run uses."""
        names = devices_of(self._package, record.stored, self._executions[record.run.run_id])
        with contextlib.ExitStack() as stack:
            for name in sorted(names):
                with self._lock:
                    lock = self._devices[name]
                stack.enter_context(lock)
            yield

    def _execute(self, record: RunRecord) -> None:
        """Runs attempts until the run has ended."""
        fruitless = 0
        checkpoints = CheckpointStore(record.directory.checkpoints)
        while not self._closed:
            before = checkpoints.newest_step()
            if record.directory.alive():
                status = self._adopt(record)
            elif record.directory.cancel_requested():
                status = None
            else:
                status = self._start(record)
            if self._closed:
                return
            if record.ended:
                return
            if record.directory.cancel_requested():
                if self._append(record, run_pb2.RUN_STATE_CANCELLED):
                    return
                continue
            if status == EXIT_STORAGE_FULL:
                self._fail(record, CrosstrainError("STORAGE_FULL", "no room left for the run's events"))
                return
            if status == EXIT_ALREADY_RUNNING:
                continue  # another child has the lock, or had it at that moment
            if status == EXIT_RANK_LOST and follows(record.stored):
                continue  # its leader has the checkpoints, and says when it has had enough
            fruitless = 0 if checkpoints.newest_step() > before else fruitless + 1
            if fruitless >= MAX_FRUITLESS_ATTEMPTS:
                self._fail(record, self._death(record, status))
                return

    def _start(self, record: RunRecord) -> Optional[int]:
        """Starts a child and waits for its end; returns its exit status."""
        directory, run_id = record.directory, record.run.run_id
        execution = self._executions[run_id]
        environment = dict(os.environ)
        environment["PYTHONHASHSEED"] = "0"
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
        while not self._closed:
            if _exited(process.pid):
                # A process of its own that outlives it would keep its lock, and the run would never go on.
                _signal(process.pid, signal.SIGKILL)
                return process.wait()
            if directory.cancel_requested():
                _end_group(process.pid, lambda: not _exited(process.pid))
            time.sleep(_POLL_SECONDS)
        return None

    def _adopt(self, record: RunRecord) -> Optional[int]:
        """Waits for the end of a child that another front started."""
        directory = record.directory
        while directory.alive() and not self._closed:
            child = directory.child()
            started = start_time(child["pid"]) if child is not None else -1
            if child is not None and started == 0:
                # It is gone, and only a process of its own keeps its lock.
                _signal(child["pid"], signal.SIGKILL)
            elif child is not None and started == child["started"] and directory.cancel_requested():
                _end_group(child["pid"], directory.alive)
            time.sleep(_POLL_SECONDS)
        return None

    def _death(self, record: RunRecord, status: Optional[int]) -> CrosstrainError:
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
            how, MAX_FRUITLESS_ATTEMPTS, "; its last output: " + without_paths(output) if output else ""))

    def _fail(self, record: RunRecord, error: CrosstrainError) -> None:
        """Ends a run with an error; on a full disk as soon as there is room, and not while a child lives."""
        while not self._closed:
            try:
                if error.reason == "STORAGE_FULL":
                    record.directory.free_reserve()
                if self._append(record, run_pb2.RUN_STATE_FAILED, error):
                    return
            except OSError:
                _LOG.exception("the end of run %s cannot be noted yet", record.run.run_id)
            time.sleep(_RETRY_SECONDS)

    def _append(self, record: RunRecord, state: int, error: Optional[CrosstrainError] = None) -> bool:
        """Appends a change of state unless the run has ended; returns False if a child lives, since a spool
        has one writer. A child that starts meanwhile finds the lock taken and leaves."""
        handle = record.directory.lock()
        if handle is None:
            return False
        try:
            if not record.ended:
                self._append_locked(record, state, error)
            return True
        finally:
            os.close(handle)

    def _append_locked(self, record: RunRecord, state: int, error: Optional[CrosstrainError]) -> None:
        writer = SpoolWriter(record.directory.spool)
        try:
            events = EventLog(writer, record.run.run_id, record.refresh().attempt)
            try:
                events.state(state, error)
            except OSError:
                record.directory.free_reserve()
                events.state(state, error)
        finally:
            writer.close()


def _end_group(pid: int, alive: Callable[[], bool]) -> None:
    """Ends a process and all of its session: first politely, then not."""
    deadline = time.time() + TERMINATE_SECONDS
    _signal(pid, signal.SIGTERM)
    while alive() and time.time() < deadline:
        time.sleep(_POLL_SECONDS)
    _signal(pid, signal.SIGKILL)
    deadline = time.time() + TERMINATE_SECONDS
    while alive() and time.time() < deadline:
        time.sleep(_POLL_SECONDS)


def _exited(pid: int) -> bool:
    """Whether a child of this process has ended; it is not reaped, so that its id stays its own."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped already, as where SIGCHLD is ignored
        return True


def _signal(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
