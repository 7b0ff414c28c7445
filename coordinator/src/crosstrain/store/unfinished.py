"""Jobs that have not ended as far as the scheduler needs to know them: few columns, no records."""

from __future__ import annotations

import dataclasses

from sqlalchemy import Connection, select

from crosstrain_protos.v1 import coordinator_pb2

from .rows import JobPlace, RunPlace
from .tables import group_members, job_runs, jobs


def unfinished_jobs(connection: Connection) -> list[JobPlace]:
    """All of them with their runs, oldest first."""
    places = {
        row.job_id: JobPlace(*row)
        for row in connection.execute(
            select(
                jobs.c.job_id,
                jobs.c.cancel_requested,
                jobs.c.shared_devices,
                jobs.c.evaluation_pending,
                jobs.c.verdict_stage,
            )
            .where(jobs.c.state == coordinator_pb2.JOB_STATE_RUNNING)
            .order_by(jobs.c.position)
        )
    }
    groups = _group_keys(connection)
    columns = [job_runs.c[name] for name in RunPlace.__dataclass_fields__ if name != "group_keys"]
    query = (
        select(*columns)
        .join(jobs, jobs.c.job_id == job_runs.c.job_id)
        .where(jobs.c.state == coordinator_pb2.JOB_STATE_RUNNING)
        .order_by(jobs.c.position, job_runs.c.position)
    )
    for row in connection.execute(query):
        place = RunPlace(*row)
        if place.run_id in groups:
            place = dataclasses.replace(place, group_keys=frozenset(groups[place.run_id]))
        places[row.job_id].runs.append(place)
    return list(places.values())


def _group_keys(connection: Connection) -> dict[str, set[str]]:
    """Devices of the runs of unfinished jobs that span several services, by run."""
    query = (
        select(group_members.c.run_id, group_members.c.device_key)
        .join(job_runs, job_runs.c.run_id == group_members.c.run_id)
        .join(jobs, jobs.c.job_id == job_runs.c.job_id)
        .where(jobs.c.state == coordinator_pb2.JOB_STATE_RUNNING)
    )
    found: dict[str, set[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.run_id, set()).add(row.device_key)
    return found
