"""The job store: jobs, runs, events and services in SQLite or PostgreSQL."""

from __future__ import annotations

from .database import Database
from .groups import Group, GroupStore, Member
from .jobs import JobStore
from .locks import ExecutorLock
from .migrate import migrate
from .progress import TERMINAL_JOB_STATES, TERMINAL_RUN_STATES
from .rows import JobPlace, NewJob, NewMember, NewRun, RunPlace, RunRow, VerdictStage
from .runs import RunStore, SequenceGap
from .services import ServiceRow, ServiceStore

__all__ = [
    "TERMINAL_JOB_STATES",
    "TERMINAL_RUN_STATES",
    "Database",
    "ExecutorLock",
    "Group",
    "GroupStore",
    "JobPlace",
    "JobStore",
    "Member",
    "NewJob",
    "NewMember",
    "NewRun",
    "RunPlace",
    "RunRow",
    "RunStore",
    "SequenceGap",
    "ServiceRow",
    "ServiceStore",
    "Store",
    "VerdictStage",
    "migrate",
]


class Store:
    """All parts of the store on one database, its schema brought up to date."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        migrate(self.database)
        self.jobs = JobStore(self.database)
        self.runs = RunStore(self.database, self.jobs)
        self.groups = GroupStore(self.database)
        self.services = ServiceStore(self.database)

    def close(self) -> None:
        """Closes all connections."""
        self.database.close()
