"""The way of a job: data imported, engines chosen, created, followed to its end, its results written and shown."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from crosstrain.client import Client
from crosstrain.launch.supervise import Supervisor
from crosstrain.results import JobRecord, Results, check_folder, write_results
from crosstrain_protos.v1 import coordinator_pb2
from crosstrain_service.errors import CrosstrainError

from . import connect, showing
from .exits import INTERRUPTED, CommandError
from .jobfile import JobFile, check_plan, import_data, remark, send_data
from .options import Connection
from .output import Output
from .progress import Progress, progress

#: Seconds to wait for a cancelled job to end.
_CANCEL_SECONDS = 15.0


def execute(
    connection: Connection,
    job: JobFile,
    folder: Path | None,
    job_id: str = "",
    skip_unavailable: bool = False,
    remote_data: bool = False,
    show: Callable[[Output, Results, dict[str, str]], int] = showing.show_results,
    prepare: Callable[[Client, JobFile], JobFile] | None = None,
) -> int:
    """Takes a job to its end, writes its results and returns the exit code.

    ``show`` prints the results, also given why engines were left out, and gives the exit code. ``prepare`` completes
    the job once there is a coordinator.
    """
    job_id = job_id or new_job_id(job.spec.name)
    folder = results_folder(folder, job_id)
    check_folder(folder, job.spec.name)
    with prepared(connection, job, skip_unavailable, remote_data, prepare) as ready:
        results, interrupted = ready.run(ready.job, job_id, folder)
        code = show(connection.output, results, ready.left_out)
        return INTERRUPTED if interrupted else code


@contextlib.contextmanager
def prepared(
    connection: Connection,
    job: JobFile,
    skip_unavailable: bool = False,
    remote_data: bool = False,
    prepare: Callable[[Client, JobFile], JobFile] | None = None,
) -> Iterator[Prepared]:
    """A coordinator for jobs on the data and the engines of ``job``; what is started for it ends with it.

    Meanwhile SIGTERM is as Ctrl-C.
    """
    output = connection.output
    with _terminated_as_interrupted():
        plan = None if remote_data else Plan(job, output)
        with connect.connected_or_started(connection, job.spec) as (client, started):
            if prepare is not None:
                job = prepare(client, job)
            job, left_out = choose_engines(output, client, started, job, skip_unavailable)
            yield Prepared(output, client, job, plan, left_out)


@dataclass(frozen=True)
class Prepared:
    """A coordinator, and a job that it can run; ``left_out`` says why engines of the file are not in the job."""

    output: Output
    client: Client
    job: JobFile
    plan: Plan | None
    left_out: dict[str, str]

    def run(self, job: JobFile, job_id: str, folder: Path) -> tuple[Results, bool]:
        """Takes a job on the same data to its end and writes its results; also, whether Ctrl-C ended it."""
        created = create(self.output, self.client, job, self.plan, job_id)
        self.output.note(f"job {created.job_id}: {len(created.runs)} runs")
        record = JobRecord(created)
        steps = self.plan.steps if self.plan and job.spec.task != "evaluate" else 0
        interrupted = not _follow(self.client, record, progress(steps, self.output.json))
        return write_results(self.client, created.job_id, folder, record), interrupted


def new_job_id(name: str) -> str:
    """An id that tells people the job's name and when it was created."""
    return f"{name[:100]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def results_folder(given: Path | None, job_id: str) -> Path:
    """The folder given, else the usual one of a job."""
    return given or Path("crosstrain-results") / job_id


class Plan:
    """A job's data, imported and checked against its network before anything is started."""

    def __init__(self, job: JobFile, output: Output) -> None:
        self.data = import_data(job, output)
        self.steps = check_plan(job, self.data)


def choose_engines(
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
    return job.with_engines(engines), reasons


def create(output: Output, client: Client, job: JobFile, plan: Plan | None, job_id: str) -> coordinator_pb2.Job:
    """Sends the data, unless it is at the coordinator, and the job; shows what the coordinator remarks."""
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
