"""Jobs and their runs: every change is one transaction with the events that tell of it."""

from __future__ import annotations

import time

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

from .database import Database
from .groups import members_of
from .journal import JobJournal, timestamp
from .new_runs import add_runs
from .progress import TERMINAL_JOB_STATES
from .rows import JobPlace, NewJob, NewMember, NewRun, RunRow, VerdictStage
from .signals import Signal
from .tables import job_events, job_runs, jobs
from .unfinished import unfinished_jobs

#: Largest number of bytes of events that one call of :meth:`JobStore.events` gives (one event may be larger).
EVENTS_BYTES = 1 << 20


class JobStore:
    """The jobs of one database. Methods raise ``JOB_NOT_FOUND`` or ``RUN_NOT_FOUND`` for unknown ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: Something new to read.
        self.events_changed = Signal()
        #: Something new to do.
        self.work_changed = Signal()

    def insert(self, new: NewJob) -> bool:
        """Stores a job with its runs and first events; False if the job id is taken."""
        now = time.time_ns()
        job = coordinator_pb2.Job()
        job.CopyFrom(new.job)
        job.state = coordinator_pb2.JOB_STATE_RUNNING
        job.create_time.CopyFrom(timestamp(now))
        try:
            with self._database.write() as connection:
                connection.execute(
                    insert(jobs).values(
                        job_id=job.job_id,
                        body_digest=new.body_digest,
                        state=job.state,
                        last_sequence=0,
                        cancel_requested=False,
                        shared_devices=new.shared_devices,
                        evaluation_pending=new.evaluation_pending,
                        verdict_stage=int(new.verdict_stage),
                        record=job.SerializeToString(),
                    )
                )
                journal = JobJournal(connection, job.job_id)
                started = coordinator_pb2.JobStateChanged(state=job.state)
                journal.append([coordinator_pb2.JobEvent(state_changed=started)])
                add_runs(connection, journal, job.job_id, new.runs, 0)
                journal.close()
        except IntegrityError:
            return False
        self._changed(job.job_id)
        return True

    def add_runs(self, job_id: str, runs: list[NewRun]) -> None:
        """Adds the runs that follow from the first ones; once only, and then the job is to be judged if it is
        to have a verdict."""
        with self._database.write() as connection:
            journal = JobJournal(connection, job_id)
            row = connection.execute(
                select(jobs.c.evaluation_pending, jobs.c.verdict_stage).where(jobs.c.job_id == job_id)
            ).one()
            stage = row.verdict_stage
            pending = row.evaluation_pending or stage == VerdictStage.FOLLOW
            if pending and journal.state not in TERMINAL_JOB_STATES:
                count = connection.execute(
                    select(job_runs.c.position)
                    .where(job_runs.c.job_id == job_id)
                    .order_by(job_runs.c.position.desc())
                    .limit(1)
                ).scalar_one_or_none()
                add_runs(connection, journal, job_id, runs, 0 if count is None else count + 1)
                stage = VerdictStage.JUDGE if stage == VerdictStage.FOLLOW else stage
            journal.close(evaluation_pending=False, verdict_stage=int(stage))
        self._changed(job_id)

    def set_verdict(self, job_id: str, reached: coordinator_pb2.VerdictReached) -> None:
        """Stores a job's verdict, with its event; nothing unless the job waits for one."""
        with self._database.write() as connection:
            journal = JobJournal(connection, job_id)
            if self._stage(connection, job_id) != VerdictStage.JUDGE or journal.state in TERMINAL_JOB_STATES:
                return
            job = journal.record()
            job.verdict = reached.verdict
            job.verdict_digest = reached.digest
            if reached.HasField("error"):
                job.verdict_error.CopyFrom(reached.error)
            journal.append([coordinator_pb2.JobEvent(verdict_reached=reached)])
            journal.close(job, verdict_stage=int(VerdictStage.CLEAN))
        self._changed(job_id)

    def records_removed(self, job_id: str) -> None:
        """Notes that nothing is left to do for a job's verdict, be it there or no longer wanted."""
        with self._database.write() as connection:
            JobJournal(connection, job_id).close(verdict_stage=int(VerdictStage.NONE))
        self._changed(job_id)

    def _stage(self, connection: Connection, job_id: str) -> int:
        found = connection.execute(select(jobs.c.verdict_stage).where(jobs.c.job_id == job_id)).scalar_one()
        return int(found)

    def body_digest(self, job_id: str) -> str | None:
        """Digest of the request that created a job; None if there is no such job."""
        with self._database.read() as connection:
            return connection.execute(
                select(jobs.c.body_digest).where(jobs.c.job_id == job_id)
            ).scalar_one_or_none()

    def job(self, job_id: str) -> coordinator_pb2.Job:
        """A job as it stands, with its runs."""
        with self._database.read() as connection:
            found = connection.execute(
                select(jobs.c.record, jobs.c.last_sequence).where(jobs.c.job_id == job_id)
            ).first()
            if found is None:
                raise CrosstrainError("JOB_NOT_FOUND", f"there is no job {job_id!r}", "job_id")
            job = _job(found.record, found.last_sequence)
            rows = connection.execute(
                select(job_runs.c.record).where(job_runs.c.job_id == job_id).order_by(job_runs.c.position)
            )
            job.runs.extend(coordinator_pb2.JobRun.FromString(row.record) for row in rows)
            return job

    def list_jobs(self, count: int, before: int | None) -> tuple[list[coordinator_pb2.Job], int | None]:
        """At most ``count`` jobs, newest first, without runs, and where to go on (None at the end).

        ``before`` is what the last call gave; None starts at the newest job.
        """
        columns = jobs.c.position, jobs.c.record, jobs.c.last_sequence
        query = select(*columns).order_by(jobs.c.position.desc()).limit(count + 1)
        if before is not None:
            query = query.where(jobs.c.position < before)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        found = [_job(row.record, row.last_sequence) for row in rows[:count]]
        return found, rows[count - 1].position if len(rows) > count else None

    def events(self, job_id: str, after: int) -> tuple[list[coordinator_pb2.JobEvent], bool]:
        """The next events after a sequence number, about 1 MiB of them, and whether none will follow these."""
        with self._database.read() as connection:
            head = connection.execute(
                select(jobs.c.state, jobs.c.last_sequence).where(jobs.c.job_id == job_id)
            ).first()
            if head is None:
                raise CrosstrainError("JOB_NOT_FOUND", f"there is no job {job_id!r}", "job_id")
            found: list[coordinator_pb2.JobEvent] = []
            size = 0
            rows = connection.execution_options(yield_per=200).execute(
                select(job_events.c.payload)
                .where(job_events.c.job_id == job_id, job_events.c.sequence > after)
                .order_by(job_events.c.sequence)
                .limit(2000)
            )
            for (payload,) in rows:
                size += len(payload)
                if found and size > EVENTS_BYTES:
                    break
                found.append(coordinator_pb2.JobEvent.FromString(payload))
            rows.close()
        last = found[-1].sequence if found else after
        return found, head.state in TERMINAL_JOB_STATES and last >= head.last_sequence

    def run_events(self, run_id: str, after: int = 0, limit: int = 500) -> list[run_pb2.RunEvent]:
        """Stored events of one run after a sequence number of that run, at most ``limit``."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(job_events.c.payload)
                .where(job_events.c.run_id == run_id, job_events.c.run_sequence > after)
                .order_by(job_events.c.run_sequence)
                .limit(limit)
            ).all()
        return [coordinator_pb2.JobEvent.FromString(row.payload).run_event for row in rows]

    def run(self, run_id: str) -> RunRow:
        """One run."""
        with self._database.read() as connection:
            row = connection.execute(
                select(job_runs, jobs.c.cancel_requested)
                .join(jobs, jobs.c.job_id == job_runs.c.job_id)
                .where(job_runs.c.run_id == run_id)
            ).first()
            members = members_of(connection, run_id)
        if row is None:
            raise CrosstrainError("RUN_NOT_FOUND", f"there is no run {run_id!r}", "run_id")
        return RunRow(
            run_id=row.run_id,
            job_id=row.job_id,
            kind=row.kind,
            state=row.state,
            service=row.service,
            engine=row.engine,
            engine_version=row.engine_version,
            device_key=row.device_key,
            submissions=row.submissions,
            cursor=row.last_sequence - row.sequence_base,
            request=row.request,
            record=coordinator_pb2.JobRun.FromString(row.record),
            cancel_requested=row.cancel_requested,
            members=tuple(NewMember(item.service, item.host, item.device_key, item.ranks) for item in members),
        )

    def unfinished(self) -> list[JobPlace]:
        """All jobs that have not ended, oldest first."""
        with self._database.read() as connection:
            return unfinished_jobs(connection)

    def request_cancel(self, job_id: str) -> None:
        """Notes that a job is to be cancelled; nothing if it has ended."""
        with self._database.write() as connection:
            journal = JobJournal(connection, job_id)
            if journal.state not in TERMINAL_JOB_STATES:
                journal.close(cancel_requested=True)
        self.work_changed.notify()

    def end_job(
        self, job_id: str, state: coordinator_pb2.JobState.ValueType, error: errors_pb2.Error | None = None
    ) -> None:
        """Ends a job; nothing if it has ended before."""
        with self._database.write() as connection:
            journal = JobJournal(connection, job_id)
            if journal.state in TERMINAL_JOB_STATES:
                return
            job = journal.record()
            change = coordinator_pb2.JobStateChanged(state=state, error=error)
            job.state = state
            job.end_time.CopyFrom(timestamp(journal.now_ns))
            if error is not None:
                job.error.CopyFrom(error)
            journal.append([coordinator_pb2.JobEvent(state_changed=change)])
            journal.close(job)
        self._changed(job_id)

    def _changed(self, job_id: str) -> None:
        self.events_changed.notify(job_id)
        self.work_changed.notify()


def _job(record: bytes, last_sequence: int) -> coordinator_pb2.Job:
    job = coordinator_pb2.Job.FromString(record)
    job.last_sequence = last_sequence
    return job
