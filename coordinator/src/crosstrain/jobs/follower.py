"""Takes one run from its submission to its end, through breaks of connections and of processes."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

import grpc

from crosstrain.artifacts import ArtifactStore, fetch
from crosstrain.labels import rank_count
from crosstrain.metrics.recording import record_fanout
from crosstrain.registry import MESSAGE_LIMIT, Registry
from crosstrain.rpc import from_rpc, lost_run, transient
from crosstrain.store import RunRow, SequenceGap, Store
from crosstrain_protos.v1 import artifact_pb2_grpc, errors_pb2, run_pb2, service_pb2, service_pb2_grpc
from crosstrain_service.errors import CrosstrainError

from .attendant import Attendant
from .groups import request_of_member
from .reaching import channel_of, confirm, start_run
from .requests import Request, artifacts_of_event, parse_request

_LOG = logging.getLogger("crosstrain.jobs")
#: A watched stream is opened anew after this time, so that a dead connection is noticed, seconds.
WATCH_SECONDS = 60.0
#: How often a run is sent to a service that keeps losing it.
MAX_SUBMISSIONS = 4
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
#: Room for what the coordinator adds to an event.
_ENVELOPE = 4096


class RunFollower(Attendant):
    """Executes one run on its service.

    A run that was submitted is watched from the last stored event on, and submitted again only if the service says
    that it does not know it. An event is stored after the artifacts it names, so whoever sees the event can read them.

    Args:
        patience: a run fails after this many seconds without any answer from its service.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, registry: Registry, run_id: str, patience: float
    ) -> None:
        super().__init__(store, artifacts, registry, run_id, patience)
        self._call: Any = None
        self._answered = time.monotonic()
        self._wait = _FIRST_WAIT

    def stop(self) -> None:
        """Makes :meth:`follow` return soon, wherever the run stands."""
        super().stop()
        call = self._call
        if call is not None:
            call.cancel()

    def follow(self) -> None:
        """Returns when the run has ended or :meth:`stop` was called."""
        while not self._stopping.is_set():
            try:
                if self._advance(self._store.jobs.run(self._run_id)):
                    return
                continue
            except grpc.RpcError as error:
                failure = from_rpc(error)
                # A service that lost an artifact is sent it again; one missing here stays missing.
                hopeful = transient(failure) or failure.reason in ("ARTIFACT_NOT_FOUND", "INTERNAL", "STORAGE_FULL")
            except SequenceGap as error:
                failure = CrosstrainError("SERVICE_UNREACHABLE", str(error))
                hopeful = True
            except CrosstrainError as error:
                failure = error
                hopeful = transient(failure) or failure.reason in ("ENGINE_NOT_FOUND", "STORAGE_FULL")
            except Exception as error:  # a defect must end the run, not leave it hanging
                _LOG.exception("defect while following run %s", self._run_id)
                failure = CrosstrainError("INTERNAL", f"a defect in the coordinator ({type(error).__name__})")
                hopeful = True
            if self._stopping.is_set():
                return
            self._failed(failure, hopeful)

    def _advance(self, row: RunRow) -> bool:
        """One attempt to bring the run further; whether it has ended."""
        if row.ended:
            return True
        if row.cancel_requested and not row.submissions:
            self._store.runs.end(row.run_id, run_pb2.RUN_STATE_CANCELLED)
            return True
        if row.submissions:
            try:
                return self._watch(row)
            except grpc.RpcError as error:
                if not lost_run(from_rpc(error)):
                    raise
            confirm(self._channel(row), row.service, row.engine, row.engine_version)
            if row.cancel_requested:
                self._store.runs.end(row.run_id, run_pb2.RUN_STATE_CANCELLED)
                return True
        self._submit(row)
        return False

    def _submit(self, row: RunRow) -> None:
        if row.submissions >= MAX_SUBMISSIONS:
            raise CrosstrainError("CHILD_DIED", f"the service {row.service} lost the run {row.submissions} times")
        begun = time.monotonic()
        row = self._placed(row)
        channel = self._channel(row)
        request = parse_request(row.kind, row.request)
        self._supply(channel, row, row.service, request)
        for member in row.members[1:]:
            self._supply_member(row, member.service, request)
        if self._stopping.is_set() or self._store.jobs.run(self._run_id).cancel_requested:
            return
        if row.members:
            group = self._store.groups.open(row.run_id)
            request = request_of_member(request, group, group.members[0])
        # Noted before it is sent: whoever finds the note asks the service first.
        self._store.runs.begin_submission(row.run_id)
        try:
            run = start_run(channel, request)
        except grpc.RpcError as error:
            if from_rpc(error).reason == "LIMIT_EXCEEDED":
                # Refused for now, not lost.
                self._store.runs.withdraw_submission(row.run_id)
            raise
        self._store.runs.accepted(row.run_id, run)
        record_fanout(row.service, time.monotonic() - begun)
        if row.members:
            self._store.jobs.work_changed.notify()
        self._progressed()

    def _supply_member(self, row: RunRow, service: str, request: Request) -> None:
        """Supplies one that has a part of the ranks; errors name it."""
        try:
            self._supply(channel_of(self._registry, service), row, service, request)
        except grpc.RpcError as error:
            failure = from_rpc(error)
            message = f"service {service}, which is to have a part of the ranks: {failure.message}"
            raise CrosstrainError(failure.reason, message, failure.field) from error

    def _watch(self, row: RunRow) -> bool:
        channel = self._channel(row)
        request = service_pb2.WatchRunRequest(run_id=row.run_id, after_sequence=row.cursor)
        stream: Any = service_pb2_grpc.TrainingServiceStub(channel).WatchRun(request, timeout=WATCH_SECONDS)
        self._call = stream
        if self._stopping.is_set():
            stream.cancel()
        try:
            for response in stream:
                if self._store_events(channel, row, list(response.events)):
                    return True
                self._progressed()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                self._progressed()
                return False
            raise
        finally:
            self._call = None
            stream.cancel()
        raise CrosstrainError("SERVICE_UNREACHABLE", "the service ended the stream before the run had ended")

    def _store_events(self, channel: grpc.Channel, row: RunRow, events: Sequence[run_pb2.RunEvent]) -> bool:
        stub = artifact_pb2_grpc.ArtifactServiceStub(channel)
        for event in events:
            if event.ByteSize() > MESSAGE_LIMIT - _ENVELOPE:
                raise CrosstrainError("ENGINE_FAILED", f"event {event.sequence} of the run is over the message limit")
            for digest in artifacts_of_event(event):
                fetch(self._artifacts, stub, digest)
        return self._store.runs.append(row.run_id, events)

    def _placed(self, row: RunRow) -> RunRow:
        """The run, moved if its service no longer has the engine in the version it was planned for."""
        if row.members or self._registry.find(row.service, row.engine, row.engine_version) is not None:
            return row
        offer = self._registry.resolve(f"{row.engine}@{row.engine_version}")
        device = parse_request(row.kind, row.request).spec.execution.device
        kind = {1: "cpu", 2: "cuda"}.get(device.kind, "")
        key = self._registry.device_key(offer, kind, device.index, rank_count(row.record))
        self._store.runs.place(row.run_id, offer.service, key)
        return self._store.jobs.run(row.run_id)

    def _channel(self, row: RunRow) -> grpc.Channel:
        return channel_of(self._registry, row.service)

    def _progressed(self) -> None:
        self._answered = time.monotonic()
        self._wait = _FIRST_WAIT

    def _failed(self, failure: CrosstrainError, hopeful: bool) -> None:
        """Waits before the next attempt, or ends the run if there is no use in one."""
        silent = time.monotonic() - self._answered
        if not hopeful or silent > self._patience:
            self._end(failure.to_proto())
            return
        _LOG.info("run %s: %s: %s", self._run_id, failure.reason, failure.message)
        self._stopping.wait(self._wait * random.uniform(0.5, 1.0))
        self._wait = min(2 * self._wait, _LONGEST_WAIT)

    def _end(self, error: errors_pb2.Error) -> None:
        try:
            row = self._store.jobs.run(self._run_id)
            if row.submissions:
                self._release(row)
            self._store.runs.end(self._run_id, run_pb2.RUN_STATE_FAILED, error)
        except CrosstrainError:
            # The store does not answer: the next round of follow() comes here again.
            self._stopping.wait(_LONGEST_WAIT)

    def _release(self, row: RunRow) -> None:
        """Ends a run that is given up, if its service can be reached, so that it frees its device."""
        stub = service_pb2_grpc.TrainingServiceStub(self._channel(row))
        with contextlib.suppress(grpc.RpcError):
            stub.CancelRun(service_pb2.CancelRunRequest(run_id=row.run_id), timeout=5.0)
