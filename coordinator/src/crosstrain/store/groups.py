"""Runs that span several services: their members, and what is left to do for them. Each method is one transaction."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, Row, insert, or_, select, update

from .database import Database
from .progress import TERMINAL_RUN_STATES
from .rows import NewMember
from .tables import group_members, job_runs, run_groups

SECRET_BYTES = 32


@dataclass(frozen=True)
class Member(NewMember):
    """One of the services of a group, and its present run.

    Attributes:
        member: place in the group, from 0 (leads).
        generation: that of the group for which its run was made; 0: there was none yet.
        port: the leader's port as its run was told it.
        start: counts its runs, from 1.
        tries: its runs in a row that found no leader.
        seen: the newest event of the leader when its run was made.
        freed: whether nothing of it is left at its service.
    """

    member: int
    generation: int
    port: int
    start: int
    tries: int
    seen: int
    freed: bool


@dataclass(frozen=True)
class Group:
    """A group: ``generation`` counts the submissions of its leader, ``port`` is the leader's (0: not known)."""

    run_id: str
    #: None before the first submission and after the end of the run.
    secret: bytes | None
    generation: int
    port: int
    members: tuple[Member, ...]


class GroupStore:
    """The groups of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, run_id: str) -> Group | None:
        """The group of a run; None if one service has all ranks."""
        with self._database.read() as connection:
            return _group(connection, run_id)

    def open(self, run_id: str) -> Group:
        """The group for a new submission of its leader, with a new secret."""
        with self._database.write() as connection:
            found = connection.execute(
                select(run_groups.c.generation).where(run_groups.c.run_id == run_id).with_for_update()
            ).scalar_one()
            values = {"secret": secrets.token_bytes(SECRET_BYTES), "generation": found + 1, "port": 0}
            connection.execute(update(run_groups).where(run_groups.c.run_id == run_id).values(**values))
            mine = group_members.c.run_id == run_id
            connection.execute(update(group_members).where(mine).values(freed=False))
            connection.execute(update(group_members).where(mine, group_members.c.member == 0).values(start=found + 1))
            group = _group(connection, run_id)
            assert group is not None
            return group

    def begin_member(self, group: Group, member: Member, tries: int, seen: int) -> Member:
        """Notes that a new run of a member is about to be sent to its service; the member as it is then."""
        values = {
            "generation": group.generation,
            "port": group.port,
            "start": member.start + 1,
            "tries": tries,
            "seen": seen,
            "freed": False,
        }
        self._update(group.run_id, member.member, values)
        return Member(**{**member.__dict__, **values})

    def freed(self, run_id: str, member: int) -> None:
        """Notes that nothing of a member is left at its service."""
        self._update(run_id, member, {"freed": True})

    def to_tend(self) -> list[str]:
        """Runs that were submitted and have members to be started, watched or freed."""
        with self._database.read() as connection:
            query = (
                select(group_members.c.run_id)
                .join(job_runs, job_runs.c.run_id == group_members.c.run_id)
                .where(
                    job_runs.c.submissions > 0,
                    group_members.c.freed.is_(False),
                    or_(job_runs.c.state.not_in(TERMINAL_RUN_STATES), group_members.c.start > 0),
                )
                .distinct()
            )
            return list(connection.execute(query).scalars())

    def _update(self, run_id: str, member: int, values: dict[str, int | bool]) -> None:
        mine = (group_members.c.run_id == run_id) & (group_members.c.member == member)
        with self._database.write() as connection:
            connection.execute(update(group_members).where(mine).values(**values))


def add_group(connection: Connection, run_id: str, members: tuple[NewMember, ...]) -> None:
    """Stores the members of a new run; nothing if there are none."""
    if not members:
        return
    connection.execute(insert(run_groups).values(run_id=run_id, secret=None, generation=0, port=0))
    for index, member in enumerate(members):
        state = {"generation": 0, "port": 0, "start": 0, "tries": 0, "seen": 0, "freed": False}
        connection.execute(insert(group_members).values(run_id=run_id, member=index, **member.__dict__, **state))


def note_port(connection: Connection, run_id: str, port: int) -> None:
    """Notes where the leader of a run awaits the other members."""
    connection.execute(update(run_groups).where(run_groups.c.run_id == run_id).values(port=port))


def forget_secret(connection: Connection, run_id: str) -> None:
    """Removes the secret of a run that has ended."""
    connection.execute(update(run_groups).where(run_groups.c.run_id == run_id).values(secret=None))


def members_of(connection: Connection, run_id: str) -> tuple[Member, ...]:
    """The members of a run, in order; empty if one service has all ranks."""
    rows = connection.execute(
        select(group_members).where(group_members.c.run_id == run_id).order_by(group_members.c.member)
    )
    return tuple(_member(row) for row in rows)


def _group(connection: Connection, run_id: str) -> Group | None:
    row = connection.execute(select(run_groups).where(run_groups.c.run_id == run_id)).first()
    if row is None:
        return None
    return Group(run_id, row.secret, row.generation, row.port, members_of(connection, run_id))


def _member(row: Row[tuple[object, ...]]) -> Member:
    return Member(**{name: getattr(row, name) for name in Member.__dataclass_fields__})
