"""Takes care of the members of a group: started when the leader awaits them, again when lost, freed at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from crosstrain.artifacts import ArtifactStore
from crosstrain.registry import Registry
from crosstrain.rpc import from_rpc, lost_run, transient
from crosstrain.rpc.errors import from_proto
from crosstrain.store import TERMINAL_RUN_STATES, Group, Member, RunRow, Store
from crosstrain_protos.v1 import run_pb2, service_pb2, service_pb2_grpc, training_pb2
from crosstrain_service.errors import CrosstrainError

from .attendant import Attendant
from .groups import request_of_member, run_id_of
from .reaching import channel_of, describe, start_run
from .requests import parse_request

_LOG = logging.getLogger("crosstrain.jobs")
#: Runs of a member in a row that end while its leader waits, before the whole run fails.
MAX_TRIES = 3
#: What a member noted of the end of its run may be that of the leader's, which is given this time to be known, seconds.
GRACE_SECONDS = 3.0
#: Members that are called at the same time.
_CALLS = 8
_RPC_SECONDS = 5.0
#: A service answers a cancellation once its processes are gone.
_CANCEL_SECONDS = 20.0
_QUICK, _CALM, _SLOW = 0.3, 1.0, 5.0
#: Beside services that are away: those that are being replaced, or lack something for a while.
_HOPEFUL = ("ENGINE_NOT_FOUND", "STORAGE_FULL", "ARTIFACT_NOT_FOUND", "INTERNAL")

Action = Callable[[RunRow, Group, Member], float]


def _shrinks(row: RunRow) -> bool:
    """Whether the run goes on with the members that are left."""
    return row.record.parallel.on_rank_loss == training_pb2.RANK_LOSS_SHRINK


class GroupTender(Attendant):
    """The members of one run.

    A member whose service has lost its run is sent it again, with the same id. A member whose run has failed, since
    it found no leader, gets another one, except where the run may go on without it.

    Args:
        patience: a run fails if a member's service gives no answer for so many seconds before all have met; later
            it is waited for.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, registry: Registry, run_id: str, patience: float
    ) -> None:
        super().__init__(store, artifacts, registry, run_id, patience)
        self._silent: dict[int, float] = {}
        self._ended: dict[str, float] = {}

    def tend(self) -> None:
        """Returns when nothing of the group is left at any service, or :meth:`stop` was called."""
        with ThreadPoolExecutor(_CALLS, "member") as pool:
            while not self._stopping.is_set():
                pause = _SLOW
                try:
                    pause = self._round(pool)
                except CrosstrainError as error:
                    _LOG.warning("group of %s: %s", self._run_id, error.message)
                except Exception:  # the next round tries again
                    _LOG.exception("defect while tending the group of %s", self._run_id)
                if not pause:
                    return
                self._stopping.wait(pause)

    def _round(self, pool: ThreadPoolExecutor) -> float:
        """Looks at every member once; seconds until the next time, 0 if nothing is left to do."""
        row = self._store.jobs.run(self._run_id)
        group = self._store.groups.get(self._run_id)
        if group is None:
            return 0.0
        left = [member for member in group.members if member.start and not member.freed]
        if row.ended:
            pauses = list(pool.map(lambda member: self._try(row, group, member, self._free), left))
            return max(pauses, default=0.0)
        if row.cancel_requested or not group.port:
            return _QUICK
        others = [member for member in group.members[1:] if not member.freed]
        leader = pool.submit(self._heed_leader, row)
        pause = max(pool.map(lambda member: self._try(row, group, member, self._keep), others), default=_CALM)
        leader.result()
        return pause

    def _try(self, row: RunRow, group: Group, member: Member, action: Action) -> float:
        """Does something for a member; seconds until the next time."""
        try:
            pause = action(row, group, member)
        except (grpc.RpcError, CrosstrainError) as error:
            failure = from_rpc(error) if isinstance(error, grpc.RpcError) else error
            return self._failed(row, member, failure)
        self._silent.pop(member.member, None)
        return pause

    # While the run is at work.

    def _heed_leader(self, row: RunRow) -> None:
        """Notes with the run that its leading service does not answer: an event would only come from there."""
        try:
            stub = service_pb2_grpc.TrainingServiceStub(channel_of(self._registry, row.service))
            stub.GetRun(service_pb2.GetRunRequest(run_id=row.run_id), timeout=_RPC_SECONDS)
            notice = ""
        except (grpc.RpcError, CrosstrainError) as error:
            failure = from_rpc(error) if isinstance(error, grpc.RpcError) else error
            silent = transient(failure)
            notice = f"service {row.service}, which leads the run, does not answer; it is awaited" if silent else ""
        if notice != row.record.notice:
            self._store.runs.note(row.run_id, notice)

    def _keep(self, row: RunRow, group: Group, member: Member) -> float:
        """Sees to it that a member is at work."""
        if (member.generation, member.port) != (group.generation, group.port):
            if member.start and not self._gone(group, member):
                return _QUICK
            self._send(row, group, self._store.groups.begin_member(group, member, 0, row.cursor))
            return _CALM
        stub = service_pb2_grpc.TrainingServiceStub(channel_of(self._registry, member.service))
        try:
            run = stub.GetRun(service_pb2.GetRunRequest(run_id=run_id_of(group, member)), timeout=_RPC_SECONDS).run
        except grpc.RpcError as error:
            if not lost_run(from_rpc(error)):
                raise
            self._send(row, group, member)
            return _CALM
        if run.state in (run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED):
            self._again(row, group, member, run)
        return _CALM

    def _send(self, row: RunRow, group: Group, member: Member) -> None:
        channel = channel_of(self._registry, member.service)
        request = request_of_member(parse_request(row.kind, row.request), group, member)
        self._supply(channel, row, member.service, request)
        if not self._stopping.is_set():
            start_run(channel, request)

    def _again(self, row: RunRow, group: Group, member: Member, run: run_pb2.Run) -> None:
        """Another run for a member whose last one has ended before the leader's, or the end of all."""
        now = time.monotonic()
        if now - self._ended.setdefault(run.run_id, now) < GRACE_SECONDS:
            return
        if _shrinks(row) and row.record.run.HasField("start_time"):
            self._store.groups.freed(group.run_id, member.member)
            return
        # A leader that is away itself is waited for elsewhere.
        leader = service_pb2_grpc.TrainingServiceStub(channel_of(self._registry, row.service))
        state = leader.GetRun(service_pb2.GetRunRequest(run_id=row.run_id), timeout=_RPC_SECONDS).run.state
        if state in TERMINAL_RUN_STATES:
            return
        tries = member.tries + 1 if row.cursor <= member.seen else 1
        if tries >= MAX_TRIES:
            cancelled = CrosstrainError("RANK_LOST", "its run was cancelled at its service")
            raise cancelled if run.state == run_pb2.RUN_STATE_CANCELLED else from_proto(run.error)
        self._send(row, group, self._store.groups.begin_member(group, member, tries, row.cursor))

    def _failed(self, row: RunRow, member: Member, failure: CrosstrainError) -> float:
        """Waits, or ends the whole run if there is no use in that; seconds until the next time."""
        now = time.monotonic()
        waited = now - self._silent.setdefault(member.member, now)
        hopeful = transient(failure) or failure.reason in _HOPEFUL
        met = row.record.run.HasField("start_time")
        if row.ended or (hopeful and (met or waited <= self._patience)):
            if not waited:
                _LOG.info("member %d of run %s (service %s): %s", member.member, self._run_id, member.service, failure)
            return _CALM if waited < _SLOW else _SLOW
        message = f"member {member.member} of the group (service {member.service}): {failure.message}"
        error = CrosstrainError(failure.reason, message, failure.field)
        self._store.runs.end(self._run_id, run_pb2.RUN_STATE_FAILED, error.to_proto())
        return _QUICK

    # After its end.

    def _free(self, row: RunRow, group: Group, member: Member) -> float:
        """Ends what is left of a member; a service that is away is asked when it is back."""
        if not self._registry.live(member.service):
            return _SLOW
        if not self._gone(group, member):
            return _QUICK
        self._store.groups.freed(group.run_id, member.member)
        return 0.0

    def _gone(self, group: Group, member: Member) -> bool:
        """Ends a member's present run; whether its service says that it has ended, or that there is none."""
        channel = channel_of(self._registry, member.service)
        describe(channel, member.service, _RPC_SECONDS)
        stub = service_pb2_grpc.TrainingServiceStub(channel)
        request = service_pb2.CancelRunRequest(run_id=run_id_of(group, member))
        try:
            return stub.CancelRun(request, timeout=_CANCEL_SECONDS).run.state in TERMINAL_RUN_STATES
        except grpc.RpcError as error:
            if lost_run(from_rpc(error)):
                return True
            raise
