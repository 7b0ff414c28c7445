"""Decides which runs are at work: in order, and one at a time on each device."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

import grpc

from crosstrain.artifacts import ArtifactStore
from crosstrain.registry import Registry
from crosstrain.store import ExecutorLock, JobPlace, RunPlace, Store
from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2, service_pb2, service_pb2_grpc
from crosstrain_service.errors import CrosstrainError

from .evaluation import first_failure
from .follower import RunFollower
from .groups_tender import GroupTender
from .judgement import Judgement

_LOG = logging.getLogger("crosstrain.jobs")
#: How often to look for work that another process of the same store brought, seconds.
POLL_SECONDS = 1.0
#: How often a service is told again to cancel a run that has not ended yet, seconds.
CANCEL_SECONDS = 1.0
#: How long the services of a cancelled job may stay silent before its runs count as cancelled, seconds.
CANCEL_PATIENCE = 30.0


def startable(jobs: Iterable[JobPlace]) -> list[RunPlace]:
    """Runs that may be at work now: of each job, in order, the first unfinished one on each device.

    A device belongs to the oldest unfinished job that has a run on it, until that job has ended
    (its evaluations come last). A job that shares its devices neither waits nor makes others wait.
    """
    taken: set[str] = set()
    # Groups exclude one another on every device: two that wait for each other's members would wait for ever.
    grouped: set[str] = set()
    chosen = []
    for job in jobs:
        busy: set[str] = set()
        checking = any(run.checks_pending for run in job.runs) and not job.cancel_requested
        for run in job.runs:
            if run.ended or (job.cancel_requested and not run.submissions):
                continue
            if checking and run.purpose == coordinator_pb2.RUN_PURPOSE_TRAIN and not run.submissions:
                # The checks take processor time, which must not be taken from a run whose time is measured.
                busy |= run.device_keys
                continue
            waits = bool(run.device_keys & (taken | busy)) and not job.shared_devices
            if not waits and not run.group_keys & grouped:
                chosen.append(run)
            busy |= run.device_keys
            grouped |= run.group_keys
        if not job.shared_devices:
            taken.update(*(run.device_keys for run in job.runs))
    return chosen


class Scheduler:
    """Executes the jobs of a store as long as this process holds its executor lock.

    There is nothing to recover after a restart: the first round starts what is unfinished.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, registry: Registry, judgement: Judgement, patience: float
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._registry = registry
        self._judgement = judgement
        self._patience = patience
        self._lock = ExecutorLock(store.database)
        self._stopping = threading.Event()
        self._followers: dict[str, tuple[RunFollower, threading.Thread]] = {}
        self._tenders: dict[str, tuple[GroupTender, threading.Thread]] = {}
        self._cancelled: dict[str, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begins to execute jobs."""
        self._thread.start()

    def stop(self) -> None:
        """Ends following; runs go on in their services."""
        self._stopping.set()
        self._store.jobs.work_changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)
        self._judgement.stop()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            seen = self._store.jobs.work_changed.count()
            try:
                if self._lock.acquire():
                    self._round()
                else:
                    self._end_followers()
            except CrosstrainError as error:
                _LOG.warning("the store failed: %s", error.message)
            except Exception:  # the scheduler must outlive a defect in one round
                _LOG.exception("defect while scheduling")
            self._store.jobs.work_changed.wait(seen, POLL_SECONDS)
        self._end_followers()
        self._lock.release()

    def _round(self) -> None:
        jobs = self._store.jobs.unfinished()
        self._followers = {key: item for key, item in self._followers.items() if item[1].is_alive()}
        for job in jobs:
            if job.cancel_requested:
                self._cancel(job)
            self._judgement.tend(job)
            if all(run.ended and not run.checks_pending for run in job.runs):
                self._finish_stage(job)
        self._tend_groups()
        for run in startable(jobs):
            if run.run_id not in self._followers:
                self._follow(run.run_id)

    def _follow(self, run_id: str) -> None:
        follower = RunFollower(self._store, self._artifacts, self._registry, run_id, self._patience)
        thread = threading.Thread(target=follower.follow, name=f"run {run_id}", daemon=True)
        self._followers[run_id] = follower, thread
        thread.start()

    def _tend_groups(self) -> None:
        """Starts, watches and frees the members of groups, also of those whose runs have ended."""
        self._tenders = {key: item for key, item in self._tenders.items() if item[1].is_alive()}
        for run_id in self._store.groups.to_tend():
            if run_id not in self._tenders:
                tender = GroupTender(self._store, self._artifacts, self._registry, run_id, self._patience)
                thread = threading.Thread(target=tender.tend, name=f"group {run_id}", daemon=True)
                self._tenders[run_id] = tender, thread
                thread.start()

    def _end_followers(self) -> None:
        working: list[tuple[RunFollower | GroupTender, threading.Thread]] = list(self._followers.values())
        working += self._tenders.values()
        self._followers, self._tenders = {}, {}
        for worker, _thread in working:
            worker.stop()
        deadline = time.monotonic() + 10.0
        for _worker, thread in working:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _finish_stage(self, job: JobPlace) -> None:
        """Adds the runs that follow from the first ones, has the job judged, and ends it."""
        if self._judgement.carry_on(job):
            return
        if job.cancel_requested:
            self._store.jobs.end_job(job.job_id, coordinator_pb2.JOB_STATE_CANCELLED)
            return
        failed = first_failure(self._store.jobs.job(job.job_id))
        if failed is None:
            self._store.jobs.end_job(job.job_id, coordinator_pb2.JOB_STATE_SUCCEEDED)
            return
        error = errors_pb2.Error(
            reason=failed.run.error.reason or errors_pb2.ERROR_REASON_CANCELLED,
            message=f"run {failed.run.run_id}: {failed.run.error.message or 'was cancelled'}",
            field=failed.run.error.field,
        )
        self._store.jobs.end_job(job.job_id, coordinator_pb2.JOB_STATE_FAILED, error)

    def _cancel(self, job: JobPlace) -> None:
        now = time.monotonic()
        for run in job.runs:
            if run.ended:
                self._cancelled.pop(run.run_id, None)
            elif not run.submissions and run.run_id not in self._followers:
                self._store.runs.end(run.run_id, run_pb2.RUN_STATE_CANCELLED)
            else:
                first, last = self._cancelled.get(run.run_id, (now, 0.0))
                if now - first > CANCEL_PATIENCE:
                    self._store.runs.end(run.run_id, run_pb2.RUN_STATE_CANCELLED)
                elif now - last >= CANCEL_SECONDS:
                    self._cancelled[run.run_id] = first, now
                    self._send_cancel(run)

    def _send_cancel(self, run: RunPlace) -> None:
        """Asks the service to end a run. Its answer comes as an event; without one it is asked again."""
        address = self._registry.address(run.service)
        if address is None:
            return
        stub = service_pb2_grpc.TrainingServiceStub(self._registry.channel(address))
        call = stub.CancelRun.future(service_pb2.CancelRunRequest(run_id=run.run_id), timeout=CANCEL_PATIENCE)
        call.add_done_callback(_note_refusal)


def _note_refusal(call: grpc.Future[Any]) -> None:
    error = call.exception()
    if error is not None:
        _LOG.info("a run could not be cancelled yet: %s", error)
