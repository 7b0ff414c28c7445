"""Signals of the user at the end of a command."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM within: impatience must not leave processes behind.

    For work that ends by itself within seconds. Outside of the main thread it does nothing.
    """
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, signal.SIG_IGN)
    except ValueError:
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
