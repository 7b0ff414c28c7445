"""Locks between processes that share one database. They end with the process that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from .database import Database

# Arbitrary numbers that name Crosstrain's advisory locks in PostgreSQL.
_MIGRATION = 0x63726F73_0001
_EXECUTOR = 0x63726F73_0002


@contextlib.contextmanager
def migrating(database: Database) -> Iterator[Connection]:
    """A transaction to change the schema in; waits for another process that does the same."""
    with contextlib.ExitStack() as stack:
        if database.path is not None:
            # Taken before the first connection, which may switch the file to write-ahead logging.
            file = stack.enter_context(open(_lock_path(database.path, "migrate"), "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        connection = stack.enter_context(database.write())
        if database.path is None:
            # Ends with the transaction, also if this process is killed.
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION})
        yield connection


class ExecutorLock:
    """Held by the one process that executes jobs of a database.

    SQLite: a lock on a file beside the database. PostgreSQL: an advisory lock of one session.
    Both are released by the operating system or the server when the process dies, so a successor
    need not wait for a lease to run out.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._file: int | None = None
        self._session: Connection | None = None

    def acquire(self) -> bool:
        """Whether this process holds the lock now; takes it if it is free. Never waits."""
        if self._database.path is not None:
            return self._file is not None or self._lock_file(self._database.path)
        if self._session is not None and not self._session_alive():
            self.release()
        return self._session is not None or self._lock_session()

    def release(self) -> None:
        """Gives the lock back; nothing if it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._session is not None:
            session, self._session = self._session, None
            with contextlib.suppress(DBAPIError):
                # Said explicitly: a server that is busy notices the end of the connection late.
                session.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _EXECUTOR})
            with contextlib.suppress(DBAPIError):
                # A pooled connection would keep the lock.
                session.invalidate()
            session.close()

    def _lock_file(self, path: Path) -> bool:
        file = os.open(_lock_path(path, "executor"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def _lock_session(self) -> bool:
        try:
            session = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        except DBAPIError:
            return False
        try:
            if session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _EXECUTOR}).scalar():
                self._session = session
                return True
        except DBAPIError:
            pass
        session.close()
        return False

    def _session_alive(self) -> bool:
        assert self._session is not None
        try:
            self._session.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True


def _lock_path(path: Path, purpose: str) -> Path:
    return path.with_name(f"{path.name}.{purpose}.lock")
