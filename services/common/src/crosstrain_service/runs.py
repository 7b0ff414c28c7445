"""The runs of a service: one child process each, queued per device, surviving restarts of the front."""

import collections
import contextlib
import errno
import logging
import os
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional

from crosstrain_protos.v1 import run_pb2

from .checkpoint import CheckpointStore
from .child import EXIT_ALREADY_RUNNING, EXIT_RANK_LOST, EXIT_STORAGE_FULL
from .describe import Environment
from .errors import CrosstrainError
from .events import ENDED
from .parallel.plan import devices_of, follows
from .run_process import RunProcesses, death
from .run_record import Observer, RunRecord
from .rundir import RunDir, StoredRequest, body_of
from .training import Execution

_LOG = logging.getLogger("crosstrain.service")
#: Runs that may wait at the same time.
MAX_WAITING = 1000
#: Attempts in a row that may end without a new checkpoint before the run fails.
MAX_FRUITLESS_ATTEMPTS = 3
_POLL_SECONDS = 0.05
#: A run that is asked for a checkpoint is asked again after this time, seconds.
_ASK_SECONDS = 1.0
#: Head start of the answer to a call over the start of the run's process.
_ANSWER_SECONDS = 0.03
#: Time between attempts to note the end of a run on a full disk, seconds.
_RETRY_SECONDS = 0.5


class Status(NamedTuple):
    """How the front stands: unfinished runs, runs that wait by device, and what their spools hold, bytes."""

    unfinished: List[run_pb2.Run]
    waiting: Dict[str, int]
    spool_bytes: int


class RunManager:
    """Accepts, queues, executes, adopts and cancels runs."""

    def __init__(self, state_dir: str, package: str, artifacts_dir: str, environment: Environment,
                 observer: Optional[Observer] = None) -> None:
        self._observer = observer
        self._root = os.path.join(state_dir, "runs")
        self._package = package
        self._processes = RunProcesses(package, artifacts_dir, environment, lambda: self._closed)
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
                record.note(run_pb2.RUN_STATE_QUEUED)
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
                    if record.note(run_pb2.RUN_STATE_CANCELLED):
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
                status = self._processes.adopt(record)
            elif record.directory.cancel_requested():
                status = None
            else:
                status = self._processes.start(record, self._executions[record.run.run_id])
            if self._closed:
                return
            if record.ended:
                return
            if record.directory.cancel_requested():
                if record.note(run_pb2.RUN_STATE_CANCELLED):
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
                self._fail(record, death(record, status, MAX_FRUITLESS_ATTEMPTS))
                return

    def _fail(self, record: RunRecord, error: CrosstrainError) -> None:
        """Ends a run with an error; on a full disk as soon as there is room, and not while a child lives."""
        while not self._closed:
            try:
                if error.reason == "STORAGE_FULL":
                    record.directory.free_reserve()
                if record.note(run_pb2.RUN_STATE_FAILED, error):
                    return
            except OSError:
                _LOG.exception("the end of run %s cannot be noted yet", record.run.run_id)
            time.sleep(_RETRY_SECONDS)
