"""Connections and transactions on SQLite or PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from crosstrain_service.errors import CrosstrainError

#: How long a writer waits for another process that writes to the same SQLite file, milliseconds.
BUSY_TIMEOUT_MS = 30_000
#: How long a connection to PostgreSQL may take, unless the URL says ``connect_timeout``.
CONNECT_TIMEOUT_SECONDS = 10
_READ_ONLY = "crosstrain_read_only"


class Database:
    """One database, shared by all threads of the process.

    Args:
        url: an SQLAlchemy URL: ``sqlite:////path/to/file`` or ``postgresql+psycopg://...``
            (``postgresql://`` means the same).

    Raises:
        ValueError: the URL is malformed or names a database that is not supported.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ValueError("the database URL is malformed") from None
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        if not self.is_sqlite and parsed.get_backend_name() != "postgresql":
            raise ValueError("the database must be SQLite or PostgreSQL")
        #: Path of an SQLite database; None for PostgreSQL.
        self.path: Path | None = None
        if self.is_sqlite:
            if not parsed.database or parsed.database == ":memory:":
                raise ValueError("an SQLite database must be a file, or nothing would survive a restart")
            self.path = Path(parsed.database)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.engine = create_engine(parsed, pool_size=16, max_overflow=64)
            _configure_sqlite(self.engine)
        else:
            defaults: dict[str, Any] = {
                # A server that accepts connections and says nothing would be waited for without end.
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                # A database without an encoding would give bytes.
                "client_encoding": "utf8",
            }
            missing = {name: value for name, value in defaults.items() if name not in parsed.query}
            self.engine = create_engine(parsed, pool_size=16, max_overflow=64, pool_pre_ping=True, connect_args=missing)
        # SQLite has one writer at a time: waiting here is fair, its busy handler polls.
        self._writer = threading.RLock()

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write; committed at the end, rolled back on an error.

        Raises:
            CrosstrainError: ``STORAGE_FULL`` without room, ``SERVICE_UNREACHABLE`` without a database.
        """
        with contextlib.ExitStack() as stack:
            if self.is_sqlite:
                stack.enter_context(self._writer)
            stack.enter_context(_translated())
            yield stack.enter_context(self.engine.begin())

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads and sees one state of the database; errors as for :meth:`write`."""
        with _translated(), self.engine.connect() as connection:
            level: dict[str, Any] = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
            yield connection.execution_options(**{_READ_ONLY: True}, **level)

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        text = str(error.orig).lower()
        if "disk is full" in text or "no space left" in text or "disk full" in text:
            raise CrosstrainError("STORAGE_FULL", "the job store has no room left") from error
        raise CrosstrainError("SERVICE_UNREACHABLE", "the job store does not answer; try again") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise CrosstrainError("SERVICE_UNREACHABLE", "the job store does not answer; try again") from error
        raise


def _configure_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # The driver's own transaction handling would begin too late; "began" below does it.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={BUSY_TIMEOUT_MS}",
            "journal_mode=WAL",
            # An answered CreateJob must survive a loss of power.
            "synchronous=FULL",
            "foreign_keys=ON",
            # Secrets of runs are gone once they are deleted.
            "secure_delete=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        # A transaction that reads before it writes would fail if another one wrote in between.
        read_only = connection.get_execution_options().get(_READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
