"""The events of a run, written to its spool."""

import threading
import time
from typing import Any, Optional

from crosstrain_protos.v1 import errors_pb2, run_pb2

from .errors import CrosstrainError
from .spool import SpoolReader, SpoolWriter

ENDED = (run_pb2.RUN_STATE_SUCCEEDED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED)


class EventLog:
    """Appends ``RunEvent`` messages of one attempt to a spool; safe from several threads."""

    def __init__(self, spool: SpoolWriter, run_id: str, attempt: int) -> None:
        self.spool = spool
        self._run_id = run_id
        self._attempt = attempt
        self._lock = threading.Lock()
        self._ended = False

    def emit(self, **event: Any) -> int:
        """Appends one event, for example ``emit(log=LogLine(...))``; returns its sequence number.

        After the end of the run nothing is appended any more: threads that sample or write may still be
        at work then, and readers stop at the end.
        """
        message = run_pb2.RunEvent(run_id=self._run_id, attempt=self._attempt, **event)
        now = time.time()
        message.time.seconds = int(now)
        message.time.nanos = int((now - int(now)) * 1e9)

        def payload(sequence: int) -> bytes:
            message.sequence = sequence
            return message.SerializeToString()

        with self._lock:
            if self._ended:
                return self.spool.last_sequence
            sequence = self.spool.append(payload)
            self._ended = message.HasField("state_changed") and message.state_changed.state in ENDED
            return sequence

    def sync(self) -> None:
        """Forces everything to the disk."""
        self.spool.sync()

    def log(self, text: str, severity: str = "info") -> None:
        """Appends a line for the log."""
        self.emit(log=run_pb2.LogLine(severity=severity, text=" ".join(text.split())[:4000]))

    def state(self, state: int, error: Optional[CrosstrainError] = None) -> None:
        """Appends a change of state and forces everything to the disk if the run has ended."""
        proto = error.to_proto() if error is not None else None
        self.emit(state_changed=run_pb2.StateChanged(state=state, error=proto))
        if state in ENDED:
            self.spool.sync()


class NoEvents(EventLog):
    """For processes beside the one that reports: nothing is written."""

    def __init__(self) -> None:
        pass

    def emit(self, **event: Any) -> int:
        return 0

    def sync(self) -> None:
        pass

    def state(self, state: int, error: Optional[CrosstrainError] = None) -> None:
        pass


def state_of(path: str) -> int:
    """The state of a run by its spool."""
    state = run_pb2.RUN_STATE_QUEUED
    reader = SpoolReader(path)
    while True:
        records = reader.read()
        if not records:
            return state
        for _, payload in records:
            event = run_pb2.RunEvent.FromString(payload)
            if event.WhichOneof("event") == "state_changed":
                state = event.state_changed.state


def error_from_proto(message: errors_pb2.Error) -> CrosstrainError:
    """The exception of a stored error."""
    name = errors_pb2.ErrorReason.Name(message.reason)[len("ERROR_REASON_"):]
    return CrosstrainError(name if name != "UNSPECIFIED" else "INTERNAL", message.message, message.field)
