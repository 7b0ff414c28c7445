"""Commands with their help, and how errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from . import exits, options
from .output import Output

_EXITS = """Exit codes: 0 ok, and where there is a verdict, the same function (IDENTICAL, ROUNDING); 1 MISMATCH;
2 INCONCLUSIVE; 3 something could not run or be compared (an engine failed or was refused, the document or data
cannot be used, artifacts are damaged, no coordinator); 64 wrong usage; 130 interrupted."""

app = typer.Typer(
    name="crosstrain",
    help="Trains one network, from one job file, in many frameworks, and says whether they computed the same.\n\n"
    "Start with 'crosstrain doctor' (what can run here), 'crosstrain demo' (a first comparison), then write "
    "a job file, 'crosstrain check' it (a minute, no training) and 'crosstrain run' it.",
    epilog=_EXITS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(
    help="Look at data before training on it: check, import, and what every engine sees of it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
import_app = typer.Typer(help="Take over a model of another tool.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(import_app, name="import")
export_app = typer.Typer(help="Give a model to another tool.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(export_app, name="export")


@app.command()
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
    from . import local

    local.up(Output(json), service, listen, data_dir, background, state_dir, additions or ())


@app.command()
def down(state_dir: options.StateDir = None, json: options.Json = False) -> None:
    """Stop what 'crosstrain up' started, runs at work included; they go on at the next start."""
    from . import local

    local.down(Output(json), state_dir)


@app.command()
def run(
    job: options.JobFile,
    results: options.Results = None,
    job_id: options.ChosenId = "",
    skip_unavailable: options.SkipUnavailable = False,
    remote_data: options.RemoteData = False,
    verdict: Annotated[
        bool,
        typer.Option("--verdict/--no-verdict", help="Judge the job; --no-verdict trains and evaluates only."),
    ] = True,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Run a job to its end, write its results and print the comparison and the verdict.

    The verdict says whether the engines computed the same function: IDENTICAL (bitwise), ROUNDING (only
    floating-point rounding differs), MISMATCH (with layer, step and cause), or INCONCLUSIVE (with what to do next).
    It rests on recorded steps checked piece by piece, on training runs from weights moved by one unit in the
    last place, and on the first decision that two engines take differently; what of that is done, the section
    'verdict' of the job file says (docs/jobs.md). Exit codes 0, 1, 2, 3 make it a gate in CI.

    Without a running coordinator, what the job needs is started here and stopped at the end. Ctrl-C
    cancels the job.

    Examples: 'crosstrain run examples/mnist-cnn2.yaml', 'crosstrain run job.yaml --results out --json'.
    """
    from . import running

    output = Output(json)
    code = running.run(
        output, job, results, job_id, skip_unavailable, remote_data, coordinator, state_dir, verdict
    )
    raise typer.Exit(code)


@app.command()
def check(
    job: options.JobFile,
    results: options.Results = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="Check this engine, not those of the job file (may be repeated)."),
    ] = None,
    semantics: Annotated[
        str,
        typer.Option(help="canonical or native. Default: the job file's. See also 'crosstrain migrate'."),
    ] = "",
    job_id: options.ChosenId = "",
    skip_unavailable: options.SkipUnavailable = False,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Check a few steps of a job in every engine, piece by piece, without training. Takes about a minute.

    Every engine trains a few steps of a small batch on its real path and records each layer's output and
    gradient, all parameters and the optimizer's state. Each piece is then compared with reference arithmetic
    applied to the engine's own inputs of that piece, within a derived rounding bound. A piece that fails is named
    with its cause, where one of the known conventions explains it, and what restores parity.

    Examples: 'crosstrain check job.yaml', 'crosstrain check job.yaml --engine torch --engine lasagne'.
    """
    from . import running

    output = Output(json)
    code = running.check(
        output, job, results, engine or [], semantics, job_id, skip_unavailable, coordinator, state_dir
    )
    raise typer.Exit(code)


@app.command()
def scale(
    job: options.JobFile,
    ranks: Annotated[
        str, typer.Option("--ranks", metavar="N,N,...", help="Numbers of data ranks; the smallest is compared with.")
    ] = "1,2,4",
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine", help="Scale this engine (may be repeated). Default: those of the job, the reference left out."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of every engine at every number of ranks.")] = 3,
    backend: Annotated[
        str, typer.Option("--backend", help="native, horovod or mpi. Default: the job's, else what each engine has.")
    ] = "",
    threads: Annotated[
        int, typer.Option("--threads", help="Threads of every rank. Default: the job's (0: all cores, shared).")
    ] = 0,
    results: options.Results = None,
    job_id: options.ChosenId = "",
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Train a job on several numbers of ranks and say what that gains, and whether it is still the same training.

    Every engine trains at every number of data ranks, as variants of one job whose repeats go round them. Printed are
    throughput and speed-up with 95 % intervals, efficiency (speed-up over ranks), the share of time spent waiting for
    other ranks, and the verdict of N ranks against the fewest. The batch of the job is that of all ranks together, so
    more ranks have less to do each. Where the verdict is not IDENTICAL or ROUNDING, nothing is ranked: a faster
    training of something else is no gain. Exit codes as for 'run'.

    Written besides the usual results: scale.csv and scale.html, a chart. On one processor set --threads 1, so that
    one rank does not use all cores already.

    Examples: 'crosstrain scale examples/cnn2-parallel.yaml --ranks 1,2 --threads 1',
    'crosstrain scale job.yaml --ranks 1,2,4 --engine torch --backend horovod --repeats 5'.
    """
    from . import scaling

    output = Output(json)
    code = scaling.scale(
        output, job, ranks, engine or [], repeats, backend, threads, results, job_id, coordinator, state_dir
    )
    raise typer.Exit(code)


@app.command()
def migrate(
    job: options.JobFile,
    origin: Annotated[str, typer.Option("--from", metavar="ENGINE", help="Where the job runs today.")],
    target: Annotated[str, typer.Option("--to", metavar="ENGINE", help="Where it is to run.")],
    results: options.Results = None,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Say what would change if a job moved from one framework to another with its defaults.

    Both engines take a few steps with their own conventions and default constants (native semantics); nothing is
    trained. Listed is each convention in which one of them differs, and the setting that restores parity.
    Exit code 0 if nothing would change, 1 if something would.

    Example: 'crosstrain migrate job.yaml --from keras-theano --to torch'.
    """
    from . import migration

    output = Output(json)
    raise typer.Exit(migration.migrate(output, job, origin, target, results, coordinator, state_dir))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="A finished run: RUN, JOB or JOB/ENGINE.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The one to compare it with.")],
    results: Annotated[
        Path | None, typer.Option("--results", help="Folder for verdict.json, verdict.junit.xml and report.html.")
    ] = None,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Judge any two finished runs: engines, versions of one engine, thread counts, today and last month.

    Compared is what is stored: losses step by step, environments, final weights, and what the checks of the
    engines' probes found. JOB means the job's only engine, or the one that both jobs have in common. Runs of jobs that
    ask for different things (data, network, seed, ...) are not compared. Exit codes as for 'run'.

    Examples: 'crosstrain compare nightly-41/torch nightly-42/torch', 'crosstrain compare nightly-42/torch
    nightly-42/tensorflow'.
    """
    from . import verdicts

    raise typer.Exit(verdicts.compare(Output(json), first, second, results, coordinator, state_dir))


@app.command("verdict")
def show_verdict(
    job: options.JobId,
    results: Annotated[
        Path | None, typer.Option("--results", help="Write all results of the job there, the report included.")
    ] = None,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Show the verdict of a job that has ended, again; exit codes as for 'run'.

    Example: 'crosstrain verdict nightly-42 --json | jq .engines[].causes'.
    """
    from . import verdicts

    raise typer.Exit(verdicts.verdict(Output(json), job, results, coordinator, state_dir))


@app.command()
def submit(
    job: options.JobFile,
    job_id: options.ChosenId = "",
    skip_unavailable: options.SkipUnavailable = False,
    remote_data: options.RemoteData = False,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Create a job and return at once; 'crosstrain watch' follows it.

    Example: 'crosstrain submit job.yaml --job-id nightly-42 && crosstrain watch nightly-42'.
    """
    from . import running

    running.submit(Output(json), job, job_id, skip_unavailable, remote_data, coordinator, state_dir)


@app.command()
def watch(
    job: options.JobId,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Follow a job to its end; Ctrl-C stops watching and leaves the job alone.

    With --json one line per event: 'crosstrain watch nightly-42 --json | jq .event'.
    """
    from . import running

    raise typer.Exit(running.watch(Output(json), job, coordinator, state_dir))


@app.command()
def jobs(
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
    json: options.Json = False,
) -> None:
    """List jobs, newest first."""
    from . import queries

    queries.jobs(Output(json), coordinator, state_dir, limit)


@app.command()
def show(
    job: options.JobId,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Show a job with its runs, errors and document."""
    from . import queries

    queries.show(Output(json), job, coordinator, state_dir)


@app.command()
def cancel(
    job: options.JobId,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Cancel a job with all its runs."""
    from . import queries

    queries.cancel(Output(json), job, coordinator, state_dir)


@app.command()
def engines(
    features: Annotated[bool, typer.Option("--features", help="List what each engine can do.")] = False,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """List the engines of a running coordinator, and what each can do."""
    from . import queries

    queries.engines(Output(json), features, coordinator, state_dir)


@app.command()
def evaluate(
    job: options.JobFile,
    weights: Annotated[
        list[str],
        typer.Option(
            "--weights", help="A safetensors file or the digest of stored weights; may be repeated."
        ),
    ],
    results: options.Results = None,
    skip_unavailable: options.SkipUnavailable = False,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Evaluate saved weights in every engine of a job file, on its test data.

    Example: 'crosstrain evaluate job.yaml --weights final.safetensors'.
    """
    from . import running

    output = Output(json)
    code = running.evaluate(output, job, weights, results, skip_unavailable, coordinator, state_dir)
    raise typer.Exit(code)


@app.command("export-results")
def export_results(
    job: options.JobId,
    to: Annotated[Path | None, typer.Argument(metavar="[FOLDER]", help="Where to write.")] = None,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Write the results of a job that has ended; see docs/results.md.

    Example: 'crosstrain export-results nightly-42 out/'.
    """
    from . import running

    raise typer.Exit(running.export(Output(json), job, to, coordinator, state_dir))


@app.command()
def doctor(state_dir: options.StateDir = None, json: options.Json = False) -> None:
    """Say what can run on this machine, what is missing, and the command that helps. Changes nothing."""
    from . import doctoring

    raise typer.Exit(doctoring.doctor(Output(json), state_dir))


@app.command()
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
    from . import running

    raise typer.Exit(running.demo(Output(json), folder, state_dir))


@data_app.command("check")
def data_check(job: options.JobFile, json: options.Json = False) -> None:
    """Import the data of a job file and say everything that is wrong or remarkable about it.

    Example: 'crosstrain data check job.yaml'. Exit code 3 if a job with this data would be refused.
    """
    from . import data_commands

    raise typer.Exit(data_commands.check(Output(json), job))


@data_app.command("import")
def data_import(
    source: Annotated[Path, typer.Argument(help="CSV, npz, IDX file, or folder of images.")],
    format: Annotated[str, typer.Option(help="csv, npz, idx or images. Default: found out.")] = "",
    shape: Annotated[str, typer.Option(help="Shape of one sample, for example 1,28,28.")] = "",
    labels: Annotated[str, typer.Option(help="index, map or onehot.")] = "index",
    json: options.Json = False,
) -> None:
    """Decode one source into the cache and print what it holds, with its digests."""
    from . import data_commands

    data_commands.import_source(Output(json), source, format, shape, labels)


@data_app.command("consistency")
def data_consistency(
    job: options.JobFile,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="How many samples to compare.")] = 100,
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address", metavar="SERVICE=HOST:PORT", help="A service that 'up' did not start here."
        ),
    ] = None,
    coordinator: options.Coordinator = "",
    state_dir: options.StateDir = None,
    json: options.Json = False,
) -> None:
    """Show that every framework computes from bit-identical samples: digests of the first ones as float32.

    Each engine takes one training step in file order through the smallest network, flatten and a dense layer.
    Compared per sample are what the engine is handed, and the output of flatten: what the framework itself
    computed from its own input tensor, in its own layout, written back as (C, H, W).

    Example: 'crosstrain data consistency job.yaml'. Exit code 3 unless all digests are those of the data.
    """
    from . import data_commands

    output = Output(json)
    raise typer.Exit(data_commands.consistency(output, job, samples, address or [], coordinator, state_dir))


@import_app.command("caffe")
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
    from . import exchange_commands

    exchange_commands.from_caffe(Output(json), net, solver, weights, folder, input_shape, ignore_lr_mult)


@export_app.command("caffe")
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
    from . import exchange_commands

    exchange_commands.to_caffe(Output(json), job, weights, folder, input_shape, classes)


ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A job file, or a model file (name and layers).")]
WeightsFile = Annotated[Path, typer.Argument(metavar="WEIGHTS.safetensors", help="Canonical weights.")]
OutputFolder = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder for the files.")]
InputShape = Annotated[str, typer.Option(help="Shape of one sample, channels first: 1,28,28.")]
Classes = Annotated[int, typer.Option(min=2, help="Number of classes.")]
Divisor = Annotated[
    float | None,
    typer.Option(help="What stored values are divided by, told in the file. Default: data.divisor of the job."),
]


@export_app.command("torch")
def export_torch(
    model: ModelFile,
    weights: WeightsFile,
    folder: OutputFolder,
    input_shape: InputShape,
    classes: Classes,
    divisor: Divisor = None,
    json: options.Json = False,
) -> None:
    """Write a PyTorch module as Python source (network.py) and its state_dict (weights.safetensors).

    The source needs torch and safetensors, not Crosstrain; load() in it gives the trained network. PyTorch is
    not needed here.

    Example: 'crosstrain export torch job.yaml final.safetensors exported --input-shape 1,28,28 --classes 10'.
    """
    from . import exchange_commands as exchange

    request = exchange.ExportRequest(model, weights, folder, input_shape, classes, divisor)
    exchange.to_torch(Output(json), request)


@export_app.command("keras")
def export_keras(
    model: ModelFile,
    weights: WeightsFile,
    folder: OutputFolder,
    input_shape: InputShape,
    classes: Classes,
    divisor: Divisor = None,
    json: options.Json = False,
) -> None:
    """Write a Keras model as Python source (network.py) and its arrays in Keras's layouts (weights.npz).

    The source runs on TensorFlow with Keras 2 and 3, without Crosstrain; it takes samples with channels last.
    load() in it gives the trained model. Neither is needed here.

    Example: 'crosstrain export keras job.yaml final.safetensors exported --input-shape 1,28,28 --classes 10'.
    """
    from . import exchange_commands as exchange

    request = exchange.ExportRequest(model, weights, folder, input_shape, classes, divisor)
    exchange.to_keras(Output(json), request)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code, for errors too."""
    Output.current = None
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (head, less) has enough; keep the interpreter from saying so at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except Exception as error:
        from . import failures

        return failures.report(error)
    return code if isinstance(code, int) else exits.OK
