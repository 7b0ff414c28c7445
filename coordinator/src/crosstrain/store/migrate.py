"""Brings the schema up to date when the coordinator starts."""

from __future__ import annotations

from alembic import command
from alembic.config import Config

from .database import Database
from .locks import migrating


def migrate(database: Database, revision: str = "head") -> None:
    """Applies all migrations up to ``revision``, alone among processes that do so."""
    config = Config()
    config.set_main_option("script_location", "crosstrain.store:migrations")
    config.set_main_option("path_separator", "os")
    with migrating(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
