"""Puts planned runs into the store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert

from crosstrain_protos.v1 import coordinator_pb2, run_pb2

from .groups import add_group
from .journal import JobJournal, timestamp
from .rows import NewRun
from .tables import job_runs


def add_runs(
    connection: Connection, journal: JobJournal, job_id: str, runs: Sequence[NewRun], position: int
) -> None:
    """Adds runs to a job, from a position on, with the events that tell of them and the groups they form."""
    for index, new in enumerate(runs):
        record = coordinator_pb2.JobRun(
            repeat=new.repeat,
            service=new.service,
            run=run_pb2.Run(
                run_id=new.run_id,
                kind=new.kind,
                engine=new.engine,
                engine_version=new.engine_version,
                state=run_pb2.RUN_STATE_QUEUED,
                create_time=timestamp(journal.now_ns),
            ),
            purpose=new.purpose,
            variant=new.variant,
            parallel=new.parallel,
            members=[coordinator_pb2.RunMember(service=item.service, ranks=item.ranks) for item in new.members],
        )
        connection.execute(
            insert(job_runs).values(
                run_id=new.run_id,
                job_id=job_id,
                position=position + index,
                kind=new.kind,
                state=record.run.state,
                service=new.service,
                engine=new.engine,
                engine_version=new.engine_version,
                device_key=new.device_key,
                last_sequence=0,
                sequence_base=0,
                attempt_base=0,
                submissions=0,
                purpose=int(new.purpose),
                checks_pending=new.checked,
                request=new.request,
                record=record.SerializeToString(),
            )
        )
        add_group(connection, new.run_id, new.members)
        journal.run_changed(record)
