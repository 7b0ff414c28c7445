"""Commands about this machine: services started and stopped, what can run, a demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosstrain.cli import options
from crosstrain.cli.output import Output


def up(
    service: options.Services = None,
    additions: options.Additions = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the coordinator listens. Default: 127.0.0.1:7440.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder whose files jobs may name by path. Default: none.")
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return once everything is ready.")
    ] = False,
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Start the coordinator and all services of this machine, without containers.

    The first time builds one environment per service, which takes minutes. Ctrl-C stops everything.

    Examples: 'crosstrain up', 'crosstrain up --with mpi', 'crosstrain up --background --service torch'.
    """
    from crosstrain.cli import local

    local.up(Output(json), service, listen, data_dir, background, state_dir, additions or ())


def down(state_dir: options.StateDir = None, json: options.Json = False) -> None:
    """Stop what 'crosstrain up' started, runs at work included; they go on at the next start."""
    from crosstrain.cli import local

    local.down(Output(json), state_dir)


def doctor(state_dir: options.StateDir = None, json: options.Json = False) -> None:
    """Say what can run on this machine, what is missing, and the command that helps. Changes nothing."""
    from crosstrain.cli import doctoring

    raise typer.Exit(doctoring.doctor(Output(json), state_dir))


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where results are written.")] = Path(
        "demo-results"
    ),
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Train cnn2 on 4,000 handwritten digits in every engine that can run here, and compare.

    The same as 'crosstrain run examples/mnist-cnn2.yaml' with the digits made first.
    """
    from crosstrain.cli import running

    raise typer.Exit(running.demo(options.Connection("", state_dir, json), folder))
