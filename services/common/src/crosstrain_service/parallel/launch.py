"""The process that starts the ranks of a run: ``python -m crosstrain_service.parallel.launch`` (by the front only).

It imports no framework. It holds the run's lock, forms the group where the run spans several services, starts the
rank processes of this host, and watches them: when one fails, dies or hangs, all end within seconds, and the end of
the run or the next attempt says which rank it was.
"""

import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

from crosstrain_protos.v1 import run_pb2

from .. import convert
from ..child import EXIT_RANK_LOST, EXIT_STORAGE_FULL, Begun, begin, parser, storage_guard
from ..errors import CrosstrainError
from ..events import EventLog
from ..pauses import Pauses
from ..rundir import write_file
from ..spool import SpoolWriter
from ..training import Parallel
from .channel import ADDRESS
from .endings import Endings
from .greeting import Door, knock_until
from .members import Greeting, Link, error_from_json, error_to_json, greet_all
from .plan import (
    LOOPBACK,
    Plan,
    free_ports,
    group_of,
    group_plan,
    local_plan,
    processes_of,
    ranks_from_json,
    shrunk,
    write_plan,
)
from .relay import Entrance, Exit, Relay
from .stall import NOBODY, Lookout, Reporter, Watchdog, heard
from .watch import GRACE_SECONDS, End, LocalRanks, first_cause

#: Time a member looks for its leader in one attempt, seconds.
FIND_LEADER_SECONDS = 60.0
#: Time a leader that may go on with fewer ranks waits for members, seconds.
SHRINK_PATIENCE_SECONDS = 15.0


class Launch:
    """One attempt of a run with several ranks."""

    def __init__(self, arguments: Any, begun: Begun) -> None:
        self._arguments = arguments
        self._begun = begun
        request = begun.stored.request
        self._engine = request.engine
        self._package = arguments.package
        self._group = group_of(begun.stored)
        message = request.spec.execution
        self._threads_given = bool(message.intra_threads)
        execution = convert.execution(message)
        self._parallel = self._kept_parallel(execution.parallel)
        self._execution = dataclasses.replace(execution, parallel=self._parallel)
        self._folder = tempfile.mkdtemp(prefix="crosstrain-")
        self._links: Dict[int, Link] = {}
        self._locals: Optional[LocalRanks] = None
        self._relay: Optional[Relay] = None
        self._member = self._group.member if self._group is not None else 0
        self._address_sent = False
        self._endings = Endings()

    # What earlier attempts have left: fewer ranks than asked for, the leader's port.

    def _kept_path(self) -> str:
        return os.path.join(self._begun.directory.path, "ranks.json")

    def _kept(self) -> Dict[str, Any]:
        try:
            with open(self._kept_path(), "rb") as file:
                return json.loads(file.read().decode("utf-8"))  # type: ignore[no-any-return]
        except (FileNotFoundError, ValueError):
            return {}

    def _keep(self, **values: Any) -> None:
        write_file(self._kept_path(), json.dumps(dict(self._kept(), **values)).encode("utf-8"))

    def _kept_parallel(self, asked: Parallel) -> Parallel:
        return dataclasses.replace(asked, data=int(self._kept().get("data", asked.data)))

    def run(self) -> int:
        """Starts, watches, and says how it ended; returns the exit status for the front."""
        signal.signal(signal.SIGUSR1, lambda number, frame: self._pass_on(number))
        try:
            if self._group is not None and self._group.member:
                return self._follow()
            return self._lead()
        finally:
            if self._locals is not None:
                self._locals.kill()
            if self._relay is not None:
                self._relay.close()
            for link in self._links.values():
                link.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _pass_on(self, number: int) -> None:
        if self._locals is not None:
            self._locals.signal(0, number)

    def _start(self, plan: Plan) -> LocalRanks:
        write_plan(plan, self._folder)
        child = ["-m", "crosstrain_service.child", "--run-dir", self._begun.directory.path,
                 "--artifacts", self._arguments.artifacts, "--package", self._package,
                 "--attempt", str(self._arguments.attempt), "--affinity", self._arguments.affinity]
        self._execution = dataclasses.replace(self._execution, parallel=plan.parallel)
        self._locals = LocalRanks(self._engine, self._package, self._execution, self._threads_given,
                                  plan.local(self._member), self._folder, self._begun.directory.work, child,
                                  self._begun.lock)
        return self._locals

    # The leader, or the only member.

    def _lead(self) -> int:
        plan = self._form() if self._group is not None else self._alone()
        local = self._start(plan)
        ends = self._watch(local, plan)
        cause = first_cause(ends)
        if cause is None:
            return self._finish(run_pb2.RUN_STATE_SUCCEEDED, None, 0)
        if cause.status == EXIT_STORAGE_FULL:
            self._tell_members({"outcome": "again"})
            return EXIT_STORAGE_FULL
        if cause.error is not None:
            error = cause.error
            if plan.ranks[-1].size > 1 and cause.rank >= 0:
                error = CrosstrainError(error.reason, "rank %d: %s" % (cause.rank, error.message), error.field)
            return self._finish(run_pb2.RUN_STATE_FAILED, error, 1)
        return self._lost(cause, plan)

    def _alone(self) -> Plan:
        processes = processes_of(self._package, self._engine, self._execution, self._parallel.ranks)
        plan = local_plan(processes, self._parallel)
        return plan.at(self._folder, (LOOPBACK, plan.ranks[0].ports[0]))

    def _form(self) -> Plan:
        group = self._group
        assert group is not None
        kept = int(self._kept().get("port", 0))
        door = self._door(group, kept)
        try:
            if door.port != kept:
                self._keep(port=door.port)
                self._emit(group_opened=run_pb2.GroupOpened(port=door.port))
            shrinks = self._parallel.on_rank_loss == "shrink" and self._arguments.attempt > 1
            found = greet_all(door, len(group.ranks), SHRINK_PATIENCE_SECONDS if shrinks else None)
        finally:
            door.close()
        self._links = {member: guest.link for member, guest in found.items()}
        parallel = self._parallel
        missing = [count for member, count in enumerate(group.ranks) if member and member not in found]
        if missing:
            smaller = shrunk(parallel, sum(missing))
            if smaller is None:
                raise CrosstrainError("RANK_LOST", "%d of %d members are left, fewer than the job allows"
                                      % (len(found) + 1, len(group.ranks)))
            parallel = smaller
        mine = processes_of(self._package, self._engine, self._execution, group.ranks[0])
        guests = [found[member] for member in sorted(found)]
        members = [Greeting(0, group.host, free_ports(mine, group.host), mine)]
        members += [guest.greeting for guest in guests]
        plan = group_plan([item.processes for item in members], [item.host for item in members],
                          [item.ports for item in members], parallel, group.secret)
        (port,) = free_ports(1, LOOPBACK)
        self._relay = relay = Exit(group.host, group.secret, port)
        for place, guest in enumerate(guests, 1):
            guest.link.send({"plan": [dataclasses.asdict(rank) for rank in plan.ranks], "place": place,
                             "parallel": dataclasses.asdict(parallel), "relay": relay.port})
        self._links = {place: guest.link for place, guest in enumerate(guests, 1)}
        return plan.at(self._folder, (LOOPBACK, port))

    @staticmethod
    def _door(group: Any, kept: int) -> Door:
        """Where members meet: at the same port as before, unless somebody else has it now."""
        try:
            return Door((group.host, kept), group.secret)
        except OSError:
            if not kept:
                raise
            return Door((group.host, 0), group.secret)

    def _lookout(self, plan: Plan, local: LocalRanks) -> Lookout:
        return Lookout(self._folder, [item.rank for item in plan.local(self._member)], local)

    def _watch(self, local: LocalRanks, plan: Plan) -> List[End]:
        """Waits until all ranks of all members have ended; a first failure ends the others."""
        remote: Dict[int, List[End]] = {}
        watchdog = Watchdog(self._folder, self._parallel.stall_seconds, len(plan.ranks), self._lookout(plan, local),
                            self._tell_members)
        failed = 0.0
        pauses = Pauses()
        while True:
            done = local.poll()
            self._tell_address()
            for place, link in self._links.items():
                for message in link.take():
                    watchdog.hear(message)
                    if "ends" in message:
                        remote[place] = [_end_from_json(item) for item in message["ends"]]
                if place not in remote and link.lost:
                    remote[place] = [End(-1 - place, 1, time.time(), None, link.lost)]
            watchdog.look()
            ends = local.ends + [end for found in remote.values() for end in found] + watchdog.ends
            if done and len(remote) == len(self._links):
                return ends
            if first_cause(ends) is not None:
                if not failed:
                    failed = time.monotonic()
                    pauses = Pauses()
                if time.monotonic() - failed > GRACE_SECONDS:
                    local.kill()
                    return ends
            self._endings.wait(pauses.next())

    def _tell_address(self) -> None:
        """Tells the members where rank 0 listens, as soon as it does."""
        path = os.path.join(self._folder, ADDRESS)
        if self._links and not self._address_sent and os.path.exists(path):
            with open(path, "rb") as file:
                self._tell_members({"channel": file.read().decode("utf-8")})
            self._address_sent = True

    def _tell_members(self, message: Dict[str, Any]) -> None:
        for link in self._links.values():
            link.send(message)

    def _lost(self, cause: End, plan: Plan) -> int:
        """A rank or a member is lost: the policy of the job says what follows."""
        place = -1 - cause.rank if cause.rank < 0 else plan.ranks[cause.rank].member
        name = "the ranks of member %d" % place if cause.rank < 0 else "rank %d" % cause.rank
        if cause.rank == NOBODY:
            name = "all ranks"
        if len(plan.local(0)) < len(plan.ranks) and cause.rank >= 0:
            name += " (member %d)" % place
        for notice in heard(self._folder):  # rank 0 could not take them any more
            self._emit(log=run_pb2.LogLine(severity="warning", text=notice))
        self._emit(rank_lost=run_pb2.RankLost(rank=max(-1, cause.rank), member=place, reason=cause.reason))
        policy = self._parallel.on_rank_loss
        text = "%s: %s" % (name, cause.reason)
        if policy == "fail":
            return self._finish(run_pb2.RUN_STATE_FAILED, CrosstrainError("RANK_LOST", text), 1)
        if policy == "shrink" and self._group is None and cause.rank != NOBODY:
            smaller = shrunk(plan.parallel, 1)
            if smaller is None:
                text += "; %d data ranks are the fewest the job allows" % self._parallel.min_data
                return self._finish(run_pb2.RUN_STATE_FAILED, CrosstrainError("RANK_LOST", text), 1)
            self._keep(data=smaller.data)
        self._tell_members({"outcome": "again"})
        return EXIT_RANK_LOST

    def _finish(self, state: int, error: Optional[CrosstrainError], status: int) -> int:
        """Notes the end of the run once no rank is left that could write."""
        if self._locals is not None:
            self._locals.kill()
        succeeded = state == run_pb2.RUN_STATE_SUCCEEDED
        self._tell_members({"outcome": "succeeded" if succeeded else "failed", "error": error_to_json(error)})
        if error is not None and error.reason == "STORAGE_FULL":
            self._begun.directory.free_reserve()
        self._note(state, error)
        return status

    def _log(self) -> EventLog:
        directory = self._begun.directory
        return EventLog(SpoolWriter(directory.spool), self._begun.stored.request.run_id, self._arguments.attempt)

    def _note(self, state: int, error: Optional[CrosstrainError] = None) -> None:
        log = self._log()
        log.state(state, error)
        log.spool.close()

    def _emit(self, **event: Any) -> None:
        log = self._log()
        log.emit(**event)
        log.spool.close()

    # Any other member.

    def _follow(self) -> int:
        group = self._group
        assert group is not None
        self._note(run_pb2.RUN_STATE_RUNNING)
        self._emit(attempt_started=run_pb2.AttemptStarted(ranks=sum(group.ranks)))
        connection = knock_until((group.leader_host, group.leader_port), group.secret,
                                 time.time() + FIND_LEADER_SECONDS)
        if connection is None:
            raise CrosstrainError("RANK_LOST", "the leader of the group was not found within %d seconds"
                                  % FIND_LEADER_SECONDS)
        link = self._links[0] = Link(connection)
        processes = processes_of(self._package, self._engine, self._execution, group.ranks[group.member])
        link.send(Greeting(group.member, group.host, free_ports(processes, group.host), processes).message())
        plan = self._await_plan(link, group)
        if plan is None:
            return EXIT_RANK_LOST
        local = self._start(plan)
        return self._watch_leader(link, local, Reporter(self._lookout(plan, local), link.send))

    def _await_plan(self, link: Link, group: Any) -> Optional[Plan]:
        """The leader's plan for the processes here, however long the other members take; None if it is lost."""
        while not link.lost:
            message = link.await_message(1.0)
            if message is not None and "plan" in message:
                self._member = int(message["place"])
                ranks = [ranks_from_json(item) for item in message["plan"]]
                relay = Entrance((group.leader_host, int(message["relay"])), group.secret)
                self._relay = relay
                plan = Plan(ranks, Parallel(**message["parallel"]), group.secret)
                return plan.at(self._folder, (LOOPBACK, relay.port))
        return None

    def _watch_leader(self, link: Link, local: LocalRanks, reporter: Reporter) -> int:
        told = False
        failed = 0.0
        pauses = Pauses()
        while True:
            done = local.poll()
            reporter.look()
            for message in link.take():
                reporter.hear(message)
                if "channel" in message:
                    write_file(os.path.join(self._folder, ADDRESS), message["channel"].encode("utf-8"))
                if "outcome" in message:
                    return self._outcome(message, local)
            if link.lost:
                local.kill()
                return EXIT_RANK_LOST
            if not told and not failed and local.failed:
                failed = time.monotonic()
                pauses = Pauses()
            if not told and (done or (failed and time.monotonic() - failed > GRACE_SECONDS)):
                link.send({"ends": [_end_to_json(end) for end in local.ends]})
                told = True
                if failed:
                    local.kill()
            self._endings.wait(pauses.next())

    def _outcome(self, message: Dict[str, Any], local: LocalRanks) -> int:
        local.kill()
        if message["outcome"] == "again":
            return EXIT_RANK_LOST
        succeeded = message["outcome"] == "succeeded"
        self._note(run_pb2.RUN_STATE_SUCCEEDED if succeeded else run_pb2.RUN_STATE_FAILED,
                   error_from_json(message["error"]))
        return 0

    def fail(self, error: CrosstrainError) -> int:
        """Notes that the attempt could not be made."""
        return self._finish(run_pb2.RUN_STATE_FAILED, error, 1)


def _end_to_json(end: End) -> List[Any]:
    return [end.rank, end.status, end.time, error_to_json(end.error), end.seen]


def _end_from_json(value: List[Any]) -> End:
    return End(value[0], value[1], value[2], error_from_json(value[3]), value[4])


def main() -> int:
    """Executes one attempt of a run."""
    arguments = parser(__doc__ or "").parse_args()
    begun = begin(arguments)
    if isinstance(begun, int):
        return begun
    launch = Launch(arguments, begun)

    def attempt() -> int:
        try:
            return launch.run()
        except CrosstrainError as error:
            return launch.fail(error)

    return storage_guard(attempt)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
