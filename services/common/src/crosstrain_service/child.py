"""The process of one run: ``python -m crosstrain_service.child`` (started by the front only).

Everything that must be set before a framework is imported was set by the front; this
process takes the run's lock, finds the newest checkpoint, imports the engine, does the
work and appends what happens to the spool.
"""

import time

_STARTED = time.time()

import os  # noqa: E402
import sys  # noqa: E402
from typing import List, Type  # noqa: E402


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
import errno  # noqa: E402
import importlib  # noqa: E402
import signal  # noqa: E402
import traceback  # noqa: E402

from crosstrain_protos.v1 import run_pb2  # noqa: E402

from .artifacts import ArtifactStore  # noqa: E402
from .checkpoint import CheckpointStore  # noqa: E402
from .engine import Engine  # noqa: E402
from .errors import CrosstrainError, without_paths  # noqa: E402
from .events import ENDED, EventLog, state_of  # noqa: E402
from .rundir import RunDir, StoredRequest  # noqa: E402
from .spool import SpoolWriter  # noqa: E402
from .tasks import TASKS, Work  # noqa: E402

#: Exit statuses that the front understands.
EXIT_STORAGE_FULL = 74
EXIT_ALREADY_RUNNING = 75


def engine_class(package: str, name: str) -> Type[Engine]:
    """The class of an engine, its framework imported. Raises ``ENVIRONMENT`` if that fails."""
    module, _, attribute = importlib.import_module(package).ENGINES[name].partition(":")  # type: ignore[attr-defined]
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except Exception as error:  # whatever an import of a framework may raise
        traceback.print_exc()
        raise CrosstrainError("ENVIRONMENT", "the framework of engine %s cannot be imported: %s: %s"
                              % (name, type(error).__name__, _first_line(error))) from error


def main() -> int:
    """Executes one attempt of a run."""
    parser = argparse.ArgumentParser(prog="crosstrain_service.child", description=__doc__)
    parser.add_argument("--run-dir", required=True, help="folder of the run")
    parser.add_argument("--artifacts", required=True, help="folder of the artifact store")
    parser.add_argument("--package", required=True, help="engine package, for example crosstrain_torch")
    parser.add_argument("--attempt", type=int, required=True, help="number of this attempt, from 1")
    parser.add_argument("--affinity", default="", help="cores to be bound to, separated by commas (see bind())")
    arguments = parser.parse_args()

    # The front asks for a checkpoint by it, maybe before there is anything to save.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    directory = RunDir(arguments.run_dir)
    lock = directory.lock()
    if lock is None:
        return EXIT_ALREADY_RUNNING
    stored = directory.stored()
    if stored is None:
        return 2
    try:
        directory.write_child(arguments.attempt)
        # Its front may have died before this process had the lock, and the next one ended the run since.
        if directory.cancel_requested() or state_of(directory.spool) in ENDED:
            return EXIT_ALREADY_RUNNING
        events = EventLog(SpoolWriter(directory.spool), stored.request.run_id, arguments.attempt)
        return _execute(arguments, directory, stored, events)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return EXIT_STORAGE_FULL


def _execute(arguments: argparse.Namespace, directory: RunDir, stored: StoredRequest, events: EventLog) -> int:
    checkpoints = CheckpointStore(directory.checkpoints)
    try:
        resume = checkpoints.newest()
        events.state(run_pb2.RUN_STATE_RUNNING)
        events.emit(attempt_started=run_pb2.AttemptStarted(
            resume_step=resume[0].next_step if resume else 0, checkpoint_digest=resume[2] if resume else ""))
        kind = engine_class(arguments.package, stored.request.engine)
        imported = time.time() - _STARTED
        work = Work(kind, stored, ArtifactStore(arguments.artifacts), events, checkpoints, resume, imported)
        TASKS[stored.kind](work)
        events.state(run_pb2.RUN_STATE_SUCCEEDED)
        return 0
    except CrosstrainError as error:
        failure = error
    except MemoryError:
        failure = CrosstrainError("ENGINE_FAILED", "not enough memory")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        traceback.print_exc()
        failure = CrosstrainError("ENGINE_FAILED", "%s: %s" % (type(error).__name__, error.strerror))
    except Exception as error:  # whatever a framework raises ends the run, not the service
        traceback.print_exc()
        failure = CrosstrainError("ENGINE_FAILED", "%s failed: %s: %s" % (
            stored.request.engine, type(error).__name__, _first_line(error)))
    if failure.reason == "STORAGE_FULL":
        directory.free_reserve()
    events.state(run_pb2.RUN_STATE_FAILED, failure)
    return 1


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_paths(lines[0])[:500] if lines else "no message"


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks may hang or crash while the interpreter is torn down; everything is on disk.
    os._exit(status)
