"""Fixtures: empty databases of both kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from crosstrain.store import Store
from doubles.postgres import find_binaries, postgres_server

_NUMBER = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    if find_binaries() is None:
        pytest.skip("PostgreSQL is not installed on this machine")
    with postgres_server() as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.sqlite"
    folder = request.getfixturevalue("postgres")
    name = f"test{next(_NUMBER)}"
    admin = create_engine(
        f"postgresql+psycopg://crosstrain@/postgres?host={folder}", isolation_level="AUTOCOMMIT"
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return f"postgresql://crosstrain@/{name}?host={folder}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()
