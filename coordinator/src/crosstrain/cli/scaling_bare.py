"""crosstrain scale --bare: every repeat a job of its own, so that bare scripts run between the repeats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from crosstrain.launch.catalogue import load_catalogue
from crosstrain.launch.environments import Environment, Unavailable
from crosstrain.launch.extras import equipped_environment
from crosstrain.results import Results, RunRecord, check_folder
from crosstrain.scaling import BareFigures, BareRuns, BareScriptFailed, available_cores, settings_of
from crosstrain.scaling.bare import script_folder

from . import connect, showing
from .execution import Prepared, new_job_id, prepared, results_folder
from .exits import INTERRUPTED, OK, USAGE, CommandError
from .jobfile import JobFile
from .options import Connection
from .output import Output

Show = Callable[[Output, Results, Sequence[RunRecord], Mapping[str, BareFigures], str], int]


def execute(
    connection: Connection,
    job: JobFile,
    folder: Path | None,
    job_id: str,
    show: Show,
) -> int:
    """Runs every repeat of a job, with the bare scripts of its variants after it or before it, in turn.

    The first repeat is judged; the others only train. Their results lie in ``repeat-N`` beside the first's.

    Returns:
        The exit code of ``show``, or that of a repeat that failed.
    """
    _must_be_here(connection.coordinator)
    output = connection.output
    job_id = job_id or new_job_id(job.spec.name)
    folder = results_folder(folder, job_id)
    check_folder(folder, job.spec.name)
    with (
        prepared(connection, job) as ready,
        tempfile.TemporaryDirectory(prefix="crosstrain-bare-") as scratch,
    ):
        bare, remark = _bare_runs(output, ready, Path(scratch))
        first, interrupted = ready.run(_repeat(ready.job, 0), job_id, folder)
        variants = first.record.training_runs()
        runs, code = list(variants), OK
        try:
            if bare is not None and not interrupted:
                bare.measure(variants, 0)
            for repeat in range(1, job.spec.repeats):
                if interrupted:
                    break
                # In turn, so that what changes steadily on the machine meets both sides alike.
                if bare is not None and repeat % 2:
                    bare.measure(variants, repeat)
                own_id, own_folder = f"{job_id}-repeat-{repeat}", folder / f"repeat-{repeat}"
                further, interrupted = ready.run(_repeat(ready.job, repeat), own_id, own_folder)
                code = code or showing.exit_code(further.record)
                for run in further.record.training_runs():
                    run.repeat = repeat
                    runs.append(run)
                if bare is not None and not repeat % 2 and not interrupted:
                    bare.measure(variants, repeat)
        except KeyboardInterrupt:  # while a bare script ran; what is measured already is shown
            interrupted = True
        shown = show(output, first, runs, bare.figures if bare is not None else {}, remark)
        return INTERRUPTED if interrupted else shown or code


def _must_be_here(coordinator: str) -> None:
    """Raises CommandError for a coordinator of another machine: its services' environments are not here."""
    host = coordinator.rpartition(":")[0].strip("[]")
    if coordinator and not (host in ("localhost", "::1") or host.startswith("127.")):
        text = f"--bare starts scripts in the environments of the services, which are not here but at {coordinator}"
        raise CommandError(text, USAGE, "run it on that machine, or without --coordinator")
    try:
        script_folder(load_catalogue().root)
    except BareScriptFailed as reason:
        raise CommandError(f"--bare: {reason}", USAGE, "run it from a checkout, or without --bare") from None


def _bare_runs(output: Output, ready: Prepared, scratch: Path) -> tuple[BareRuns | None, str]:
    """What runs the scripts; None, and why, where they cannot do what the job asks for."""
    assert ready.plan is not None
    data = ready.plan.data
    catalogue = load_catalogue()
    additions = connect.additions_for(ready.job.spec)

    def environment(service: str) -> Environment | Unavailable:
        return equipped_environment(catalogue.service(service), catalogue, additions, progress=output.note)

    if data.train is None:
        return None, "the job has no training data"
    try:
        settings = settings_of(ready.job.spec, data.train, available_cores())
        return BareRuns(settings, data.train, data.cache, scratch, catalogue, environment, output.note), ""
    except BareScriptFailed as reason:
        output.note(f"bare: {reason}")
        return None, str(reason)


def _repeat(job: JobFile, repeat: int) -> JobFile:
    """The job of one repeat; only the first is judged."""
    if not repeat:
        return job.with_spec(repeats=1)
    verdict = job.spec.verdict.model_copy(update={"judge": False, "probe": False, "seeds": 1})
    return job.with_spec(repeats=1, verdict=verdict)
