"""Wakes threads of this process when the store has changed. Other processes are noticed by polling."""

from __future__ import annotations

import threading


class Signal:
    """Counts changes; a waiter names the count that it has seen, so no change is missed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """Changes so far."""
        return self._count

    def notify(self) -> None:
        """Reports a change."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, seen: int, timeout: float) -> None:
        """Returns after a change since ``seen``, at the latest after ``timeout`` seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)
