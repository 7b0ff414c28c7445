"""The process of one run: ``python -m crosstrain_service.child`` (started by the front only).

Everything that must be set before a framework is imported was set by the front; this
process takes the run's lock, finds the newest checkpoint, imports the engine, does the
work and appends what happens to the spool.
"""

import time

_STARTED = time.time()

import os  # noqa: E402
import sys  # noqa: E402
from typing import Callable, List, NamedTuple, Optional, Type, Union  # noqa: E402


def bind(arguments: List[str]) -> None:
    """Binds this process to the cores after "--affinity", separated by commas."""
    if "--affinity" in arguments[:-1]:
        cores = arguments[arguments.index("--affinity") + 1]
        if cores:
            os.sched_setaffinity(0, [int(core) for core in cores.split(",")])


if __name__ == "__main__":
    # Before NumPy is imported: the threads that its BLAS starts then keep the cores they begin with.
    bind(sys.argv)

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import errno  # noqa: E402
import importlib  # noqa: E402
import signal  # noqa: E402
import traceback  # noqa: E402

from crosstrain_protos.v1 import run_pb2  # noqa: E402

from . import convert  # noqa: E402
from .artifacts import ArtifactStore  # noqa: E402
from .checkpoint import CheckpointStore  # noqa: E402
from .engine import Engine  # noqa: E402
from .errors import CrosstrainError, without_paths  # noqa: E402
from .events import ENDED, EventLog, NoEvents, state_of  # noqa: E402
from .parallel import mpi, progress  # noqa: E402
from .parallel.plan import Plan, of_process, read_plan  # noqa: E402
from .parallel.stall import pass_on  # noqa: E402
from .parallel.team import meet  # noqa: E402
from .parallel.watch import die_with_parent, note_error, note_pid  # noqa: E402
from .rundir import RunDir, StoredRequest  # noqa: E402
from .spool import SpoolWriter  # noqa: E402
from .tasks import TASKS, Work  # noqa: E402
from .training import Execution  # noqa: E402

#: Exit statuses that the front understands.
EXIT_STORAGE_FULL = 74
EXIT_ALREADY_RUNNING = 75
EXIT_RANK_LOST = 76


def engine_class(package: str, name: str) -> Type[Engine]:
    """The class of an engine, its framework imported. Raises ``ENVIRONMENT`` if that fails."""
    module, _, attribute = importlib.import_module(package).ENGINES[name].partition(":")  # type: ignore[attr-defined]
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except Exception as error:  # whatever an import of a framework may raise
        traceback.print_exc()
        raise CrosstrainError("ENVIRONMENT", "the framework of engine %s cannot be imported: %s: %s"
                              % (name, type(error).__name__, _first_line(error))) from error


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments of a process that executes an attempt of a run."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--run-dir", required=True, help="folder of the run")
    found.add_argument("--artifacts", required=True, help="folder of the artifact store")
    found.add_argument("--package", required=True, help="engine package, for example crosstrain_torch")
    found.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    found.add_argument("--affinity", default="", help="cores to be bound to, separated by commas (see bind())")
    return found


class Begun(NamedTuple):
    """An attempt that may go on: the run's folder, its request, and the handle of its lock."""

    directory: RunDir
    stored: StoredRequest
    lock: int


def begin(arguments: argparse.Namespace) -> Union[Begun, int]:
    """Takes the run's lock for this process; an exit status if there is nothing to do."""
    # The front asks for a checkpoint by it, maybe before there is anything to save.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    directory = RunDir(arguments.run_dir)
    lock = directory.lock()
    if lock is None:
        return EXIT_ALREADY_RUNNING
    stored = directory.stored()
    if stored is None:
        return 2

    def note() -> int:
        directory.write_child(arguments.attempt)
        # Its front may have died before this process had the lock, and the next one ended the run since.
        ended = directory.cancel_requested() or state_of(directory.spool) in ENDED
        return EXIT_ALREADY_RUNNING if ended else 0

    status = storage_guard(note)
    return status if status else Begun(directory, stored, lock)


def storage_guard(work: Callable[[], int]) -> int:
    """Does some work that returns an exit status; a full disk has a status of its own."""
    try:
        return work()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return EXIT_STORAGE_FULL


def main() -> int:
    """Executes one attempt of a run, or one rank of it."""
    options = parser(__doc__ or "")
    options.add_argument("--ranks-folder", default="", help="folder of the processes that train together")
    options.add_argument("--rank", type=int, default=-1, help="number of this process (-1: given by mpiexec)")
    arguments = options.parse_args()
    if arguments.ranks_folder:
        return storage_guard(lambda: _rank(arguments))
    begun = begin(arguments)
    if isinstance(begun, int):
        return begun
    directory, stored, _ = begun

    def attempt() -> int:
        events = EventLog(SpoolWriter(directory.spool), stored.request.run_id, arguments.attempt)
        failure = _execute(arguments, directory, stored, events)
        if failure is None:
            events.state(run_pb2.RUN_STATE_SUCCEEDED)
            return 0
        if failure.reason == "STORAGE_FULL":
            directory.free_reserve()
        events.state(run_pb2.RUN_STATE_FAILED, failure)
        return 1

    return storage_guard(attempt)


def _rank(arguments: argparse.Namespace) -> int:
    """One of several processes: its launcher holds the lock and says how the run ended."""
    die_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = arguments.ranks_folder
    number = arguments.rank if arguments.rank >= 0 else mpi.rank()
    note_pid(folder, number)
    progress.attach(folder, number)
    plan = read_plan(folder)
    directory = RunDir(arguments.run_dir)
    stored = directory.stored()
    assert stored is not None
    ranks = plan.ranks[number]
    # What differs between the ranks; what must be there before NumPy is loaded is equal in all.
    message = stored.request.spec.execution
    execution = dataclasses.replace(convert.execution(message), parallel=plan.parallel)
    os.environ.update(importlib.import_module(arguments.package).environment(  # type: ignore[attr-defined]
        stored.request.engine, of_process(execution, ranks, bool(message.intra_threads)), directory.work))
    events: EventLog = NoEvents()
    if number == 0:
        events = EventLog(SpoolWriter(directory.spool), stored.request.run_id, arguments.attempt)
        pass_on(folder, events)
    failure = _execute(arguments, directory, stored, events, plan, number)
    if failure is None:
        return 0
    note_error(folder, number, failure)
    return 1


def _execute(arguments: argparse.Namespace, directory: RunDir, stored: StoredRequest, events: EventLog,
             plan: Optional[Plan] = None, number: int = 0) -> Optional[CrosstrainError]:
    """Does the work; returns why it failed, or None. Raises ``OSError`` on a full disk."""
    checkpoints = CheckpointStore(directory.checkpoints)
    try:
        resume = checkpoints.newest() if number == 0 else None
        events.state(run_pb2.RUN_STATE_RUNNING)
        events.emit(attempt_started=run_pb2.AttemptStarted(
            resume_step=resume[0].next_step if resume else 0, checkpoint_digest=resume[2] if resume else "",
            ranks=plan.parallel.ranks if plan is not None else 0))
        kind = engine_class(arguments.package, stored.request.engine)
        imported = time.time() - _STARTED
        work = Work(kind, stored, ArtifactStore(arguments.artifacts), events, checkpoints, resume, imported)
        if plan is not None:
            ranks = plan.ranks[number]
            team = meet(dataclasses.replace(Execution(), ranks=ranks, parallel=plan.parallel), plan.secret)
            work = work._replace(ranks=ranks, parallel=plan.parallel, team=team)
        TASKS[stored.kind](work)
        # Nobody leaves while another one may still wait for it.
        work.team.gather(b"")
        work.team.tell(b"" if work.team.leads else None)
        return None
    except CrosstrainError as error:
        return error
    except MemoryError:
        return CrosstrainError("ENGINE_FAILED", "not enough memory")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        traceback.print_exc()
        return CrosstrainError("ENGINE_FAILED", "%s: %s" % (type(error).__name__, error.strerror))
    except Exception as error:  # whatever a framework raises ends the run, not the service
        traceback.print_exc()
        return CrosstrainError("ENGINE_FAILED", "%s failed: %s: %s" % (
            stored.request.engine, type(error).__name__, _first_line(error)))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_paths(lines[0])[:500] if lines else "no message"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks may hang or crash while the interpreter is torn down; everything is on disk.
    os._exit(status)
