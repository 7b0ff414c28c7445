"""Changes of single runs: submission, events, end. Each is one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

from .database import Database
from .groups import forget_secret, note_port
from .jobs import JobStore
from .journal import JobJournal, timestamp
from .progress import TERMINAL_RUN_STATES, apply_event
from .tables import job_runs


class SequenceGap(Exception):
    """Events are missing between the last stored one and those to be appended."""


class RunStore:
    """The runs of one database. Methods raise ``RUN_NOT_FOUND`` for unknown ids."""

    def __init__(self, database: Database, job_store: JobStore) -> None:
        self._database = database
        self._jobs = job_store

    def append(self, run_id: str, events: Sequence[run_pb2.RunEvent]) -> bool:
        """Stores the next events of a run, numbered as its service does, and says whether the run ended.

        Events that are stored already are skipped, so a replay changes nothing. After a run was
        submitted anew to a service that had lost it, sequence and attempt numbers go on from where
        they were, so that both stay gap-free for whoever watches.

        Raises:
            SequenceGap: the first new event is not the one after the last stored one; nothing is stored.
        """
        with self._open(run_id) as (connection, journal, row, record):
            stored = []
            sequence: int = row.last_sequence
            for event in events:
                number = row.sequence_base + event.sequence
                if number <= sequence or record.run.state in TERMINAL_RUN_STATES:
                    continue
                if number != sequence + 1:
                    raise SequenceGap(f"event {event.sequence} of run {run_id} comes too early")
                sequence = number
                item = coordinator_pb2.JobEvent(run_event=event)
                item.run_event.run_id = run_id
                item.run_event.sequence = number
                item.run_event.attempt = event.attempt + row.attempt_base
                apply_event(record, item.run_event)
                if event.WhichOneof("event") == "group_opened":
                    note_port(connection, run_id, event.group_opened.port)
                stored.append(item)
            journal.append(stored)
            if stored:
                record.notice = ""
                journal.close()
                _save(connection, record, last_sequence=sequence)
        ended = record.run.state in TERMINAL_RUN_STATES
        if stored:
            self._jobs.events_changed.notify(journal.job_id)
            if ended:
                self._jobs.work_changed.notify()
        return ended

    def begin_submission(self, run_id: str) -> None:
        """Notes that the run is about to be sent to its service, for the first time or again."""
        with self._open(run_id) as (connection, _journal, row, record):
            _save(
                connection,
                record,
                submissions=row.submissions + 1,
                sequence_base=row.last_sequence,
                attempt_base=record.run.attempt,
            )

    def withdraw_submission(self, run_id: str) -> None:
        """Notes that the service refused the run for the time being."""
        with self._open(run_id) as (connection, _journal, row, record):
            _save(connection, record, submissions=row.submissions - 1)

    def accepted(self, run_id: str, run: run_pb2.Run) -> None:
        """Notes that a service took the run."""
        with self._open(run_id) as (connection, journal, _row, record):
            if record.run.state in TERMINAL_RUN_STATES:
                return
            if run.HasField("create_time"):
                record.run.create_time.CopyFrom(run.create_time)
            journal.run_changed(record)
            journal.close()
            _save(connection, record)
        self._jobs.events_changed.notify(journal.job_id)

    def place(self, run_id: str, service: str, device_key: str) -> None:
        """Moves a run that has not been submitted to another service."""
        with self._open(run_id) as (connection, journal, _row, record):
            record.service = service
            journal.run_changed(record)
            journal.close()
            _save(connection, record, service=service, device_key=device_key)
        self._jobs.events_changed.notify(journal.job_id)

    def end(self, run_id: str, state: run_pb2.RunState.ValueType, error: errors_pb2.Error | None = None) -> None:
        """Ends a run from the coordinator's side; nothing if it has ended before."""
        with self._open(run_id) as (connection, journal, _row, record):
            if record.run.state in TERMINAL_RUN_STATES:
                return
            record.run.state = state
            record.run.end_time.CopyFrom(timestamp(journal.now_ns))
            record.notice = ""
            if error is not None:
                record.run.error.CopyFrom(error)
            journal.run_changed(record)
            journal.close()
            _save(connection, record)
        self._jobs.events_changed.notify(journal.job_id)
        self._jobs.work_changed.notify()

    def note(self, run_id: str, notice: str) -> None:
        """Stores what is seen of a run at work, for people; the next event of the run removes it."""
        with self._open(run_id) as (connection, journal, _row, record):
            if record.run.state in TERMINAL_RUN_STATES or record.notice == notice:
                return
            record.notice = notice
            journal.run_changed(record)
            journal.close()
            _save(connection, record)
        self._jobs.events_changed.notify(journal.job_id)

    def checked(self, run_id: str, digest: str = "", error: errors_pb2.Error | None = None) -> None:
        """Stores what the checks of a probe found, or why there are none; nothing if it was stored before."""
        with self._open(run_id) as (connection, journal, row, record):
            if not row.checks_pending:
                return
            record.certificate_digest = digest
            if error is not None:
                record.certificate_error.CopyFrom(error)
            journal.run_changed(record)
            journal.close()
            _save(connection, record, checks_pending=False)
        self._jobs.events_changed.notify(journal.job_id)
        self._jobs.work_changed.notify()

    @contextlib.contextmanager
    def _open(self, run_id: str) -> Iterator[tuple[Connection, JobJournal, Any, coordinator_pb2.JobRun]]:
        with self._database.write() as connection:
            job_id = connection.execute(
                select(job_runs.c.job_id).where(job_runs.c.run_id == run_id)
            ).scalar_one_or_none()
            if job_id is None:
                raise CrosstrainError("RUN_NOT_FOUND", f"there is no run {run_id!r}", "run_id")
            # The job is locked before its run is read, so that writers of one job cannot interlock.
            journal = JobJournal(connection, job_id)
            row = connection.execute(select(job_runs).where(job_runs.c.run_id == run_id)).one()
            yield connection, journal, row, coordinator_pb2.JobRun.FromString(row.record)


def _save(connection: Connection, record: coordinator_pb2.JobRun, **columns: object) -> None:
    connection.execute(
        update(job_runs)
        .where(job_runs.c.run_id == record.run.run_id)
        .values(state=record.run.state, record=record.SerializeToString(), **columns)
    )
    if record.run.state in TERMINAL_RUN_STATES:
        forget_secret(connection, record.run.run_id)
