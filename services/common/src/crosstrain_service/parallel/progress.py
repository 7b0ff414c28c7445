"""How far a process has come, noted where its launcher sees it: six numbers in a file that both have mapped.

There is one place for the whole process, since a process does one thing at a time; one that trains alone notes it in
memory of its own. A note is a few stores and never waits. Engines may call :func:`joins`, nothing else.
"""

import faulthandler
import mmap
import os
import signal
import struct
from typing import Any, List, NamedTuple, Optional, Set

#: What a process is at. All but the first are entered by all processes of a run in the same order.
STARTING, BUILDING, STEP, CLOSING_EPOCH, STATISTICS, EVALUATING, RECORDING, SAVING, ENDING = range(9)
_WORDS = ("before all ranks have met", "while building the network", "in step %d", "at the end of the epoch",
          "in the statistics of batch normalisation", "in an evaluation", "while recording", "while saving",
          "at the end")
#: The signal by which a process is asked for the stacks of its threads.
ASK_STACK = signal.SIGUSR2
_NUMBERS = struct.Struct("=6q")
_COUNT, _PLACE, _PHASE, _STEP, _NEW, _JOINED = range(6)


class Place(NamedTuple):
    """Where a process is.

    ``count`` rises with everything it does; ``place`` with every step and phase, which all processes go through alike.
    ``step`` is the one at work, or the next. ``new``: what it is at has not been done since the network was built.
    ``joined``: operations of all processes that it has entered at this place.
    """

    count: int
    place: int
    phase: int
    step: int
    new: int
    joined: int

    @property
    def words(self) -> str:
        """For people, as in "in step 5"."""
        words = _WORDS[self.phase]
        if self.phase == STEP:
            return words % self.step
        return "%s after step %d" % (words, self.step - 1) if self.step and self.phase > STEP else words


_cells: Any = memoryview(bytearray(_NUMBERS.size)).cast("q")
_known: Set[int] = set()


def attach(folder: str, rank: int) -> None:
    """From now on the launcher sees what is noted, and may ask for stacks."""
    global _cells
    stacks = open(_stack_path(folder, rank), "wb", buffering=0)  # noqa: SIM115 - open as long as the process lives
    faulthandler.register(ASK_STACK, stacks, all_threads=True)
    with open(_path(folder, rank), "w+b") as file:
        file.write(bytes(_cells))
        file.flush()
        _cells = memoryview(mmap.mmap(file.fileno(), _NUMBERS.size)).cast("q")


def build() -> None:
    """The network is built: everything after it is done for the first time."""
    _known.clear()
    enter(BUILDING, 0)


def enter(phase: int, step: Optional[int] = None) -> None:
    """The process begins something else; ``step``: the one at work then, or the next."""
    cells = _cells
    cells[_NEW] = phase not in _known
    _known.add(phase)
    cells[_PHASE] = phase
    if step is not None:
        cells[_STEP] = step
    cells[_JOINED] = 0
    cells[_PLACE] += 1
    cells[_COUNT] += 1


def step(number: int) -> None:
    """A step is done, and the one of this number begins."""
    cells = _cells
    cells[_STEP] = number
    cells[_NEW] = cells[_JOINED] = 0
    cells[_PLACE] += 1
    cells[_COUNT] += 1


def batch() -> None:
    """A part of what was entered is done; processes may have different numbers of parts."""
    _cells[_NEW] = 0
    _cells[_COUNT] += 1


def joins() -> None:
    """The process enters an operation that all processes of the run enter in the same order, and may wait in it.

    Where all have come to the same step, those that have entered fewer operations are those that the others wait for.
    """
    _cells[_JOINED] += 1


def read(folder: str, rank: int) -> Optional[Place]:
    """What a process has noted; None before it has begun to."""
    try:
        with open(_path(folder, rank), "rb", buffering=0) as file:
            data = file.read(_NUMBERS.size)
    except OSError:
        return None
    return Place(*_NUMBERS.unpack(data)) if data is not None and len(data) == _NUMBERS.size else None


def stack(folder: str, rank: int, frames: int = 3) -> str:
    """The innermost calls of the main thread of a process that was asked, as in "engine.py:55 in step"; maybe none."""
    found: List[str] = []
    for line in dumped(folder, rank).splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            found = []  # the main thread is the last
        elif line.startswith("  File "):
            # '  File "PATH", line NUMBER in NAME'
            path, _, rest = line[len("  File "):].rpartition(", line ")
            number, _, name = rest.partition(" in ")
            found.append("%s:%s in %s" % (os.path.basename(path.strip('"')), number, name))
    return ", called from ".join(found[:frames])


def dumped(folder: str, rank: int) -> str:
    """The stacks of all threads as :mod:`faulthandler` wrote them; empty if it was not asked."""
    try:
        with open(_stack_path(folder, rank), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _path(folder: str, rank: int) -> str:
    return os.path.join(folder, "rank-%d.progress" % rank)


def _stack_path(folder: str, rank: int) -> str:
    return os.path.join(folder, "rank-%d.stack" % rank)
