"""Commands that create a job from a job file."""

from __future__ import annotations

from typing import Annotated

import typer

from crosstrain.cli import options


def run(
    *,
    job: options.JobFile,
    results: options.Results = None,
    creation: options.Creation,
    remote_data: options.RemoteData = False,
    verdict: Annotated[
        bool,
        typer.Option("--verdict/--no-verdict", help="Judge the job; --no-verdict trains and evaluates only."),
    ] = True,
    connection: options.Connection,
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
    from crosstrain.cli import running

    raise typer.Exit(running.run(connection, job, results, creation, remote_data, verdict))


def check(
    *,
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
    creation: options.Creation,
    connection: options.Connection,
) -> None:
    """Check a few steps of a job in every engine, piece by piece, without training. Takes about a minute.

    Every engine trains a few steps of a small batch on its real path and records each layer's output and
    gradient, all parameters and the optimizer's state. Each piece is then compared with reference arithmetic
    applied to the engine's own inputs of that piece, within a derived rounding bound. A piece that fails is named
    with its cause, where one of the known conventions explains it, and what restores parity.

    Examples: 'crosstrain check job.yaml', 'crosstrain check job.yaml --engine torch --engine lasagne'.
    """
    from crosstrain.cli import running

    raise typer.Exit(running.check(connection, job, results, creation, engine or [], semantics))


def scale(
    *,
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
    bare: Annotated[
        bool,
        typer.Option(
            "--bare",
            help="Also run a plain script of each framework by its own launcher, and compare. cnn2 with SGD only.",
        ),
    ] = False,
    results: options.Results = None,
    job_id: options.ChosenId = "",
    connection: options.Connection,
) -> None:
    """Train a job on several numbers of ranks and say what that gains, and whether it is still the same training.

    Every engine trains at every number of data ranks, as variants of one job whose repeats go round them. Printed are
    throughput and speed-up with 95 % intervals, efficiency (speed-up over ranks), the share of time spent waiting for
    other ranks, and the verdict of N ranks against the fewest. The batch of the job is that of all ranks together, so
    more ranks have less to do each. Where the verdict is not IDENTICAL or ROUNDING, nothing is ranked: a faster
    training of something else is no gain. Exit codes as for 'run'.

    With --bare, what Crosstrain costs is measured as well. After each repeat, or before it, in turn, the framework's
    own launcher (torchrun, horovodrun, mpiexec, or the script alone) starts a plain script that trains the same
    network on the same data with the same batch, threads, rate and number of steps. Printed is the throughput through
    the service over the script's, paired by repeat: 1 is as fast. The scripts are in benchmarks/bare of the checkout;
    the services must be on this machine. Where no script does what the job asks for, a line says why.

    Written besides the usual results: scale.csv and scale.html, a chart. On one processor set --threads 1, so that
    one rank does not use all cores already.

    Examples: 'crosstrain scale examples/cnn2-parallel.yaml --ranks 1,2 --threads 1',
    'crosstrain scale job.yaml --ranks 1,2,4 --engine torch --backend horovod --repeats 5',
    'crosstrain scale job.yaml --ranks 1,2 --threads 1 --bare'.
    """
    from crosstrain.cli import scaling

    code = scaling.scale(connection, job, results, job_id, ranks, engine or [], repeats, backend, threads, bare)
    raise typer.Exit(code)


def migrate(
    *,
    job: options.JobFile,
    origin: Annotated[str, typer.Option("--from", metavar="ENGINE", help="Where the job runs today.")],
    target: Annotated[str, typer.Option("--to", metavar="ENGINE", help="Where it is to run.")],
    results: options.Results = None,
    connection: options.Connection,
) -> None:
    """Say what would change if a job moved from one framework to another with its defaults.

    Both engines take a few steps with their own conventions and default constants (native semantics); nothing is
    trained. Listed is each convention in which one of them differs, and the setting that restores parity.
    Exit code 0 if nothing would change, 1 if something would.

    Example: 'crosstrain migrate job.yaml --from keras-theano --to torch'.
    """
    from crosstrain.cli import migration

    raise typer.Exit(migration.migrate(connection, job, origin, target, results))


def submit(
    *,
    job: options.JobFile,
    creation: options.Creation,
    remote_data: options.RemoteData = False,
    connection: options.Connection,
) -> None:
    """Create a job and return at once; 'crosstrain watch' follows it.

    Example: 'crosstrain submit job.yaml --job-id nightly-42 && crosstrain watch nightly-42'.
    """
    from crosstrain.cli import running

    running.submit(connection, job, creation, remote_data)


def evaluate(
    *,
    job: options.JobFile,
    weights: Annotated[
        list[str],
        typer.Option(
            "--weights", help="A safetensors file or the digest of stored weights; may be repeated."
        ),
    ],
    results: options.Results = None,
    skip_unavailable: options.SkipUnavailable = False,
    connection: options.Connection,
) -> None:
    """Evaluate saved weights in every engine of a job file, on its test data.

    Example: 'crosstrain evaluate job.yaml --weights final.safetensors'.
    """
    from crosstrain.cli import running

    raise typer.Exit(running.evaluate(connection, job, weights, results, skip_unavailable))
