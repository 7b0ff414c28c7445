"""Registered services; they survive a restart of the coordinator."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from crosstrain_protos.v1 import service_pb2

from .database import Database
from .tables import services


@dataclass(frozen=True)
class ServiceRow:
    """A service as it registered, and what it said it can do."""

    service: str
    address: str
    preferred: bool
    expires_ns: int
    description: service_pb2.DescribeResponse

    @property
    def live(self) -> bool:
        """Whether the registration has not run out."""
        return self.expires_ns > time.time_ns()


class ServiceStore:
    """The services of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, row: ServiceRow) -> None:
        """Stores or replaces a registration."""
        values = {
            "address": row.address,
            "preferred": row.preferred,
            "expires_ns": row.expires_ns,
            "description": row.description.SerializeToString(),
        }
        with self._database.write() as connection:
            changed = connection.execute(
                update(services).where(services.c.service == row.service).values(**values)
            )
            if not changed.rowcount:
                connection.execute(insert(services).values(service=row.service, **values))

    def all(self) -> list[ServiceRow]:
        """All registrations, also those that have run out, by name."""
        with self._database.read() as connection:
            rows = connection.execute(select(services).order_by(services.c.service)).all()
        return [
            ServiceRow(
                row.service,
                row.address,
                row.preferred,
                row.expires_ns,
                service_pb2.DescribeResponse.FromString(row.description),
            )
            for row in rows
        ]

    def remove(self, service: str) -> None:
        """Forgets a service."""
        with self._database.write() as connection:
            connection.execute(delete(services).where(services.c.service == service))
