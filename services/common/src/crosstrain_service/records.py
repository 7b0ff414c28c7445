"""Gathers step records and writes them in columns from a thread of its own.

With several processes each has a recorder: those beside process 0 send it what they measured, and process 0 writes
a step once all have reported it, with the loss of the whole batch and the times of every rank.
"""

import abc
import collections
import math
import threading
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from crosstrain_protos.v1 import run_pb2

from .errors import CrosstrainError
from .events import EventLog
from .parallel.team import Team, Together

#: Records are written this often, seconds (who follows a run sees no difference, its training does), ...
FLUSH_SECONDS = 0.5
#: ... and at the latest when so many are waiting.
FLUSH_STEPS = 2048


class Record(NamedTuple):
    """One step of one process; ``loss`` may be None where it does not know it. Times in seconds."""

    step: int
    loss: Any
    elapsed: float
    waited: float
    copy: float
    compute: float
    sync: float
    callback: float
    samples: int
    correct: Any


#: Fields that are sent to process 0, in one row of float64 numbers each.
_SENT = Record._fields[:-1]


class Recorder(abc.ABC):
    """Takes records from the training thread and passes them on from its own."""

    def __init__(self) -> None:
        # A deque, since the training thread appends while the writing thread takes: both are atomic.
        self._pending: Deque[Record] = collections.deque()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def add(self, *record: Any) -> None:
        """Takes the fields of a :class:`Record`; only appends to a list, since it is called in the training thread."""
        if self._error is not None:
            raise self._error
        self._pending.append(Record(*record))
        if not self._wake.is_set():
            self._wake.set()  # the first step is shown at once
        elif len(self._pending) >= FLUSH_STEPS:
            self.flush()

    def _run(self) -> None:
        self._wake.wait()
        while not self._stop.is_set():
            try:
                self.flush()
            except BaseException as error:  # raised again in the training thread
                self._error = error
                return
            self._stop.wait(FLUSH_SECONDS)

    def flush(self) -> None:
        """Passes on what has been gathered; raises ``NOT_FINITE`` for a loss that is not finite."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._flush()

    @abc.abstractmethod
    def _flush(self) -> None:
        """The same under the lock."""

    @abc.abstractmethod
    def take_sums(self) -> Tuple[float, int]:
        """Loss times samples, and samples, since the last call."""

    def close(self) -> None:
        """Stops the thread and passes on the rest."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self.flush()

    def _take(self, limit: Optional[int] = None) -> List[Record]:
        count = len(self._pending) if limit is None else limit
        return [self._pending.popleft() for _ in range(count)]


class Writer(Recorder):
    """Writes the records of a process that works alone, or of all processes in process 0."""

    def __init__(self, events: EventLog, rates: np.ndarray, steps_per_epoch: int, team: Team) -> None:
        self._events = events
        self._rates = rates
        self._steps_per_epoch = steps_per_epoch
        self._team = team
        self._firsts = team.first_of_shares()
        # Rows of the other processes that wait for those of all.
        self._others: Dict[int, Deque[Record]] = {rank: collections.deque() for rank in range(1, team.size)}
        self._loss_sum = 0.0
        self._loss_samples = 0
        super().__init__()

    def _flush(self) -> None:
        if isinstance(self._team, Together):
            for rank, payload in self._team.listeners.take_records():
                self._others[rank].extend(unpack(payload))
        count = min([len(self._pending)] + [len(rows) for rows in self._others.values()])
        if not count:
            return
        ranks = [self._take(count)] + [[rows.popleft() for _ in range(count)] for rows in self._others.values()]
        losses = [float(self._loss(step)) for step in zip(*ranks)]
        samples = [sum(step[rank].samples for rank in self._firsts) for step in zip(*ranks)]
        self._emit(ranks, losses, samples)
        for loss, record, counted in zip(losses, ranks[0], samples):
            self._loss_sum += loss * counted
            self._loss_samples += counted
            if not math.isfinite(loss):
                # Kept, so that nothing goes on from here in whichever thread it was found.
                self._error = CrosstrainError(
                    "NOT_FINITE", "the loss of step %d is %r: training diverged; try a smaller learning rate "
                    "or gradient clipping" % (record.step, loss), "training.optimizer")
                raise self._error

    def _loss(self, step: Sequence[Record]) -> float:
        """Mean loss over the whole batch: that of every share, from its first process that knows it, by samples."""
        if len(step) == 1:
            return float(step[0].loss)
        total, samples = 0.0, 0
        for first, after in zip(self._firsts, self._firsts[1:] + [len(step)]):
            if not step[first].samples:
                continue
            known = [float(record.loss) for record in step[first:after] if record.loss is not None]
            finite = [value for value in known if not math.isnan(value)]
            total += (finite or known or [math.nan])[0] * step[first].samples
            samples += step[first].samples
        return total / samples

    def _emit(self, ranks: List[List[Record]], losses: List[float], samples: List[int]) -> None:
        columns = Record(*zip(*ranks[0]))
        first = ranks[0][0].step
        message = run_pb2.StepRecords(
            first_step=first,
            epoch=[step // self._steps_per_epoch for step in columns.step],
            loss=losses,
            learning_rate=self._rates[first:first + len(losses)],
            step_seconds=columns.elapsed, data_seconds=columns.waited, copy_seconds=columns.copy,
            compute_seconds=columns.compute, sync_seconds=columns.sync, callback_seconds=columns.callback,
            samples=samples)
        if len(ranks) > 1:
            for records in ranks:
                own = Record(*zip(*records))
                message.ranks.add(step_seconds=own.elapsed, data_seconds=own.waited, compute_seconds=own.compute,
                                  sync_seconds=own.sync, samples=own.samples)
        elif columns.correct[0] is not None:
            message.correct.extend(int(value) for value in columns.correct)
        self._events.emit(steps=message)

    def take_sums(self) -> Tuple[float, int]:
        with self._lock:
            result = (self._loss_sum, self._loss_samples)
            self._loss_sum, self._loss_samples = 0.0, 0
            return result


class Sender(Recorder):
    """Sends the records of a process beside process 0 to it."""

    def __init__(self, team: Together) -> None:
        self._team = team
        super().__init__()

    def _flush(self) -> None:
        records = self._take()
        if records:
            self._team.send_records(pack(records))

    def take_sums(self) -> Tuple[float, int]:
        return 0.0, 0


def pack(records: Sequence[Record]) -> bytes:
    """Records as rows of little-endian float64 numbers; an unknown loss is not a number."""
    rows = [[math.nan if value is None else float(value) for value in record[:-1]] for record in records]
    return np.asarray(rows, dtype="<f8").tobytes()


def unpack(payload: bytes) -> List[Record]:
    """The records that :func:`pack` packed."""
    rows = np.frombuffer(payload, dtype="<f8").reshape(-1, len(_SENT))
    found = []
    for row in rows.tolist():
        record = Record(*row, correct=None)
        found.append(record._replace(step=int(record.step), samples=int(record.samples)))
    return found


def recorder(events: EventLog, rates: np.ndarray, steps_per_epoch: int, team: Team) -> Recorder:
    """The recorder of a process of a team."""
    if isinstance(team, Together) and not team.leads:
        return Sender(team)
    return Writer(events, rates, steps_per_epoch, team)
