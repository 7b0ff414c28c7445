"""The processor cores a process may use."""

import os
from typing import Tuple


def available_cores() -> Tuple[int, ...]:
    """Numbers of the cores this process may run on, ascending."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        return tuple(range(os.cpu_count() or 1))
