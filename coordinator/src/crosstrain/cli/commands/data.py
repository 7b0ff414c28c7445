"""Commands that look at data before anything is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosstrain.cli import options
from crosstrain.cli.output import Output


def check(job: options.JobFile, json: options.Json = False) -> None:
    """Import the data of a job file and say everything that is wrong or remarkable about it.

    Example: 'crosstrain data check job.yaml'. Exit code 3 if a job with this data would be refused.
    """
    from crosstrain.cli import data_commands

    raise typer.Exit(data_commands.check(Output(json), job))


def import_source(
    source: Annotated[Path, typer.Argument(help="CSV, npz, IDX file, or folder of images.")],
    format: Annotated[str, typer.Option(help="csv, npz, idx or images. Default: found out.")] = "",
    shape: Annotated[str, typer.Option(help="Shape of one sample, for example 1,28,28.")] = "",
    labels: Annotated[str, typer.Option(help="index, map or onehot.")] = "index",
    json: options.Json = False,
) -> None:
    """Decode one source into the cache and print what it holds, with its digests."""
    from crosstrain.cli import data_commands

    data_commands.import_source(Output(json), source, format, shape, labels)


def consistency(
    *,
    job: options.JobFile,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="How many samples to compare.")] = 100,
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address", metavar="SERVICE=HOST:PORT", help="A service that 'up' did not start here."
        ),
    ] = None,
    connection: options.Connection,
) -> None:
    """Show that every framework computes from bit-identical samples: digests of the first ones as float32.

    Each engine takes one training step in file order through the smallest network, flatten and a dense layer.
    Compared per sample are what the engine is handed, and the output of flatten: what the framework itself
    computed from its own input tensor, in its own layout, written back as (C, H, W).

    Example: 'crosstrain data consistency job.yaml'. Exit code 3 unless all digests are those of the data.
    """
    from crosstrain.cli import data_commands

    raise typer.Exit(data_commands.consistency(connection, job, samples, address or []))
