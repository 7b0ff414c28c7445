"""Waiting for a process to end without looking again and again."""

import os
import select
import signal
from typing import Any

_BYTES = 4096


class Endings:
    """Wakes the main thread of a process as soon as one of its children ends (SIGCHLD)."""

    def __init__(self) -> None:
        """To be called in the main thread; takes the signal for good."""
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        # Python writes a byte for every signal that has a handler.
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, or when a child has ended since the last call."""
        if select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, _BYTES)


def _nothing(number: int, frame: Any) -> None:
    pass
