"""Creates jobs: once per job id, however often and from however many clients it is asked for."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from crosstrain.store import Store
from crosstrain_protos.v1 import coordinator_pb2
from crosstrain_service.errors import CrosstrainError

from .naming import check_job_id, new_job_id
from .planning import Planner

#: Unfinished jobs beyond which new ones are refused.
MAX_UNFINISHED = 1000


class JobCreator:
    """Plans and stores jobs."""

    def __init__(self, store: Store, planner: Planner) -> None:
        self._store = store
        self._planner = planner
        self._guard = threading.Lock()
        self._busy: dict[str, tuple[threading.Lock, int]] = {}

    def create(self, request: coordinator_pb2.CreateJobRequest) -> coordinator_pb2.Job:
        """The job of the request, new or as it was created by an equal request before.

        Raises:
            CrosstrainError: ``ID_REUSED`` if the id belongs to another request, ``LIMIT_EXCEEDED`` if
                too many jobs wait, and whatever :meth:`Planner.plan` finds.
        """
        job_id = check_job_id(request.job_id) if request.job_id else new_job_id()
        digest = body_digest(request)
        # Equal requests at the same time wait for the first one instead of all planning the job.
        with self._alone(job_id):
            if not self._exists(job_id, digest):
                if len(self._store.jobs.unfinished()) >= MAX_UNFINISHED:
                    raise CrosstrainError("LIMIT_EXCEEDED", f"{MAX_UNFINISHED} jobs wait already; try again later")
                if not self._store.jobs.insert(self._planner.plan(job_id, request, digest)):
                    # Another process of the same store was faster.
                    self._exists(job_id, digest)
        return self._store.jobs.job(job_id)

    def _exists(self, job_id: str, digest: str) -> bool:
        known = self._store.jobs.body_digest(job_id)
        if known is not None and known != digest:
            message = f"there is a job {job_id!r} already, and it was created from another request"
            raise CrosstrainError("ID_REUSED", message, "job_id")
        return known is not None

    @contextmanager
    def _alone(self, job_id: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._busy.get(job_id, (threading.Lock(), 0))
            self._busy[job_id] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._busy[job_id]
                if users == 1:
                    del self._busy[job_id]
                else:
                    self._busy[job_id] = lock, users - 1


def body_digest(request: coordinator_pb2.CreateJobRequest) -> str:
    """SHA-256 of a request without its job id."""
    body = coordinator_pb2.CreateJobRequest()
    body.CopyFrom(request)
    body.ClearField("job_id")
    return hashlib.sha256(body.SerializeToString(deterministic=True)).hexdigest()
