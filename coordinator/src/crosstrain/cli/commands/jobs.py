"""Commands about jobs that a coordinator has, and about its engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosstrain.cli import options


def watch(*, job: options.JobId, connection: options.Connection) -> None:
    """Follow a job to its end; Ctrl-C stops watching and leaves the job alone.

    With --json one line per event: 'crosstrain watch nightly-42 --json | jq .event'.
    """
    from crosstrain.cli import running

    raise typer.Exit(running.watch(connection, job))


def jobs(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    connection: options.Connection,
) -> None:
    """List jobs, newest first."""
    from crosstrain.cli import queries

    queries.jobs(connection, limit)


def show(*, job: options.JobId, connection: options.Connection) -> None:
    """Show a job with its runs, errors and document."""
    from crosstrain.cli import queries

    queries.show(connection, job)


def cancel(*, job: options.JobId, connection: options.Connection) -> None:
    """Cancel a job with all its runs."""
    from crosstrain.cli import queries

    queries.cancel(connection, job)


def engines(
    *,
    features: Annotated[bool, typer.Option("--features", help="List what each engine can do.")] = False,
    connection: options.Connection,
) -> None:
    """List the engines of a running coordinator, and what each can do."""
    from crosstrain.cli import queries

    queries.engines(connection, features)


def export_results(
    *,
    job: options.JobId,
    to: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Where to write.")] = None,
    connection: options.Connection,
) -> None:
    """Write the results of a job that has ended; see docs/results.md.

    Example: 'crosstrain export-results nightly-42 out/'.
    """
    from crosstrain.cli import running

    raise typer.Exit(running.export(connection, job, to))
