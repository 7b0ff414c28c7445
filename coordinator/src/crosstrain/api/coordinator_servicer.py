"""CoordinatorService: the boundary, with no logic of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from crosstrain.jobs import JobCreator, compare_runs
from crosstrain.judging.pool import Pool
from crosstrain.registry import Registry, resolve
from crosstrain.store import Store
from crosstrain_protos.v1 import coordinator_pb2, coordinator_pb2_grpc
from crosstrain_service.errors import CrosstrainError, invalid_field

#: Streams served at the same time; each takes a thread.
MAX_WATCHERS = 64
#: How often to look for events that another process of the same store wrote, seconds.
POLL_SECONDS = 1.0
MAX_PAGE = 1000


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Errors are raised; the interceptor turns them into statuses."""

    def __init__(self, store: Store, registry: Registry, creator: JobCreator, comparing: Pool) -> None:
        self._store = store
        self._registry = registry
        self._creator = creator
        self._comparing = comparing
        self._watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        self._counting = threading.Lock()
        #: Streams of WatchJob that are open.
        self.watching = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends all streams; their clients come again with their cursors."""
        self._stopping.set()
        self._store.jobs.events_changed.notify_all()

    def CreateJob(
        self, request: coordinator_pb2.CreateJobRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.CreateJobResponse:
        """Creates a job, or finds the one created by the same request."""
        return coordinator_pb2.CreateJobResponse(job=self._creator.create(request))

    def GetJob(
        self, request: coordinator_pb2.GetJobRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.GetJobResponse:
        """A job as it stands."""
        return coordinator_pb2.GetJobResponse(job=self._store.jobs.job(request.job_id))

    def ListJobs(
        self, request: coordinator_pb2.ListJobsRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.ListJobsResponse:
        """Jobs, newest first, as many as fit into one message."""
        size = request.page_size or 50
        if not 1 <= size <= MAX_PAGE:
            raise invalid_field("page_size", f"{size} is not within 1 to {MAX_PAGE}")
        if request.page_token and not (request.page_token.isdecimal() and len(request.page_token) < 19):
            raise invalid_field("page_token", f"{request.page_token[:40]!r} is not from an earlier answer")
        jobs, token = self._store.jobs.list_jobs(size, int(request.page_token) if request.page_token else None)
        for job in jobs:
            # Documents may take up to 1 MiB each; GetJob gives them.
            job.ClearField("document")
        return coordinator_pb2.ListJobsResponse(jobs=jobs, next_page_token="" if token is None else str(token))

    def WatchJob(
        self, request: coordinator_pb2.WatchJobRequest, context: grpc.ServicerContext
    ) -> Iterator[coordinator_pb2.WatchJobResponse]:
        """Events after a sequence number: first the stored ones, then new ones as they come."""
        if request.after_sequence < 0:
            raise invalid_field("after_sequence", f"{request.after_sequence} is negative")
        if not self._watchers.acquire(blocking=False):
            raise CrosstrainError("LIMIT_EXCEEDED", f"{MAX_WATCHERS} streams are open already; try again later")
        self._count(1)
        try:
            after = request.after_sequence
            while context.is_active() and not self._stopping.is_set():
                seen = self._store.jobs.events_changed.count(request.job_id)
                events, complete = self._store.jobs.events(request.job_id, after)
                if events:
                    yield coordinator_pb2.WatchJobResponse(events=events)
                    after = events[-1].sequence
                if complete:
                    return
                if not events:
                    self._store.jobs.events_changed.wait(seen, POLL_SECONDS, request.job_id)
        finally:
            self._count(-1)
            self._watchers.release()
        if self._stopping.is_set():
            raise CrosstrainError("SERVICE_UNREACHABLE", "the coordinator is stopping; watch again")

    def _count(self, change: int) -> None:
        with self._counting:
            self.watching += change

    def CancelJob(
        self, request: coordinator_pb2.CancelJobRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.CancelJobResponse:
        """Begins to cancel a job."""
        self._store.jobs.request_cancel(request.job_id)
        return coordinator_pb2.CancelJobResponse(job=self._store.jobs.job(request.job_id))

    def CompareRuns(
        self, request: coordinator_pb2.CompareRunsRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.CompareRunsResponse:
        """Compares two finished runs."""
        return compare_runs(self._comparing, request.run_id_a, request.run_id_b)

    def ListEngines(
        self, request: coordinator_pb2.ListEnginesRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.ListEnginesResponse:
        """All engines of all registered services."""
        active: dict[str, int] = {}
        for job in self._store.jobs.unfinished():
            for run in job.runs:
                if not run.ended:
                    active[run.service] = active.get(run.service, 0) + 1
        offers = self._registry.offers()
        usable = {offer.engine.name for offer in offers if not offer.engine.unavailable_reason}
        meant = {name: resolve(offers, name) for name in usable}
        return coordinator_pb2.ListEnginesResponse(
            engines=[
                coordinator_pb2.RegisteredEngine(
                    description=offer.engine,
                    service=offer.service,
                    healthy=offer.healthy,
                    preferred=offer == meant.get(offer.engine.name),
                    active_runs=active.get(offer.service, 0),
                    devices=offer.devices,
                )
                for offer in offers
            ]
        )

    def RegisterService(
        self, request: coordinator_pb2.RegisterServiceRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.RegisterServiceResponse:
        """Registers a service or renews its registration."""
        lease = self._registry.register(request.service, request.address, request.preferred)
        return coordinator_pb2.RegisterServiceResponse(lease_seconds=lease)
