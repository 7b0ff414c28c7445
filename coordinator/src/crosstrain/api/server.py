"""The coordinator's process: all parts put together behind one gRPC server."""

from __future__ import annotations

import logging
import os
import tempfile
from concurrent import futures
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from crosstrain.artifacts import ArtifactStore
from crosstrain.jobs import Datasets, JobCreator, Judgement, Planner, Scheduler
from crosstrain.judging.pool import Pool
from crosstrain.metrics import CoordinatorMetrics
from crosstrain.registry import MESSAGE_LIMIT, Channels, Registry
from crosstrain.rpc import ErrorInterceptor
from crosstrain.store import Store
from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc
from crosstrain_service import exposition

from .artifact_servicer import ArtifactServicer
from .coordinator_servicer import MAX_WATCHERS, CoordinatorServicer
from .settings import Settings

_LOG = logging.getLogger("crosstrain.api")
#: Threads for calls that are not streams, beside one for each stream.
CALL_WORKERS = 32
#: Room that there must be in the state folder.
_ROOM_BYTES = 256 << 10


class CoordinatorServer:
    """A coordinator. Every instance may be started once.

    Raises:
        CrosstrainError: the store or the artifact storage cannot be opened.
        OSError: the address cannot be listened on.
        MetricsError: the port of the metrics cannot be bound.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        state = settings.state
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_room(state)
        self.store = Store(settings.database)
        self.artifacts = ArtifactStore(settings.artifacts, state / "incoming")
        self.artifacts.check()
        self._channels = Channels()
        self.registry = Registry(
            self.store.services, self._channels, settings.lease_seconds, single_host=settings.single_host
        )
        data_dir = Path(settings.data_dir) if settings.data_dir else None
        datasets = Datasets(self.artifacts, state / "imported", data_dir)
        planner = Planner(self.artifacts, self.registry, datasets)
        # Half of the cores: engines are at work meanwhile. Comparisons that somebody waits for come beside them.
        judges = max(1, min(4, available_cores() // 2))
        pool = Pool(settings.database, settings.artifacts, judges)
        judgement = Judgement(self.store, self.artifacts, self.registry, pool, judges)
        self._comparing = Pool(settings.database, settings.artifacts, judges)
        self._scheduler = Scheduler(
            self.store, self.artifacts, self.registry, judgement, settings.patience_seconds
        )
        creator = JobCreator(self.store, planner)
        self._servicer = CoordinatorServicer(self.store, self.registry, creator, self._comparing)
        self._health = health.HealthServicer()
        self._server = self._build()
        try:
            self._port = self._server.add_insecure_port(settings.listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {settings.listen}") from error
        folders = {"state": state}
        if "://" not in settings.artifacts:
            folders["artifacts"] = Path(settings.artifacts)
        metrics = CoordinatorMetrics(self.store, self.registry, lambda: self._servicer.watching, folders)
        self._exposition = exposition.bind(
            settings.listen, settings.metrics_port, exposition.registry_of(metrics)
        )

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    @property
    def address(self) -> str:
        """host:port for clients on this machine."""
        host = self._settings.listen.rpartition(":")[0]
        return f"{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{self._port}"

    def start(self) -> None:
        """Serves, and goes on with all unfinished jobs."""
        self._scheduler.start()
        self.registry.start()
        self._server.start()
        for name in ("", *_names()):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        if self._exposition is not None:
            self._exposition.start()
            if self._settings.metrics_port_file:
                _write_file(Path(self._settings.metrics_port_file), f"{self._exposition.port}\n")
            _LOG.info("metrics are served on port %d", self._exposition.port)
        if self._settings.port_file:
            _write_file(Path(self._settings.port_file), f"{self._port}\n")
        _LOG.info("the coordinator listens on port %d", self._port)

    def stop(self, grace: float = 2.0) -> None:
        """Stops serving and following; runs go on in their services."""
        self._health.enter_graceful_shutdown()
        self._servicer.stop()
        self._server.stop(grace).wait()
        if self._exposition is not None:
            self._exposition.close()
        self.registry.stop()
        self._scheduler.stop()
        self._comparing.close()
        self._channels.close()
        self.store.close()

    def wait(self) -> None:
        """Returns when the server has stopped."""
        self._server.wait_for_termination()

    def _build(self) -> grpc.Server:
        server = grpc.server(
            futures.ThreadPoolExecutor(MAX_WATCHERS + CALL_WORKERS, "grpc"),
            interceptors=[ErrorInterceptor(MESSAGE_LIMIT)],
            options=[
                # Above the API's limit, so that the interceptor can refuse with details.
                ("grpc.max_receive_message_length", 2 * MESSAGE_LIMIT),
                ("grpc.max_send_message_length", MESSAGE_LIMIT),
                ("grpc.so_reuseport", 0),
            ],
        )
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(self._servicer, server)
        artifact_pb2_grpc.add_ArtifactServiceServicer_to_server(ArtifactServicer(self.artifacts), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*_names(), health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        return server


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_room(folder: Path) -> None:
    """Writes and removes a file: a folder without room is told better here than by SQLite. Raises ``OSError``."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".room-") as file:
        file.write(bytes(_ROOM_BYTES))


def _names() -> tuple[str, str]:
    return (
        coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"].full_name,
        artifact_pb2.DESCRIPTOR.services_by_name["ArtifactService"].full_name,
    )


def _write_file(path: Path, text: str) -> None:
    """Written aside and renamed: whoever sees the file sees all of it."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    aside.write_text(text, encoding="ascii")
    os.replace(aside, path)
