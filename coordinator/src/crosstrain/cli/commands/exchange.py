"""Commands that take models from other tools, and give them to others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from crosstrain.cli import options
from crosstrain.cli.output import Output


def import_caffe(
    net: Annotated[Path, typer.Argument(metavar="TRAIN_VAL.prototxt", help="The network.")],
    solver: Annotated[Path, typer.Argument(metavar="SOLVER.prototxt", help="The solver.")],
    weights: Annotated[
        Path | None, typer.Argument(metavar="WEIGHTS.caffemodel", help="Trained weights.")
    ] = None,
    folder: Annotated[Path, typer.Option("--output", help="Folder for the files.")] = Path("imported"),
    input_shape: Annotated[
        str, typer.Option(help="Shape of one sample, where the network only names a database: 1,28,28.")
    ] = "",
    ignore_lr_mult: Annotated[
        bool, typer.Option("--ignore-lr-mult", help="Train all parameters with one rate nevertheless.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Turn a Caffe network and its solver into a model, a job and canonical weights.

    Caffe is not needed, and no path inside the files is opened. A layer that cannot be taken is named.

    Example: 'crosstrain import caffe train_val.prototxt solver.prototxt net.caffemodel --input-shape 1,28,28'.
    """
    from crosstrain.cli import exchange_commands

    exchange_commands.from_caffe(Output(json), net, solver, weights, folder, input_shape, ignore_lr_mult)


def export_caffe(
    job: options.JobFile,
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS.safetensors", help="Canonical weights.")],
    input_shape: Annotated[str, typer.Option(help="Shape of one sample, for example 1,28,28.")],
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")],
    folder: Annotated[Path, typer.Option("--output", help="Folder for the files.")] = Path("exported"),
    json: options.Json = False,
) -> None:
    """Write the network of a job file and its weights as prototxt and caffemodel.

    Example: 'crosstrain export caffe job.yaml final.safetensors --input-shape 1,28,28 --classes 10'.
    """
    from crosstrain.cli import exchange_commands

    exchange_commands.to_caffe(Output(json), job, weights, folder, input_shape, classes)


@dataclasses.dataclass(frozen=True)
class ExportRequest:
    """Files and options of an export to Python source."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A job file, or a model file (name and layers).")]
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS.safetensors", help="Canonical weights.")]
    folder: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder for the files.")]
    input_shape: Annotated[str, typer.Option(help="Shape of one sample, channels first: 1,28,28.")]
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")]
    divisor: Annotated[
        float | None,
        typer.Option(help="What stored values are divided by, told in the file. Default: data.divisor of the job."),
    ] = None


def export_torch(request: ExportRequest, json: options.Json = False) -> None:
    """Write a PyTorch module as Python source (network.py) and its state_dict (weights.safetensors).

    The source needs torch and safetensors, not Crosstrain; load() in it gives the trained network. PyTorch is
    not needed here.

    Example: 'crosstrain export torch job.yaml final.safetensors exported --input-shape 1,28,28 --classes 10'.
    """
    from crosstrain.cli import exchange_commands

    exchange_commands.to_torch(Output(json), request)


def export_keras(request: ExportRequest, json: options.Json = False) -> None:
    """Write a Keras model as Python source (network.py) and its arrays in Keras's layouts (weights.npz).

    The source runs on TensorFlow with Keras 2 and 3, without Crosstrain; it takes samples with channels last.
    load() in it gives the trained model. Neither is needed here.

    Example: 'crosstrain export keras job.yaml final.safetensors exported --input-shape 1,28,28 --classes 10'.
    """
    from crosstrain.cli import exchange_commands

    exchange_commands.to_keras(Output(json), request)
