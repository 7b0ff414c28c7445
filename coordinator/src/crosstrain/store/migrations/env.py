"""Alembic's entry point; the connection is handed in by :mod:`crosstrain.store.migrate`."""

from alembic import context

from crosstrain.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
