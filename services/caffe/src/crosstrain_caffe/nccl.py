"""Sums over several GPUs of one host by NCCL, the way Caffe itself does it.

Caffe's ``NCCL`` moves all parameters and gradients of a solver into two buffers, adds the gradients of all ranks
between backward pass and update, and divides them by ``solver_count``. That number is left at 1 here: each rank's
gradients are already its part of the whole batch's (see :mod:`.engine`), so that uneven shares weigh what they should.

Follows ``python/train.py``, ``src/caffe/parallel.cpp`` and ``python/caffe/_caffe.cpp`` of Caffe and the
documentation of ``ncclGetUniqueId``; it has not been run on GPUs.
"""

import ctypes
import os
import time
from typing import Any

import caffe

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.parallel import progress
from crosstrain_service.rundir import write_file
from crosstrain_service.training import Ranks

#: Length of the identifier by which ranks meet (``NCCL_UNIQUE_ID_BYTES`` of nccl.h).
ID_BYTES = 128
#: Time in which the first rank must have written the identifier, seconds.
MEET_SECONDS = 600.0
_POLL_SECONDS = 0.02
_LIBRARY = "libnccl.so.2"

#: Engines of this process that have met; each meeting needs an identifier of its own.
_meetings = 0


def obstacle() -> str:
    """Why Caffe's own communication cannot be used here, or an empty text."""
    if not caffe.has_nccl():
        return "Caffe communicates by NCCL alone, between GPUs, and this build has none; the ranks use MPI"
    return ""


class NcclSums:
    """The ranks of one host, each with a GPU and a solver; all make and use it in the same order."""

    def __init__(self, solver: Any, ranks: Ranks) -> None:
        """Waits for all ranks. The solver's parameters and gradients live in NCCL's buffers from here on.

        Raises ``RANK_LOST`` if the first rank's identifier does not come in time.
        """
        global _meetings
        identifier = meet(ranks, _meetings)
        _meetings += 1
        caffe.set_multiprocess(True)
        caffe.set_solver_count(ranks.size)
        caffe.set_solver_rank(ranks.rank)
        self._nccl = caffe.NCCL(solver, identifier)
        # Sums instead of means; and only a solver of rank 0 may write snapshots, which every rank does.
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)
        self._nccl.bcast()
        # Events on the GPU: the sum waits for the slowest rank.
        self._timer = caffe.Timer()
        self._bytes = sum(blob.data.nbytes for blobs in solver.net.params.values() for blob in blobs)
        #: Bytes handed to sums so far.
        self.bytes = 0
        self._used = False
        solver.add_callback(lambda: None, self._begin)
        solver.add_callback(self._nccl)
        solver.add_callback(lambda: None, self._end)

    def _begin(self) -> None:
        progress.joins()
        self._timer.start()

    def _end(self) -> None:
        self._timer.stop()
        self._used = True
        self.bytes += self._bytes

    def take_seconds(self) -> float:
        """Time that the last step spent in sums, waiting for the other ranks included."""
        seconds = float(self._timer.ms) / 1e3 if self._used else 0.0
        self._used = False
        return seconds


def meet(ranks: Ranks, number: int) -> bytes:
    """The identifier of this meeting, which rank 0 makes and writes into the private folder of the ranks."""
    path = os.path.join(ranks.folder, "nccl-%d" % number)
    if ranks.rank == 0:
        write_file(path, unique_id())
    deadline = time.monotonic() + MEET_SECONDS
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise CrosstrainError("RANK_LOST", "rank 0 gave no NCCL identifier within %d seconds" % MEET_SECONDS)
        time.sleep(_POLL_SECONDS)
    with open(path, "rb") as file:
        return file.read()


def unique_id() -> bytes:
    """A new identifier from NCCL itself: Caffe's ``NCCL.new_uid`` gives it up to its first zero byte only.

    Raises ``ENVIRONMENT`` if NCCL cannot make one.
    """
    identifier = ctypes.create_string_buffer(ID_BYTES)
    try:
        status = ctypes.CDLL(_LIBRARY).ncclGetUniqueId(identifier)
    except (OSError, AttributeError) as error:
        raise CrosstrainError("ENVIRONMENT", "NCCL cannot be used: %s" % error, "execution.parallel") from error
    if status:
        raise CrosstrainError("ENVIRONMENT", "ncclGetUniqueId failed with status %d" % status, "execution.parallel")
    return identifier.raw
