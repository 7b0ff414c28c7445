"""What a job's verdict needs of the coordinator: tasks for the process that judges, and their results stored.

Nothing is kept in memory that a restart would miss: what is left to do follows from the job store, every result is
stored once, and a task that was cut off is given out again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import grpc

from crosstrain.artifacts import ArtifactStore, fetch
from crosstrain.judging.pool import Pool
from crosstrain.metrics import record_verdict
from crosstrain.registry import Registry
from crosstrain.store import JobPlace, NewRun, RunPlace, Store, VerdictStage
from crosstrain_protos.v1 import artifact_pb2_grpc, coordinator_pb2, errors_pb2, run_pb2, service_pb2, service_pb2_grpc
from crosstrain_service.errors import CrosstrainError

from .evaluation import evaluation_runs
from .requests import artifacts_of_event, parse_request
from .runs import envelope_runs, flip_run, seed_runs

_LOG = logging.getLogger("crosstrain.jobs")
#: How often a task is tried whose process died or that met a defect.
MAX_TRIES = 3
_RPC_SECONDS = 10.0
_VERDICTS: dict[str, coordinator_pb2.Verdict.ValueType] = {
    name: coordinator_pb2.Verdict.Value(f"VERDICT_{name}")
    for name in ("IDENTICAL", "ROUNDING", "MISMATCH", "INCONCLUSIVE")
}


def verdict_value(name: str) -> coordinator_pb2.Verdict.ValueType:
    """The API's value of a verdict in a document."""
    return _VERDICTS[name]


class Judgement:
    """Carries verdicts on; :meth:`tend` is called with all unfinished jobs every now and then."""

    def __init__(self, store: Store, artifacts: ArtifactStore, registry: Registry, pool: Pool, size: int) -> None:
        self._store = store
        self._artifacts = artifacts
        self._registry = registry
        self._pool = pool
        self._threads = ThreadPoolExecutor(size, "judging")
        self._tasks: dict[str, Future[None]] = {}
        self._tries: Counter[str] = Counter()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends all tasks; they are done again after the next start."""
        self._stopping.set()
        self._pool.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def tend(self, job: JobPlace) -> None:
        """Gives out the checks of probes that have ended."""
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
        for run in job.runs:
            if run.checks_pending and run.ended:
                if run.state == run_pb2.RUN_STATE_SUCCEEDED and not job.cancel_requested:
                    self._start(run.run_id, partial(self._certify, run))
                else:
                    record = self._store.jobs.run(run.run_id).record.run
                    error = errors_pb2.Error(
                        reason=record.error.reason or errors_pb2.ERROR_REASON_CANCELLED,
                        message=record.error.message or "the probe was cancelled",
                    )
                    self._store.runs.checked(run.run_id, error=error)

    def carry_on(self, job: JobPlace) -> bool:
        """The next step of a job whose runs have ended and are checked; whether there is one."""
        job_id = job.job_id
        if job.cancel_requested:
            if job.verdict_stage != VerdictStage.NONE:
                self._start(job_id, lambda: self._clean(job_id))
            return job.verdict_stage != VerdictStage.NONE
        if job.evaluation_pending or job.verdict_stage == VerdictStage.FOLLOW:
            follow = job.verdict_stage == VerdictStage.FOLLOW
            self._start(job_id, lambda: self._follow(job_id, job.evaluation_pending, follow))
        elif job.verdict_stage == VerdictStage.JUDGE:
            self._start(job_id, lambda: self._judge(job_id))
        elif job.verdict_stage == VerdictStage.CLEAN:
            self._start(job_id, lambda: self._clean(job_id))
        else:
            return False
        return True

    def _start(self, key: str, action: Callable[[], None]) -> None:
        if key in self._tasks or self._stopping.is_set():
            return

        def run() -> None:
            try:
                action()
            except CrosstrainError as error:
                if not self._stopping.is_set():
                    _LOG.warning("%s: %s: %s", key, error.reason, error.message)
                    # The next round tries again; the pause keeps a store that is down from being hammered.
                    self._stopping.wait(1.0)
            except Exception:  # the next round must find the task gone, whatever happened
                _LOG.exception("defect while judging %s", key)
                self._stopping.wait(1.0)

        task = self._threads.submit(run)
        self._tasks[key] = task
        task.add_done_callback(lambda _task: self._store.jobs.work_changed.notify())

    def _given_up(self, key: str, error: CrosstrainError) -> bool:
        """Whether a task that failed so is not to be tried again."""
        if self._stopping.is_set():
            return False
        self._tries[key] += 1
        if error.reason in ("CHILD_DIED", "INTERNAL", "SERVICE_UNREACHABLE", "STORAGE_FULL"):
            return self._tries[key] >= MAX_TRIES
        return True

    def _certify(self, run: RunPlace) -> None:
        self._complete(run)
        try:
            digest = self._pool.call(task="certify", run_id=run.run_id)["digest"]
        except CrosstrainError as error:
            if not self._given_up(run.run_id, error):
                raise
            self._store.runs.checked(run.run_id, error=error.to_proto())
            return
        self._store.runs.checked(run.run_id, digest)

    def _complete(self, run: RunPlace) -> None:
        """Fetches records that were removed meanwhile: another probe may have had equal ones."""
        address = self._registry.address(run.service)
        missing = self._artifacts.missing(self._records(run.run_id))
        if address is None or not missing:
            return
        stub = artifact_pb2_grpc.ArtifactServiceStub(self._registry.channel(address))
        for digest in missing:
            try:
                fetch(self._artifacts, stub, digest)
            except (grpc.RpcError, CrosstrainError) as error:
                # The checks will name what is missing.
                _LOG.info("run %s: a record cannot be had again: %s", run.run_id, error)
                return

    def _follow(self, job_id: str, evaluation: bool, verdict: bool) -> None:
        runs: list[NewRun] = evaluation_runs(self._store, job_id) if evaluation else []
        if verdict:
            try:
                runs += self._further_runs(job_id)
            except CrosstrainError as error:
                if not self._given_up(f"follow {job_id}", error):
                    raise
                _LOG.warning("job %s: no further runs for its verdict: %s", job_id, error.message)
        self._store.jobs.add_runs(job_id, runs)

    def _further_runs(self, job_id: str) -> list[NewRun]:
        plan = self._pool.call(task="follow", job_id=job_id)
        found: list[NewRun] = []
        for run_id, steps in plan["flips"].items():
            row = self._store.jobs.run(run_id)
            found.append(flip_run(row, _train_request(row.kind, row.request), steps))
        if plan["envelope_of"]:
            row = self._store.jobs.run(plan["envelope_of"])
            found += envelope_runs(row, _train_request(row.kind, row.request), plan["weights"])
        seeds = {int(seed): digest for seed, digest in plan["seeds"].items()}
        for run_id in plan["seeds_of"]:
            row = self._store.jobs.run(run_id)
            found += seed_runs(row, _train_request(row.kind, row.request), seeds)
        return found

    def _judge(self, job_id: str) -> None:
        try:
            found = self._pool.call(task="judge", job_id=job_id)
            reached = coordinator_pb2.VerdictReached(
                verdict=verdict_value(found["verdict"]), digest=found["digest"], sentence=found["sentence"]
            )
        except CrosstrainError as error:
            if not self._given_up(f"judge {job_id}", error):
                raise
            reached = coordinator_pb2.VerdictReached(error=error.to_proto())
            found = {"pairs": []}
        self._store.jobs.set_verdict(job_id, reached)
        for verdict in found["pairs"]:
            record_verdict(job_id, verdict)

    def _clean(self, job_id: str) -> None:
        """Removes recorded tensors, here and at the services, unless the job keeps them."""
        from crosstrain.spec import parse_document

        job = self._store.jobs.job(job_id)
        if not parse_document(job.document).verdict.keep_records:
            probes = [record for record in job.runs if record.run.kind == run_pb2.RUN_KIND_PROBE]
            kept = {
                digest
                for other in self._store.jobs.unfinished()
                for run in other.runs
                if other.job_id != job_id and run.kind == run_pb2.RUN_KIND_PROBE
                for digest in self._records(run.run_id)
            }
            for record in probes:
                for digest in self._records(record.run.run_id):
                    if digest not in kept:
                        self._artifacts.remove(digest)
                self._drop(record.service, record.run.run_id)
        self._store.jobs.records_removed(job_id)

    def _drop(self, service: str, run_id: str) -> None:
        address = self._registry.address(service)
        if address is None:
            return
        stub = service_pb2_grpc.TrainingServiceStub(self._registry.channel(address))
        try:
            stub.DropRecords(service_pb2.DropRecordsRequest(run_id=run_id), timeout=_RPC_SECONDS)
        except grpc.RpcError as error:
            # What stays takes room there and does no other harm.
            _LOG.info("the records of %s stay at %s: %s", run_id, service, error)

    def _records(self, run_id: str) -> list[str]:
        found: list[str] = []
        after = 0
        while events := self._store.jobs.run_events(run_id, after):
            found += [digest for event in events for digest in artifacts_of_event(event)]
            after = events[-1].sequence
        return found


def _train_request(kind: int, data: bytes) -> service_pb2.TrainRequest:
    request = parse_request(kind, data)
    assert isinstance(request, service_pb2.TrainRequest)
    return request
