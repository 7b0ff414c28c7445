"""All metrics of the coordinator, brought up to date when Prometheus asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from crosstrain import __version__
from crosstrain.registry import Registry, resolve
from crosstrain.store import Store
from crosstrain.store.statistics import Statistics, statistics
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.exposition import free_and_size

from .recording import VALUES

#: Answers of the store are used again for scrapes that follow within this time, seconds.
FRESH_SECONDS = 1.0


class CoordinatorMetrics:
    """A collector for ``prometheus_client``: the store and the registry are asked at a scrape, never in between.

    Args:
        watchers: how many streams are open.
        folders: folders by the name under which their file systems are shown.
    """

    def __init__(
        self, store: Store, registry: Registry, watchers: Callable[[], int], folders: Mapping[str, Path]
    ) -> None:
        self._store = store
        self._registry = registry
        self._watchers = watchers
        self._folders = folders
        self._lock = threading.Lock()
        self._asked = float("-inf")

    def collect(self) -> Iterator[Any]:
        """All families, up to date."""
        with self._lock:
            VALUES.set("crosstrain_coordinator_info", 1, (__version__,))
            VALUES.set("crosstrain_coordinator_watchers", self._watchers())
            self._disks()
            if time.monotonic() - self._asked > FRESH_SECONDS:
                self._ask()
            return VALUES.collect()

    def _ask(self) -> None:
        begun = time.monotonic()
        try:
            self._counts(statistics(self._store.database))
            self._services()
        except (CrosstrainError, SQLAlchemyError):
            # Old numbers would look like health: they go away, and an alert on store_up says why.
            for name in ("jobs", "runs", "queue_runs", "run_info", "service_healthy", "engine_info"):
                VALUES.replace(f"crosstrain_coordinator_{name}", {})
            VALUES.set("crosstrain_store_up", 0)
            return
        VALUES.set("crosstrain_store_up", 1)
        self._asked = time.monotonic()
        VALUES.set("crosstrain_store_read_duration_seconds", self._asked - begun)

    def _counts(self, found: Statistics) -> None:
        jobs = {(_name(coordinator_pb2.JobState, state, "JOB_STATE_"),): 0.0 for state in range(1, 5)}
        for state, count in found.jobs.items():
            jobs[(_name(coordinator_pb2.JobState, state, "JOB_STATE_"),)] = count
        VALUES.replace("crosstrain_coordinator_jobs", jobs)
        VALUES.replace(
            "crosstrain_coordinator_runs",
            {
                (
                    engine,
                    version,
                    _name(run_pb2.RunKind, kind, "RUN_KIND_"),
                    _name(run_pb2.RunState, state, "RUN_STATE_"),
                ): float(count)
                for (engine, version, kind, state), count in found.runs.items()
            },
        )
        queue: dict[tuple[str, ...], float] = {}
        for run in found.unfinished:
            queue[(run.service,)] = queue.get((run.service,), 0.0) + (not run.submitted)
        VALUES.replace("crosstrain_coordinator_queue_runs", queue)
        VALUES.replace(
            "crosstrain_coordinator_run_info",
            {(run.run_id, run.job_id, run.engine, run.version, run.service): 1.0 for run in found.unfinished},
        )
        VALUES.replace("crosstrain_coordinator_events_total", {(): float(found.events)})

    def _services(self) -> None:
        offers = self._registry.offers()
        VALUES.replace(
            "crosstrain_coordinator_service_healthy",
            {(offer.service,): float(offer.healthy) for offer in offers},
        )
        usable = [offer for offer in offers if not offer.engine.unavailable_reason]
        meant = {name: resolve(offers, name) for name in {offer.engine.name for offer in usable}}
        VALUES.replace(
            "crosstrain_coordinator_engine_info",
            {
                (
                    offer.service,
                    offer.engine.name,
                    offer.engine.version,
                    "true" if offer == meant[offer.engine.name] else "false",
                ): 1.0
                for offer in usable
            },
        )

    def _disks(self) -> None:
        for name, folder in self._folders.items():
            try:
                free, size = free_and_size(str(folder))
            except OSError:
                VALUES.remove(("crosstrain_store_free_bytes", "crosstrain_store_size_bytes"), (name,))
                continue
            VALUES.set("crosstrain_store_free_bytes", free, (name,))
            VALUES.set("crosstrain_store_size_bytes", size, (name,))


def _name(enum: Any, number: int, prefix: str) -> str:
    return str(enum.Name(number))[len(prefix) :].lower()
