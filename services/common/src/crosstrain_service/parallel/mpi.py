"""Processes started by an MPI's own launcher, for engines whose ranks communicate by MPI.

The launcher is MPICH's ``mpiexec.gforker`` of the service's environment, which starts processes of one host and talks
to them by pipes: Open MPI's mpirun and MPICH's hydra listen on every network interface. With ``UCX_TLS=self,sm`` the
ranks communicate by shared memory and do not listen either.

Every process is started through a guard (``python -m crosstrain_service.parallel.mpi``), which notes how it ended:
mpiexec ends all others when one dies, and only says on its output which one it was.
"""

import json
import os
import subprocess
import sys
import time
from typing import List, Optional, Tuple

from ..rundir import write_file

#: What mpiexec gives to every process: its rank, and the number of an inherited descriptor to talk to mpiexec.
_RANK, _DESCRIPTOR = "PMI_RANK", "PMI_FD"


def launcher() -> Optional[str]:
    """Path of this environment's mpiexec.gforker; None if there is none."""
    own = os.path.join(os.path.dirname(sys.executable), "mpiexec.gforker")
    return own if os.access(own, os.X_OK) else None


def command(processes: int, folder: str, child: List[str]) -> List[str]:
    """The command that starts so many processes of ``child`` (arguments after the interpreter) on this host."""
    found = launcher()
    if found is None:
        raise FileNotFoundError("mpiexec.gforker")
    return [found, "-n", str(processes), sys.executable, "-m", "crosstrain_service.parallel.mpi", folder] + child


def rank() -> int:
    """Rank of this process by the environment that mpiexec gives."""
    return int(os.environ[_RANK])


def note_end(folder: str, number: int, status: int) -> None:
    """Notes the exit status of a rank (negative: the signal that ended it)."""
    value = {"status": status, "time": time.time()}
    write_file(os.path.join(folder, "rank-%d.end" % number), json.dumps(value).encode("ascii"))


def noted_end(folder: str, number: int) -> Optional[Tuple[int, float]]:
    """Exit status of a rank and when it ended; None while it is at work."""
    try:
        with open(os.path.join(folder, "rank-%d.end" % number)) as file:
            value = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return int(value["status"]), float(value["time"])


def main() -> int:
    """Runs the process of one rank and notes how it ended."""
    from .watch import die_with_parent

    die_with_parent()
    folder, arguments = sys.argv[1], sys.argv[2:]
    process = subprocess.Popen([sys.executable] + arguments, pass_fds=[int(os.environ[_DESCRIPTOR])])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        # So mpiexec ends the others after one has died.
        process.kill()
        status = process.wait()
    note_end(folder, rank(), status)
    if status == 0:
        # A rank leaves without MPI_Finalize, which would wait for ranks that have failed; mpiexec is to know that this
        # one is not lost (PMI-1).
        os.write(int(os.environ[_DESCRIPTOR]), b"cmd=finalize\n")
        os.read(int(os.environ[_DESCRIPTOR]), 64)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
