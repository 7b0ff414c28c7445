"""Commands that create jobs, wait for them, and write their results."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeVar

from crosstrain.client import Client
from crosstrain.launch.supervise import Supervisor
from crosstrain.results import JobRecord, Results, check_folder, read_job_verdict, write_results
from crosstrain.results.names import job_state, verdict_name
from crosstrain.spec import parse_entry
from crosstrain_protos.v1 import coordinator_pb2
from crosstrain_service.errors import CrosstrainError

from . import connect, showing
from .exits import INTERRUPTED, USAGE, CommandError
from .jobfile import JobFile, check_plan, import_data, read_job, remark, send_data
from .output import Output
from .progress import Progress, progress
from .queries import job_json

T = TypeVar("T")
#: Seconds to wait for a cancelled job to end.
_CANCEL_SECONDS = 15.0


def run(
    output: Output,
    path: Path,
    folder: Path | None,
    job_id: str,
    skip_unavailable: bool,
    remote_data: bool,
    coordinator: str,
    state_dir: Path | None,
    judge: bool = True,
) -> int:
    """Runs a job file to its end and writes its results; returns the exit code."""
    job = read_job(path)
    if not judge:
        job = job.with_spec(verdict=job.spec.verdict.model_copy(update={"judge": False}))
    return execute(output, job, folder, job_id, skip_unavailable, remote_data, coordinator, state_dir)


def check(
    output: Output,
    path: Path,
    folder: Path | None,
    engines: list[str],
    semantics: str,
    job_id: str,
    skip_unavailable: bool,
    coordinator: str,
    state_dir: Path | None,
) -> int:
    """Checks a few steps of a job in every engine, without training; returns the verdict's exit code."""
    job = checking(read_job(path), engines, semantics)
    return execute(output, job, folder, job_id, skip_unavailable, False, coordinator, state_dir)


def checking(job: JobFile, engines: list[str], semantics: str) -> JobFile:
    """The check of a job: the same network, data and settings, but nothing is trained."""
    if semantics not in ("", "canonical", "native"):
        raise CommandError(f"--semantics {semantics!r}: must be canonical or native", USAGE)
    spec = job.spec
    try:
        chosen = [str(parse_entry(engine)) for engine in engines] or spec.engines
    except ValueError as error:
        raise CommandError(f"--engine: {error}", USAGE) from None
    compiler = spec.execution.compiler
    if isinstance(compiler, dict):
        compiler = _kept(compiler, chosen)
    return job.with_spec(
        name=f"{spec.name[:121]}-check",
        task="check",
        engines=chosen,
        semantics=semantics or spec.semantics,
        runs_of={},
        weights=[],
        execution=spec.execution.model_copy(update={"compiler": compiler}),
        verdict=spec.verdict.model_copy(update={"judge": True, "probe": True}),
    )


def execute(
    output: Output,
    job: JobFile,
    folder: Path | None,
    job_id: str,
    skip_unavailable: bool,
    remote_data: bool,
    coordinator: str,
    state_dir: Path | None,
    show: Callable[[Output, Results, dict[str, str]], int] = showing.show_results,
) -> int:
    """Like :func:`run`, with a job that was read already; ``show`` prints the results and gives the exit code."""
    job_id = job_id or new_job_id(job.spec.name)
    folder = folder or Path("crosstrain-results") / job_id
    check_folder(folder, job.spec.name)
    with _terminated_as_interrupted():
        plan = None if remote_data else _Plan(job, output)
        with connect.connected_or_started(output, coordinator, state_dir, job.spec) as (
            client,
            started,
        ):
            job, left_out = _choose_engines(output, client, started, job, skip_unavailable)
            created = _create(output, client, job, plan, job_id)
            output.note(f"job {created.job_id}: {len(created.runs)} runs")
            record = JobRecord(created)
            interrupted = not _follow(client, record, progress(plan.steps if plan else 0, output.json))
            results = write_results(client, created.job_id, folder, record)
            code = show(output, results, left_out)
            return INTERRUPTED if interrupted else code


def submit(
    output: Output,
    path: Path,
    job_id: str,
    skip_unavailable: bool,
    remote_data: bool,
    coordinator: str,
    state_dir: Path | None,
) -> None:
    """Creates a job and prints its id."""
    job = read_job(path)
    plan = None if remote_data else _Plan(job, output)
    with connect.connected(coordinator, state_dir) as client:
        job, left_out = _choose_engines(output, client, None, job, skip_unavailable)
        created = _create(output, client, job, plan, job_id or new_job_id(job.spec.name))
    output.document({**job_json(created), "left_out": left_out})
    output.text(created.job_id)


def watch(output: Output, job_id: str, coordinator: str, state_dir: Path | None) -> int:
    """Follows a job to its end; returns the exit code."""
    from google.protobuf.json_format import MessageToDict

    with connect.connected(coordinator, state_dir) as client:
        record = JobRecord(client.get_job(job_id))
        with progress(0, output.json) as shown:
            for event in client.watch_job(job_id):
                record.add(event)
                shown.update(record, event)
                if output.json:
                    output.line(MessageToDict(event, preserving_proto_field_name=True))
        record.update(client.get_job(job_id))
        document = read_job_verdict(record, client)
    output.text(f"job {job_id}: {job_state(record.state)}")
    if record.verdict is not None and record.verdict.sentence:
        output.text(f"{verdict_name(record.verdict.verdict)}: {record.verdict.sentence}")
    return showing.exit_code(record) if document is None else int(document["exit_code"])


def evaluate(
    output: Output,
    path: Path,
    weights: list[str],
    folder: Path | None,
    skip_unavailable: bool,
    coordinator: str,
    state_dir: Path | None,
) -> int:
    """Evaluates weights in every engine of a job file; returns the exit code."""
    job = read_job(path)
    name = f"{job.spec.name}-evaluate"[:128]
    job_id = new_job_id(name)
    folder = folder or Path("crosstrain-results") / job_id
    check_folder(folder, name)
    with _terminated_as_interrupted():
        plan = _Plan(job, output)
        with connect.connected_or_started(output, coordinator, state_dir, job.spec) as (
            client,
            started,
        ):
            digests = [_stored_weights(client, item) for item in weights]
            job = job.with_spec(name=name, task="evaluate", weights=digests, cross_evaluate=False)
            job, left_out = _choose_engines(output, client, started, job, skip_unavailable)
            created = _create(output, client, job, plan, job_id)
            record = JobRecord(created)
            interrupted = not _follow(client, record, progress(0, output.json))
            code = showing.show_results(output, write_results(client, job_id, folder, record), left_out)
            return INTERRUPTED if interrupted else code


def export(output: Output, job_id: str, folder: Path | None, coordinator: str, state_dir: Path | None) -> int:
    """Writes the results of a job that has ended; returns the exit code of that job."""
    with connect.connected(coordinator, state_dir) as client:
        job = client.get_job(job_id)
        if job.state == coordinator_pb2.JOB_STATE_RUNNING:
            raise CommandError(f"the job {job_id} has not ended", remedy=f"crosstrain watch {job_id}")
        results = write_results(client, job_id, folder or Path("crosstrain-results") / job_id)
    showing.show_results(output, results, {})
    return 0


def demo(output: Output, folder: Path, state_dir: Path | None) -> int:
    """Runs the demonstration job with digits that are made first."""
    from crosstrain.data.digits import write_digits
    from crosstrain.launch.catalogue import default_catalogue_path
    from crosstrain.launch.environments import cache_root

    example = default_catalogue_path().parents[1] / "examples" / "mnist-cnn2.yaml"
    job = read_job(example)
    train, test = write_digits(cache_root() / "digits")
    data = job.spec.data.model_copy(update={"train": str(train), "test": str(test)})
    job = job.with_spec(data=data)
    began = time.monotonic()
    code = execute(output, job, folder, "", True, False, "", state_dir)
    output.note(f"the demonstration took {time.monotonic() - began:.0f} s")
    return code


def new_job_id(name: str) -> str:
    """An id that tells people the job's name and when it was created."""
    return f"{name[:100]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


class _Plan:
    """A job's data, imported and checked against its network before anything is started."""

    def __init__(self, job: JobFile, output: Output) -> None:
        self.data = import_data(job, output)
        self.steps = check_plan(job, self.data)


def _choose_engines(
    output: Output, client: Client, started: Supervisor | None, job: JobFile, skip_unavailable: bool
) -> tuple[JobFile, dict[str, str]]:
    """The job with engines that can run; raises CommandError if one cannot and none may be skipped."""
    engines, reasons = connect.available(client, started, job.spec.engines)
    if not reasons:
        return job, {}
    text = "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items())
    if not skip_unavailable or not engines:
        raise CommandError(f"cannot run here: {text}", remedy="crosstrain doctor, or --skip-unavailable")
    for engine, reason in reasons.items():
        output.note(f"left out: {engine}: {reason}")
    runs_of = _kept(job.spec.runs_of, engines)
    compiler = job.spec.execution.compiler
    if isinstance(compiler, dict):
        compiler = _kept(compiler, engines)
    execution = job.spec.execution.model_copy(update={"compiler": compiler})
    return job.with_spec(engines=engines, runs_of=runs_of, execution=execution), reasons


def _kept(settings: dict[str, T], engines: Sequence[str]) -> dict[str, T]:
    """Settings by engine that still belong to one; a name without brackets belongs to all its variants."""
    names = {*engines, *(parse_entry(engine).base for engine in engines)}
    return {engine: value for engine, value in settings.items() if engine in names}


def _create(output: Output, client: Client, job: JobFile, plan: _Plan | None, job_id: str) -> coordinator_pb2.Job:
    train = send_data(client, plan.data.train, plan.data.cache) if plan else None
    test = send_data(client, plan.data.test, plan.data.cache) if plan else None
    findings = plan.data.findings if plan else ()
    remarks = [remark(finding) for finding in findings]
    try:
        created = client.create_job(job.text, train, test, job_id, remarks=remarks)
    except CrosstrainError as error:
        if error.reason in ("INVALID_JOB", "INVALID_MODEL"):
            raise job.failed(error, remote=True) from None
        raise
    if plan is None:  # else they were shown before anything was sent
        for found in created.remarks:
            output.note(f"{found.severity}: {found.text}")
    return created


def _follow(client: Client, record: JobRecord, shown: Progress) -> bool:
    """Watches a job to its end; on Ctrl-C cancels it and returns False."""
    job_id = record.job.job_id
    try:
        with shown:
            for event in client.watch_job(job_id, record.last_sequence):
                record.add(event)
                shown.update(record, event)
        return True
    except KeyboardInterrupt:
        client.cancel_job(job_id)
        deadline = time.monotonic() + _CANCEL_SECONDS
        with contextlib.suppress(KeyboardInterrupt):
            while client.get_job(job_id).state == coordinator_pb2.JOB_STATE_RUNNING:
                if time.monotonic() > deadline:
                    raise CommandError(f"the job {job_id} does not end", INTERRUPTED) from None
                time.sleep(0.1)
        return False


def _stored_weights(client: Client, given: str) -> str:
    """The digest of weights that are a file here, or are stored already."""
    if len(given) == 64 and all(character in "0123456789abcdef" for character in given):
        return given
    return client.upload(Path(given))


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that the job is cancelled and children are stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
