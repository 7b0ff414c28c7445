"""The rank processes of this host: starting them, seeing them end or hang, ending them."""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..errors import CrosstrainError
from ..rundir import start_time, write_file
from ..training import Execution, Ranks
from . import mpi
from .plan import of_process

#: A rank that is stopped (SIGSTOP) for so long counts as lost, seconds.
STOPPED_SECONDS = 3.0
#: Time the others get to end after one has, so that the first cause can be told from its consequences, seconds.
GRACE_SECONDS = 1.0
_TERMINATE_SECONDS = 1.0
#: An end is seen so much later than it happens, seconds.
_SEEN_SECONDS = 0.05
#: Time between looks whether a rank is stopped, seconds: they cost more than to see that it has ended.
_LOOK_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
#: Linux shares processors between sessions first (sched(7), autogroup): where every rank has its own, as horovodrun
#: does it, the many threads of one do not crowd out those of another, up to 6 % of a step. Elsewhere they stay in that
#: of the launcher, with which they would not die by themselves.
_APART = sys.platform.startswith("linux")


def die_with_parent() -> None:
    """Has the system kill this process when its parent dies (Linux; elsewhere nothing happens)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() == 1:
        os._exit(1)  # it died before the call


class End(NamedTuple):
    """How a rank ended: exit status (negative: signal), when, the error it noted, or what was seen of it."""

    rank: int
    status: int
    time: float
    error: Optional[CrosstrainError] = None
    seen: str = ""

    @property
    def died(self) -> bool:
        """Whether it ended without saying why: by a signal, or hanging."""
        return self.error is None

    @property
    def reason(self) -> str:
        """What happened, for people."""
        if self.seen:
            return self.seen
        if self.status < 0:
            try:
                return "ended by signal %s" % signal.Signals(-self.status).name
            except ValueError:
                return "ended by signal %d" % -self.status
        return "ended with exit status %d" % self.status


def first_cause(ends: Sequence[End]) -> Optional[End]:
    """The end that the others follow from: an own error before that of a lost neighbour, then the earliest, where
    a death is seen a little after it happened; None if all ended well."""
    bad = [end for end in ends if end.status != 0 or end.seen]
    if not bad:
        return None

    def order(end: End) -> Any:
        consequence = end.error is not None and end.error.reason == "RANK_LOST"
        return (consequence, end.time - (_SEEN_SECONDS if end.died else 0.0))

    return min(bad, key=order)


class LocalRanks:
    """The processes of one attempt on this host."""

    def __init__(self, engine: str, package: str, execution: Execution, threads_given: bool, ranks: Sequence[Ranks],
                 folder: str, work: str, child: List[str], lock: int) -> None:
        """Starts them. ``child``: arguments after the interpreter, but for those that name the rank."""
        self._ranks = list(ranks)
        self._folder = folder
        self._ends: Dict[int, End] = {}
        self._pids: Dict[int, int] = {}
        self._stopped: Dict[int, float] = {}
        self._looked = 0.0
        environment = importlib.import_module(package).environment  # type: ignore[attr-defined]
        self._processes: Dict[int, subprocess.Popen[bytes]] = {}
        self._mpiexec: Optional[subprocess.Popen[bytes]] = None
        base = child + ["--ranks-folder", folder]
        if execution.parallel.backend == "mpi":
            own = of_process(execution, self._ranks[0], threads_given)
            self._mpiexec = subprocess.Popen(
                mpi.command(len(self._ranks), folder, base), stdin=subprocess.DEVNULL,
                env=dict(os.environ, **environment(engine, own, work)), pass_fds=[lock], preexec_fn=die_with_parent)
            return
        for item in self._ranks:
            own = of_process(execution, item, threads_given)
            self._processes[item.rank] = subprocess.Popen(
                [sys.executable] + base + ["--rank", str(item.rank)], stdin=subprocess.DEVNULL,
                env=dict(os.environ, **environment(engine, own, work)), pass_fds=[lock],
                start_new_session=_APART)

    def poll(self) -> bool:
        """Looks once; returns whether all have ended."""
        thorough = time.monotonic() - self._looked > _LOOK_SECONDS
        if thorough:
            self._looked = time.monotonic()
        for item in self._ranks:
            if item.rank not in self._ends:
                self._look(item.rank, thorough)
        if self._mpiexec is not None and self._mpiexec.poll() is not None:
            for item in self._ranks:
                if item.rank not in self._ends:
                    # mpiexec itself failed, or it killed this rank after another one had ended.
                    self._end(End(item.rank, self._mpiexec.returncode or 1, time.time()))
        return len(self._ends) == len(self._ranks)

    def _look(self, rank: int, thorough: bool) -> None:
        process = self._processes.get(rank)
        if process is not None:
            status = process.poll()
            if status is not None:
                self._end(End(rank, status, time.time()))
                return
        else:
            noted = mpi.noted_end(self._folder, rank)
            if noted is not None:
                self._end(End(rank, noted[0], noted[1]))
                return
        if thorough:
            self._look_for_stop(rank)

    def _look_for_stop(self, rank: int) -> None:
        pid = self.pid(rank)
        if pid is None or not _stopped(pid):
            self._stopped.pop(rank, None)
        elif time.time() - self._stopped.setdefault(rank, time.time()) > STOPPED_SECONDS:
            self._end(End(rank, -signal.SIGSTOP, self._stopped[rank], None, "stopped by a signal and did not go on"))

    def _end(self, end: End) -> None:
        noted = read_error(self._folder, end.rank)
        self._ends[end.rank] = end._replace(error=noted[0], time=noted[1]) if noted is not None else end

    def pid(self, rank: int) -> Optional[int]:
        """Process id of a rank; None if it has not started."""
        process = self._processes.get(rank)
        if process is not None:
            return process.pid
        if rank not in self._pids:
            try:
                self._pids[rank] = noted_pid(self._folder, rank)
            except (FileNotFoundError, ValueError):
                return None
        return self._pids[rank]

    @property
    def ends(self) -> List[End]:
        """How those that have ended did."""
        return list(self._ends.values())

    @property
    def failed(self) -> bool:
        """Whether one has ended badly."""
        return first_cause(self.ends) is not None

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to one rank, if it is there."""
        pid = self.pid(rank)
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """Ends all that are left: politely, then not."""
        pids = [pid for pid in (self.pid(item.rank) for item in self._ranks) if pid is not None]
        born = {pid: start_time(pid) for pid in pids}
        if self._mpiexec is not None:
            pids.append(self._mpiexec.pid)
        deadline = time.time() + _TERMINATE_SECONDS
        for number in (signal.SIGTERM, signal.SIGCONT):
            self._all(pids, born, number)
        while time.time() < deadline and not self._gone():
            time.sleep(0.02)
        self._all(pids, born, signal.SIGKILL)
        for process in self._processes.values() if _APART else ():
            signal_group(process.pid, signal.SIGKILL)
        deadline = time.time() + _TERMINATE_SECONDS
        while time.time() < deadline and not self._gone():
            time.sleep(0.02)

    def _all(self, pids: Sequence[int], born: Dict[int, int], number: int) -> None:
        for pid in pids:
            if pid in born and (not born[pid] or start_time(pid) != born[pid]):
                continue
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _gone(self) -> bool:
        if self._mpiexec is not None:
            return self._mpiexec.poll() is not None
        return all(process.poll() is not None for process in self._processes.values())


def signal_group(pid: int, number: int) -> None:
    """Sends a signal to a process that leads a group and to what it has started, be it itself there no longer."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _stopped(pid: int) -> bool:
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except (OSError, IndexError):
        return False


def note_pid(folder: str, rank: int) -> None:
    """Notes the process of a rank."""
    write_file(os.path.join(folder, "rank-%d.pid" % rank), str(os.getpid()).encode("ascii"))


def noted_pid(folder: str, rank: int) -> int:
    """The process of a rank. Raises ``FileNotFoundError`` before it has started."""
    with open(os.path.join(folder, "rank-%d.pid" % rank)) as file:
        return int(file.read())


def noted_pids(folder: str) -> List[int]:
    """Processes of all ranks of this host that have started."""
    names = [name for name in sorted(os.listdir(folder)) if name.startswith("rank-") and name.endswith(".pid")]
    return [noted_pid(folder, int(name[len("rank-"):-len(".pid")])) for name in names]


def note_error(folder: str, rank: int, error: CrosstrainError) -> None:
    """Notes why a rank ends."""
    value = {"reason": error.reason, "message": error.message, "field": error.field, "time": time.time()}
    write_file(os.path.join(folder, "rank-%d.error" % rank), json.dumps(value).encode("utf-8"))


def read_error(folder: str, rank: int) -> Optional[Any]:
    """What a rank noted and when; None if nothing."""
    try:
        with open(os.path.join(folder, "rank-%d.error" % rank), "rb") as file:
            value = json.loads(file.read().decode("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return CrosstrainError(value["reason"], value["message"], value["field"]), float(value["time"])
