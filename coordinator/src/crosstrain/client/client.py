"""A client of the coordinator."""

from __future__ import annotations

import functools
import io
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc

from crosstrain.rpc import from_rpc, transient, unanswered
from crosstrain_protos.v1 import (
    artifact_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    data_pb2,
    run_pb2,
)

from . import files

#: Largest message of the API, bytes.
MESSAGE_LIMIT = 4 << 20
#: A watched stream is opened anew after this time, so that a dead connection is noticed, seconds.
_WATCH_SECONDS = 120.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
#: A comparison is made while the call waits, seconds.
_COMPARE_SECONDS = 300.0
T = TypeVar("T")


class Client:
    """Talks to one coordinator. Every method raises :class:`CrosstrainError` with a reason of the catalogue.

    Args:
        address: host:port.
        timeout: seconds for one call that is not a stream.
        retry: seconds for which a call is repeated while nobody answers, as during a restart, at most
            ``timeout``; every call may be repeated without harm.
        patience: seconds without a connection after which a watched stream is given up.
    """

    def __init__(self, address: str, timeout: float = 60.0, retry: float = 10.0, patience: float = 300.0) -> None:
        self._timeout = timeout
        self._retry = min(retry, timeout)
        self._patience = patience
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", MESSAGE_LIMIT),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ],
        )
        self._stub = coordinator_pb2_grpc.CoordinatorServiceStub(self._channel)
        self._artifacts = artifact_pb2_grpc.ArtifactServiceStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _called(self, call: Callable[[], T]) -> T:
        """The answer to a call, which is repeated for a while if nobody is there to answer it."""
        give_up = time.monotonic() + self._retry
        wait = _FIRST_WAIT
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if not unanswered(error) or time.monotonic() > give_up:
                    raise from_rpc(error) from error
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    def create_job(
        self,
        document: str,
        train: data_pb2.Dataset | None = None,
        test: data_pb2.Dataset | None = None,
        job_id: str = "",
        timeout: float = 3600.0,
        remarks: Sequence[run_pb2.LogLine] = (),
    ) -> coordinator_pb2.Job:
        """Creates a job. With the same ``job_id`` and body it returns the job created before.

        ``remarks`` are kept with the job: what the import of its data found here. Takes as long as checking
        (and, for files of the coordinator, importing) the data takes.
        """
        # An id makes the call repeatable.
        job_id = job_id or f"job-{secrets.token_hex(6)}"
        request = coordinator_pb2.CreateJobRequest(
            job_id=job_id, document=document, train=train, test=test, remarks=remarks
        )
        return self._called(lambda: self._stub.CreateJob(request, timeout=timeout)).job

    def get_job(self, job_id: str) -> coordinator_pb2.Job:
        """A job as it stands."""
        request = coordinator_pb2.GetJobRequest(job_id=job_id)
        return self._called(lambda: self._stub.GetJob(request, timeout=self._timeout)).job

    def list_jobs(self) -> Iterator[coordinator_pb2.Job]:
        """All jobs, newest first, without their runs and documents."""
        token = ""
        while True:
            request = coordinator_pb2.ListJobsRequest(page_token=token)
            response = self._called(functools.partial(self._stub.ListJobs, request, timeout=self._timeout))
            yield from response.jobs
            token = response.next_page_token
            if not token:
                return

    def watch_job(self, job_id: str, after: int = 0) -> Iterator[coordinator_pb2.JobEvent]:
        """The events of a job after a sequence number, each once, until the job has ended.

        Breaks of the connection are mended by watching again from the last event seen.
        """
        wait, lost = _FIRST_WAIT, time.monotonic()
        while True:
            request = coordinator_pb2.WatchJobRequest(job_id=job_id, after_sequence=after)
            stream: Any = self._stub.WatchJob(request, timeout=_WATCH_SECONDS)
            try:
                for response in stream:
                    for event in response.events:
                        if event.sequence > after:
                            after = event.sequence
                            yield event
                    wait, lost = _FIRST_WAIT, time.monotonic()
                return
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    lost = time.monotonic()
                    continue
                failure = from_rpc(error)
                if not transient(failure) or time.monotonic() - lost > self._patience:
                    raise failure from error
            finally:
                stream.cancel()
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    def cancel_job(self, job_id: str) -> coordinator_pb2.Job:
        """Begins to cancel a job; its last event tells when it has ended."""
        request = coordinator_pb2.CancelJobRequest(job_id=job_id)
        return self._called(lambda: self._stub.CancelJob(request, timeout=self._timeout)).job

    def compare_runs(self, run_id_a: str, run_id_b: str) -> coordinator_pb2.CompareRunsResponse:
        """The differences of two finished runs, and the verdict over them."""
        request = coordinator_pb2.CompareRunsRequest(run_id_a=run_id_a, run_id_b=run_id_b)
        return self._called(lambda: self._stub.CompareRuns(request, timeout=_COMPARE_SECONDS))

    def list_engines(self) -> list[coordinator_pb2.RegisteredEngine]:
        """The engines of all registered services."""
        request = coordinator_pb2.ListEnginesRequest()
        return list(self._called(lambda: self._stub.ListEngines(request, timeout=self._timeout)).engines)

    def register_service(self, service: str, address: str, preferred: bool = False) -> int:
        """Registers a service and returns the lease in seconds."""
        request = coordinator_pb2.RegisterServiceRequest(service=service, address=address, preferred=preferred)
        return self._called(lambda: self._stub.RegisterService(request, timeout=self._timeout)).lease_seconds

    def upload(self, source: bytes | Path | str) -> str:
        """Stores bytes or a file and returns its digest; what is stored already is not sent."""
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
            digest, size = files.digest_of(file)
            self._called(lambda: files.upload(self._artifacts, digest, size, file))
            return digest

    def download(self, digest: str, path: Path | str) -> None:
        """Writes an artifact to a file, which appears only when it is whole and checked."""
        self._called(lambda: files.save(files.download(self._artifacts, digest), Path(path)))

    def read(self, digest: str) -> bytes:
        """A small artifact, checked."""
        return self._called(lambda: b"".join(files.download(self._artifacts, digest)))
