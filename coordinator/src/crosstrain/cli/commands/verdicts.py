"""Commands that judge what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosstrain.cli import options


def compare(
    *,
    first: Annotated[str, typer.Argument(metavar="RUN", help="A finished run: RUN, JOB or JOB/ENGINE.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The one to compare it with.")],
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder for verdict.json, verdict.junit.xml and report.html.")
    ] = None,
    connection: options.Connection,
) -> None:
    """Judge any two finished runs: engines, versions of one engine, thread counts, today and last month.

    Compared is what is stored: losses step by step, environments, final weights, and what the checks of the
    engines' probes found. JOB means the job's only engine, or the one that both jobs have in common. Runs of jobs that
    ask for different things (data, network, seed, ...) are not compared. Exit codes as for 'run'.

    Examples: 'crosstrain compare nightly-41/torch nightly-42/torch', 'crosstrain compare nightly-42/torch
    nightly-42/tensorflow'.
    """
    from crosstrain.cli import verdicts

    raise typer.Exit(verdicts.compare(connection, first, second, results))


def verdict(
    *,
    job: options.JobId,
    results: Annotated[
        Path | None, typer.Option("--results", help="Write all results of the job there, the report included.")
    ] = None,
    connection: options.Connection,
) -> None:
    """Show the verdict of a job that has ended, again; exit codes as for 'run'.

    Example: 'crosstrain verdict nightly-42 --json | jq .engines[].causes'.
    """
    from crosstrain.cli import verdicts

    raise typer.Exit(verdicts.verdict(connection, job, results))
