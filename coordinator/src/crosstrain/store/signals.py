"""Wakes threads of this process when the store has changed. Other processes are noticed by polling."""

from __future__ import annotations

import threading
import zlib

_BUCKETS = 256


class Signal:
    """Counts changes by key; a waiter names the count that it has seen, so no change is missed.

    Keys share a fixed number of counters, so a waiter may wake without a change of its own key.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._counts = [0] * _BUCKETS

    def count(self, key: str = "") -> int:
        """Changes so far."""
        return self._counts[_bucket(key)]

    def notify(self, key: str = "") -> None:
        """Reports a change."""
        with self._condition:
            self._counts[_bucket(key)] += 1
            self._condition.notify_all()

    def notify_all(self) -> None:
        """Wakes everybody."""
        with self._condition:
            self._counts = [count + 1 for count in self._counts]
            self._condition.notify_all()

    def wait(self, seen: int, timeout: float, key: str = "") -> None:
        """Returns after a change since ``seen``, at the latest after ``timeout`` seconds."""
        bucket = _bucket(key)
        with self._condition:
            self._condition.wait_for(lambda: self._counts[bucket] != seen, timeout)


def _bucket(key: str) -> int:
    return zlib.crc32(key.encode()) % _BUCKETS
