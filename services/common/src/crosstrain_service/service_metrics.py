"""All metrics of a service's front, brought up to date when Prometheus asks."""

import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

from crosstrain_protos.v1 import run_pb2, service_pb2

from . import __version__, run_metrics
from .exposition import free_and_size
from .gpu import GpuSampler
from .metrics import GAUGE, Metric, Values
from .run_metrics import RunMetrics
from .runs import RunManager

METRICS = (
    Metric("crosstrain_service_info", GAUGE, "Always 1; name and version of the service.",
           ("service", "service_version")),
    Metric("crosstrain_service_engine_available", GAUGE, "Whether an engine can run here (1) or not (0).",
           ("engine", "version")),
    Metric("crosstrain_service_registered", GAUGE,
           "Whether the last registration at the coordinator succeeded; absent without a coordinator."),
    Metric("crosstrain_service_active_runs", GAUGE, "Unfinished runs: state is queued or running.",
           ("engine", "version", "kind", "state")),
    Metric("crosstrain_service_queue_runs", GAUGE, "Runs that wait for a device, without the one at work.",
           ("device",)),
    Metric("crosstrain_service_watchers", GAUGE, "Open streams of WatchRun."),
    Metric("crosstrain_spool_size_bytes", GAUGE, "Size of the spools of all runs, as far as they were read."),
    Metric("crosstrain_store_free_bytes", GAUGE,
           "Room left on the file system of a store: state (runs, checkpoints) or artifacts.", ("store",)),
    Metric("crosstrain_store_size_bytes", GAUGE, "Size of the file system of a store.", ("store",)),
    Metric("crosstrain_gpu_memory_used_bytes", GAUGE, "GPU memory in use by NVML.", ("device",)),
    Metric("crosstrain_gpu_memory_size_bytes", GAUGE, "GPU memory by NVML.", ("device",)),
    Metric("crosstrain_gpu_utilization_ratio", GAUGE,
           "Share of NVML's last sampling period in which a kernel ran.", ("device",)),
)
_STATES = {run_pb2.RUN_STATE_QUEUED: "queued", run_pb2.RUN_STATE_RUNNING: "running"}
_KINDS = {run_pb2.RUN_KIND_TRAIN: "train", run_pb2.RUN_KIND_EVALUATE: "evaluate", run_pb2.RUN_KIND_PROBE: "probe"}


class ServiceMetrics:
    """A collector for ``prometheus_client``. Nothing is read between scrapes: what a scrape finds in the spools
    of runs at work, and what other readers of the front have found, is counted once.

    Args:
        stores: folders by the name under which their file systems are shown.
    """

    def __init__(self, service: str, stores: Dict[str, str]) -> None:
        self.values = Values((*METRICS, *run_metrics.METRICS, *run_metrics.GAUGES))
        self.runs = RunMetrics(self.values)
        self._stores = stores
        self._gpus = GpuSampler()
        self._manager: Optional[RunManager] = None
        self._watchers: Callable[[], int] = lambda: 0
        self._engines: List[service_pb2.EngineDescription] = []
        self._lock = threading.Lock()
        self.values.set("crosstrain_service_info", 1, (service, __version__))

    def attach(self, manager: RunManager, watchers: Callable[[], int],
               engines: Iterable[service_pb2.EngineDescription],
               devices: Iterable[service_pb2.DeviceDescription]) -> None:
        """From now on scrapes show this front."""
        for engine in engines:
            usable = not engine.unavailable_reason
            self.values.set("crosstrain_service_engine_available", usable, (engine.name, engine.version))
            if usable:
                self._engines.append(engine)
                self.runs.announce(engine.name, engine.version, [device.name for device in devices])
        self._watchers = watchers
        self._manager = manager

    def registered(self, success: bool) -> None:
        """Notes how the last registration went."""
        self.values.set("crosstrain_service_registered", success)

    def collect(self) -> Iterator[Any]:
        """All families, up to date."""
        with self._lock:
            if self._manager is not None:
                self._update(self._manager)
            self.runs.scraped()
            return self.values.collect()

    def _update(self, manager: RunManager) -> None:
        values = self.values
        state = manager.status()
        active = {(engine.name, engine.version, kind, name): 0.0 for engine in self._engines
                  for kind in _KINDS.values() for name in _STATES.values()}
        for run in state.unfinished:
            name = _STATES.get(run.state)
            if name is not None:  # it may have ended meanwhile
                labels = (run.engine, run.engine_version, _KINDS[run.kind], name)
                active[labels] = active.get(labels, 0.0) + 1
        values.replace("crosstrain_service_active_runs", active)
        values.replace("crosstrain_service_queue_runs", {(name,): n for name, n in state.waiting.items()})
        values.set("crosstrain_service_watchers", self._watchers())
        values.set("crosstrain_spool_size_bytes", state.spool_bytes)
        for name, folder in self._stores.items():
            try:
                free, size = free_and_size(folder)
            except OSError:  # a volume that went away: the series ends, and an alert says so
                values.remove(("crosstrain_store_free_bytes", "crosstrain_store_size_bytes"), (name,))
                continue
            values.set("crosstrain_store_free_bytes", free, (name,))
            values.set("crosstrain_store_size_bytes", size, (name,))
        samples = self._gpus.sample()
        values.replace("crosstrain_gpu_memory_used_bytes", {(s.name,): s.memory_used for s in samples})
        values.replace("crosstrain_gpu_memory_size_bytes", {(s.name,): s.memory_size for s in samples})
        values.replace("crosstrain_gpu_utilization_ratio", {
            (s.name,): s.utilization for s in samples if s.utilization is not None})
