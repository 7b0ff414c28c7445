"""Appends events to a job: the one place that gives out a job's sequence numbers."""

from __future__ import annotations

import time
from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import Connection, insert, select, update

from crosstrain_protos.v1 import coordinator_pb2
from crosstrain_service.errors import CrosstrainError

from .tables import job_events, jobs


def timestamp(nanoseconds: int) -> Timestamp:
    """The message of a time in nanoseconds since 1970."""
    message = Timestamp()
    message.FromNanoseconds(nanoseconds)
    return message


class JobJournal:
    """One job, locked for the rest of the transaction it was opened in.

    The lock on the job's row orders all writers of a job, in this process and others; the numbers
    are therefore free of gaps, and a failed transaction gives its numbers back.

    Raises:
        CrosstrainError: ``JOB_NOT_FOUND``.
    """

    def __init__(self, connection: Connection, job_id: str) -> None:
        row = connection.execute(
            select(jobs.c.last_sequence, jobs.c.state).where(jobs.c.job_id == job_id).with_for_update()
        ).first()
        if row is None:
            raise CrosstrainError("JOB_NOT_FOUND", f"there is no job {job_id!r}", "job_id")
        self._connection = connection
        #: The job's id.
        self.job_id = job_id
        self._sequence: int = row.last_sequence
        #: The job's state when it was locked.
        self.state: int = row.state
        self.now_ns = time.time_ns()

    def append(self, events: Iterable[coordinator_pb2.JobEvent]) -> None:
        """Gives the events the next sequence numbers and the present time, and stores them."""
        rows = []
        now = timestamp(self.now_ns)
        for event in events:
            self._sequence += 1
            event.sequence = self._sequence
            event.time.CopyFrom(now)
            of_run = event.WhichOneof("event") == "run_event"
            rows.append(
                {
                    "job_id": self.job_id,
                    "sequence": self._sequence,
                    "run_id": event.run_event.run_id if of_run else None,
                    "run_sequence": event.run_event.sequence if of_run else None,
                    "time_ns": self.now_ns,
                    "payload": event.SerializeToString(),
                }
            )
        if rows:
            self._connection.execute(insert(job_events), rows)

    def run_changed(self, record: coordinator_pb2.JobRun) -> None:
        """Appends the event that a run's placement or state changed."""
        self.append([coordinator_pb2.JobEvent(run_changed=record)])

    def record(self) -> coordinator_pb2.Job:
        """The job's record; a change is written back by handing it to :meth:`close`."""
        row = self._connection.execute(select(jobs.c.record).where(jobs.c.job_id == self.job_id)).one()
        return coordinator_pb2.Job.FromString(row.record)

    def close(self, job: coordinator_pb2.Job | None = None, **columns: object) -> None:
        """Writes back the sequence number, the record if it is given, and other columns of the job.

        The record holds the job's document and is not written again with every event.
        """
        if job is not None:
            columns |= {"state": job.state, "record": job.SerializeToString()}
        changed = update(jobs).where(jobs.c.job_id == self.job_id)
        self._connection.execute(changed.values(last_sequence=self._sequence, **columns))
