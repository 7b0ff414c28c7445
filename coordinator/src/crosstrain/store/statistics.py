"""How many jobs and runs there are, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select

from crosstrain_protos.v1 import coordinator_pb2

from .database import Database
from .progress import TERMINAL_RUN_STATES
from .tables import job_runs, jobs


@dataclass(frozen=True)
class UnfinishedRun:
    """One run that has not ended."""

    run_id: str
    job_id: str
    engine: str
    version: str
    service: str
    submitted: bool


@dataclass(frozen=True)
class Statistics:
    """Numbers of jobs by state, of runs by (engine, version, kind, state), all unfinished runs, and all events."""

    jobs: dict[int, int]
    runs: dict[tuple[str, str, int, int], int]
    unfinished: list[UnfinishedRun]
    events: int


def statistics(database: Database) -> Statistics:
    """The present numbers. Raises ``SERVICE_UNREACHABLE`` if the database does not answer."""
    engine, version, kind, state = (
        job_runs.c.engine,
        job_runs.c.engine_version,
        job_runs.c.kind,
        job_runs.c.state,
    )
    with database.read() as connection:
        by_state = connection.execute(
            select(jobs.c.state, func.count(), func.sum(jobs.c.last_sequence)).group_by(jobs.c.state)
        ).all()
        by_engine = connection.execute(
            select(engine, version, kind, state, func.count()).group_by(engine, version, kind, state)
        ).all()
        columns = job_runs.c.run_id, job_runs.c.job_id, engine, version, job_runs.c.service
        unfinished = connection.execute(
            select(*columns, job_runs.c.submissions > 0)
            .join(jobs, jobs.c.job_id == job_runs.c.job_id)
            .where(jobs.c.state == coordinator_pb2.JOB_STATE_RUNNING, state.not_in(TERMINAL_RUN_STATES))
        ).all()
    return Statistics(
        {row[0]: row[1] for row in by_state},
        {(row[0], row[1], row[2], row[3]): row[4] for row in by_engine},
        [UnfinishedRun(row[0], row[1], row[2], row[3], row[4], bool(row[5])) for row in unfinished],
        sum(int(row[2]) for row in by_state),
    )
