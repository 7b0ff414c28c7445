"""Processes that judge records, while services go on to record others."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Ranks want the cores as well.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Judges:
    """A pool of processes, each with one thread; use it as a context manager."""

    def __init__(self, count: int) -> None:
        self._before = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        # A fork of a process that talks over gRPC would hang.
        self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Calls a function of a module, with arguments that can be sent, in one of the processes."""
        return self._pool.submit(function, *arguments)
