"""A run as the front knows it: its folder, its state as its spool tells, and what the front itself notes there."""

import logging
import os
import threading
from typing import Callable, Optional

from crosstrain_protos.v1 import run_pb2

from .errors import CrosstrainError
from .events import ENDED, EventLog
from .rundir import RunDir, StoredRequest
from .spool import SpoolReader, SpoolWriter

_LOG = logging.getLogger("crosstrain.service")
#: Takes each event of a run once, in order.
Observer = Callable[["RunRecord", run_pb2.RunEvent], None]


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

    def note(self, state: int, error: Optional[CrosstrainError] = None) -> bool:
        """Appends a change of state unless the run has ended; returns False if a child lives, since a spool
        has one writer. A child that starts meanwhile finds the lock taken and leaves."""
        handle = self.directory.lock()
        if handle is None:
            return False
        try:
            if not self.ended:
                self._append(state, error)
            return True
        finally:
            os.close(handle)

    def _append(self, state: int, error: Optional[CrosstrainError]) -> None:
        writer = SpoolWriter(self.directory.spool)
        try:
            events = EventLog(writer, self.run.run_id, self.refresh().attempt)
            try:
                events.state(state, error)
            except OSError:
                self.directory.free_reserve()
                events.state(state, error)
        finally:
            writer.close()

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
