"""Commands that create jobs, wait for them, and write their results."""

from __future__ import annotations

import time
from pathlib import Path

from crosstrain.client import Client
from crosstrain.results import JobRecord, read_job_verdict, write_results
from crosstrain.results.names import job_state, verdict_name
from crosstrain.spec import parse_entry
from crosstrain_protos.v1 import coordinator_pb2

from . import connect, showing
from .execution import Plan, choose_engines, create, execute, new_job_id, results_folder
from .exits import USAGE, CommandError
from .jobfile import JobFile, read_job
from .options import Connection, Creation
from .progress import progress
from .queries import job_json


def run(
    connection: Connection, path: Path, folder: Path | None, creation: Creation, remote_data: bool, judge: bool
) -> int:
    """Runs a job file to its end and writes its results; returns the exit code."""
    job = read_job(path)
    if not judge:
        job = job.with_spec(verdict=job.spec.verdict.model_copy(update={"judge": False}))
    return execute(connection, job, folder, creation.job_id, creation.skip_unavailable, remote_data)


def check(
    connection: Connection, path: Path, folder: Path | None, creation: Creation, engines: list[str], semantics: str
) -> int:
    """Checks a few steps of a job in every engine, without training; returns the verdict's exit code."""
    job = checking(read_job(path), engines, semantics)
    return execute(connection, job, folder, creation.job_id, creation.skip_unavailable)


def checking(job: JobFile, engines: list[str], semantics: str) -> JobFile:
    """The check of a job: the same network, data and settings, but nothing is trained."""
    if semantics not in ("", "canonical", "native"):
        raise CommandError(f"--semantics {semantics!r}: must be canonical or native", USAGE)
    spec = job.spec
    try:
        chosen = [str(parse_entry(engine)) for engine in engines] or spec.engines
    except ValueError as error:
        raise CommandError(f"--engine: {error}", USAGE) from None
    return job.with_engines(
        chosen,
        name=f"{spec.name[:121]}-check",
        task="check",
        semantics=semantics or spec.semantics,
        runs_of={},
        weights=[],
        verdict=spec.verdict.model_copy(update={"judge": True, "probe": True}),
    )


def submit(connection: Connection, path: Path, creation: Creation, remote_data: bool) -> None:
    """Creates a job and prints its id."""
    output = connection.output
    job = read_job(path)
    plan = None if remote_data else Plan(job, output)
    with connect.connected(connection) as client:
        job, left_out = choose_engines(output, client, None, job, creation.skip_unavailable)
        created = create(output, client, job, plan, creation.job_id or new_job_id(job.spec.name))
    output.document({**job_json(created), "left_out": left_out})
    output.text(created.job_id)


def watch(connection: Connection, job_id: str) -> int:
    """Follows a job to its end; returns the exit code."""
    from google.protobuf.json_format import MessageToDict

    output = connection.output
    with connect.connected(connection) as client:
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
    connection: Connection, path: Path, weights: list[str], folder: Path | None, skip_unavailable: bool
) -> int:
    """Evaluates weights in every engine of a job file; returns the exit code."""
    job = read_job(path)

    def prepare(client: Client, job: JobFile) -> JobFile:
        digests = [_stored_weights(client, item) for item in weights]
        return job.with_spec(task="evaluate", weights=digests, cross_evaluate=False)

    job = job.with_spec(name=f"{job.spec.name}-evaluate"[:128])
    return execute(connection, job, folder, skip_unavailable=skip_unavailable, prepare=prepare)


def export(connection: Connection, job_id: str, folder: Path | None) -> int:
    """Writes the results of a job that has ended."""
    with connect.connected(connection) as client:
        job = client.get_job(job_id)
        if job.state == coordinator_pb2.JOB_STATE_RUNNING:
            raise CommandError(f"the job {job_id} has not ended", remedy=f"crosstrain watch {job_id}")
        results = write_results(client, job_id, results_folder(folder, job_id))
    showing.show_results(connection.output, results, {})
    return 0


def demo(connection: Connection, folder: Path) -> int:
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
    code = execute(connection, job, folder, skip_unavailable=True)
    connection.output.note(f"the demonstration took {time.monotonic() - began:.0f} s")
    return code


def _stored_weights(client: Client, given: str) -> str:
    """The digest of weights that are a file here, or are stored already."""
    if len(given) == 64 and all(character in "0123456789abcdef" for character in given):
        return given
    return client.upload(Path(given))
