"""Sums over all ranks by MPI, for engines whose framework has no communication of its own.

mpi4py is imported only when there are several ranks. MPI is left without ``MPI_Finalize``: that would wait for ranks
that have failed; whoever started the processes tells mpiexec (see :mod:`.mpi`).
"""

import importlib.util
import os
import time
from typing import Dict, Iterable

import numpy as np

from ..errors import CrosstrainError
from ..training import Ranks
from . import mpi, progress

_INSTALL = "'crosstrain up --with mpi' adds it"
#: Shared memory of the ranks, in which they communicate.
_SEGMENTS = "/dev/shm/mpich_shm_"
_TEXT = 4096
_POLL_SECONDS = 0.02


def obstacle() -> str:
    """Why ranks of this environment cannot communicate by MPI; empty if they can. Starts nothing."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed in this environment; " + _INSTALL
    if mpi.launcher() is None:
        return "mpiexec.gforker of MPICH is not in this environment; " + _INSTALL
    return ""


def environment() -> Dict[str, str]:
    """Variables to be set before MPI is started: shared memory only, so that nothing listens on the network."""
    return {
        "UCX_TLS": "self,sm",
        # Ranks that wait give way to the others, should there be more of them than cores.
        "MPIR_CVAR_POLLS_BEFORE_YIELD": "10",
        "MPIR_CVAR_POSIX_POLL_FREQUENCY": "10",
    }


class Sums:
    """Adds arrays of all ranks; all call the same methods in the same order."""

    _begun = False

    def __init__(self, ranks: Ranks) -> None:
        """Raises ``ENVIRONMENT`` if MPI cannot be started or numbers the ranks in another way than ``ranks``."""
        try:
            import mpi4py

            mpi4py.rc.finalize = False
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            message = "MPI cannot be used: %s" % error
            raise CrosstrainError("ENVIRONMENT", message, "execution.parallel.backend") from error
        self._comm = MPI.COMM_WORLD
        self._in_place = MPI.IN_PLACE
        found = (self._comm.rank, self._comm.size)
        if found != (ranks.rank, ranks.size):
            message = "MPI counts this process as rank %d of %d, not %d of %d" % (found + (ranks.rank, ranks.size))
            raise CrosstrainError("ENVIRONMENT", message, "execution.parallel")
        #: Bytes handed to sums so far.
        self.bytes = 0
        self._seconds = 0.0
        if not Sums._begun:
            Sums._begun = True
            self._begin()

    def _begin(self) -> None:
        """Once all have mapped the shared memory its name is removed, so that none is left over by a killed rank."""
        self._comm.Barrier()
        if self._comm.rank == 0:
            for path in _mapped(_SEGMENTS):
                try:
                    os.unlink(path)
                except OSError:
                    pass
        self._comm.Barrier()

    def add(self, array: np.ndarray) -> None:
        """Replaces a C-contiguous array, in its own memory, by the sum over all ranks, equal in all to the bit."""
        progress.joins()
        started = time.perf_counter()
        self._comm.Allreduce(self._in_place, array)
        self._seconds += time.perf_counter() - started
        self.bytes += array.nbytes

    def add_all(self, arrays: Iterable[np.ndarray]) -> None:
        """:meth:`add` for each."""
        for array in arrays:
            self.add(array)

    def wait(self) -> None:
        """Returns when all ranks have come here; uses no processor meanwhile."""
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_SECONDS)

    def told(self, text: str) -> str:
        """Rank 0's text (up to 4,096 bytes of UTF-8), in all ranks."""
        buffer = np.zeros(_TEXT, np.uint8)
        own = text.encode("utf-8")[:_TEXT]
        buffer[:len(own)] = np.frombuffer(own, np.uint8)
        self._comm.Bcast(buffer, root=0)
        return bytes(buffer).rstrip(b"\0").decode("utf-8")

    def take_seconds(self) -> float:
        """Time spent in sums since the last call, waiting for the other ranks included."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _mapped(prefix: str) -> Iterable[str]:
    try:
        with open("/proc/self/maps") as file:
            return {line.split(None, 5)[5].strip() for line in file if prefix in line and "(deleted)" not in line}
    except OSError:
        return set()


def finish() -> None:
    """Ends MPI, if it was started, in a program whose ranks all come here."""
    import mpi4py

    mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()
