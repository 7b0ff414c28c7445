"""The front of a training service: gRPC server, registration, recovery of runs."""

import argparse
import fcntl
import importlib
import logging
import os
import signal
import sys
import threading
from concurrent import futures
from typing import List, Optional

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from crosstrain_protos.v1 import (
    artifact_pb2,
    artifact_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    service_pb2,
    service_pb2_grpc,
)

from . import exposition
from .artifacts import ArtifactStore
from .describe import describe_package, devices
from .run_metrics import device_of
from .rundir import write_file
from .runs import RunManager
from .service_metrics import ServiceMetrics
from .servicer import MAX_WATCHERS, ArtifactServicer, TrainingServicer

_LOG = logging.getLogger("crosstrain.service")
#: No message of the API is larger.
MAX_MESSAGE = 4 << 20
#: Room that a service must find in its state folder, bytes.
_ROOM_BYTES = 256 << 10
#: Calls served at the same time: more than there may be watchers, which take one each, so that a
#: watcher never keeps another call waiting.
WORKERS = MAX_WATCHERS + 32


def parser() -> argparse.ArgumentParser:
    """The command line of a service."""
    result = argparse.ArgumentParser(
        prog="crosstrain_service",
        description="Serves the engines of one framework image over gRPC (TrainingService, ArtifactService, "
                    "health, reflection).")
    result.add_argument("--package", required=True, help="engine package to serve, for example crosstrain_torch")
    result.add_argument("--service", required=True, help="name of this service instance, for example torch")
    result.add_argument("--listen", default="127.0.0.1:0", help="address to listen on; port 0 takes a free one")
    result.add_argument("--state", required=True, help="folder for runs and artifacts; survives restarts")
    result.add_argument("--artifacts", help="folder of the artifact store (default: artifacts/ in the state folder); "
                                            "may be shared between services of one host")
    result.add_argument("--coordinator", help="coordinator to register with, host:port")
    result.add_argument("--advertise", help="address under which the coordinator reaches this service "
                                            "(default: the listening address)")
    result.add_argument("--preferred", action="store_true",
                        help="bare engine names mean this service when several have the engine")
    result.add_argument("--port-file", help="file to write the listening port to once the service is ready")
    result.add_argument("--drain-seconds", type=float, default=0.0,
                        help="when told to stop, wait at most so long for a checkpoint of each training run, where "
                             "runs end with the service, as in a container (default: 0, runs outlive the service)")
    result.add_argument("--metrics-port", type=_metrics_port, default="",
                        help="port of /metrics for Prometheus, on the host of --listen: a number, auto for any free "
                             "one, or 0 for none (default: %d, or none if that is in use)" % exposition.DEFAULT_PORT)
    result.add_argument("--metrics-port-file", help="file to write the port of /metrics to")
    return result


def _metrics_port(text: str) -> str:
    try:
        return exposition.check_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class Server:
    """A running front."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        package = importlib.import_module(options.package)
        environment = package.environment  # type: ignore[attr-defined]
        os.makedirs(options.state, mode=0o700, exist_ok=True)
        _check_room(options.state)
        self._lock = _lock_state(options.state)
        artifacts = ArtifactStore(options.artifacts or os.path.join(options.state, "artifacts"))
        artifacts.remove_abandoned()
        self._metrics = ServiceMetrics(options.service, {"state": options.state, "artifacts": artifacts.root})
        registry = exposition.registry_of(self._metrics)
        try:
            self._exposition = exposition.bind(options.listen, options.metrics_port, registry)
        except exposition.MetricsError as error:
            raise SystemExit(str(error)) from None
        if self._exposition is not None:
            self._exposition.start()
            if options.metrics_port_file:
                write_file(options.metrics_port_file, ("%d\n" % self._exposition.port).encode())
            _LOG.info("metrics are served on port %d", self._exposition.port)
        observe = self._metrics.runs.observe
        self._runs = RunManager(
            options.state, options.package, artifacts.root, environment,
            (lambda record, event: observe(record.run, device_of(record.stored.request), event))
            if self._exposition is not None else None)
        engines = describe_package(options.package, environment)
        for engine in engines:
            _LOG.info("engine %s %s%s", engine.name, engine.version,
                      ": " + engine.unavailable_reason if engine.unavailable_reason else "")
        found = devices()
        servicer = TrainingServicer(options.service, engines, found, self._runs, artifacts,
                                    getattr(package, "refusal", None))
        self._server = grpc.server(futures.ThreadPoolExecutor(WORKERS, "grpc"), options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_TrainingServiceServicer_to_server(servicer, self._server)
        artifact_pb2_grpc.add_ArtifactServiceServicer_to_server(ArtifactServicer(artifacts), self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [
            service_pb2.DESCRIPTOR.services_by_name["TrainingService"].full_name,
            artifact_pb2.DESCRIPTOR.services_by_name["ArtifactService"].full_name,
        ]
        reflection.enable_server_reflection(
            names + [health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._runs.recover(servicer.execution_of)
        try:
            self.port = self._server.add_insecure_port(options.listen)
        except RuntimeError:  # newer gRPC raises, older answers 0
            self.port = 0
        if not self.port:
            raise SystemExit("the service cannot start: it cannot listen on %s" % options.listen)
        self._server.start()
        for name in [""] + names:
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._metrics.attach(self._runs, lambda: servicer.watching, engines, found)
        self._stop = threading.Event()
        if options.coordinator:
            threading.Thread(target=self._register, name="registration", daemon=True).start()
        if options.port_file:
            write_file(options.port_file, ("%d\n" % self.port).encode())
        _LOG.info("service %s listens on port %d", options.service, self.port)

    def _register(self) -> None:
        """Registers with the coordinator again and again; a coordinator that is away is waited for."""
        options = self._options
        address = options.advertise or "%s:%d" % (options.listen.rpartition(":")[0], self.port)
        # A coordinator that was away for long is to be found again as soon as it is back.
        channel = grpc.insecure_channel(options.coordinator, options=[
            ("grpc.initial_reconnect_backoff_ms", 200), ("grpc.min_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2000)])
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        request = coordinator_pb2.RegisterServiceRequest(
            service=options.service, address=address, preferred=options.preferred)
        wait = 0.0
        failed = False
        while not self._stop.wait(wait):
            try:
                wait = max(1.0, stub.RegisterService(request, timeout=10).lease_seconds / 3.0)
                self._metrics.registered(True)
                failed = False
            except grpc.RpcError as error:
                if not failed:
                    _LOG.warning("registration at %s failed: %s", options.coordinator, error.code().name)
                self._metrics.registered(False)
                failed = True
                wait = 1.0
        channel.close()

    def stop(self) -> None:
        """Stops serving; running children go on and are adopted by the next front, or, where they end with
        this process, have saved a checkpoint before."""
        self._stop.set()
        self._health.enter_graceful_shutdown()
        if self._options.drain_seconds > 0:
            self._runs.drain(self._options.drain_seconds)
        self._runs.close()
        self._server.stop(1.0).wait()
        if self._exposition is not None:
            self._exposition.close()


def _check_room(folder: str) -> None:
    """Writes and removes a small file: a volume that is full or read-only is found now. Raises ``OSError``."""
    path = os.path.join(folder, ".room-%d" % os.getpid())
    try:
        write_file(path, b"\0" * _ROOM_BYTES)
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass


def _lock_state(folder: str) -> int:
    """Takes the state folder for this process alone."""
    handle = os.open(os.path.join(folder, "front.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit("another service uses the state folder %s" % folder) from None
    return handle


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs a service until it is told to stop."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    told = threading.Event()
    ready = threading.Event()

    def stop(number: int, frame: object) -> None:
        told.set()
        if not ready.is_set():
            raise SystemExit(0)

    # Before the port is announced: whoever reads it may stop the service at once.
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        server = Server(options)
    except (OSError, ImportError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = " (%s)" % error.filename if isinstance(error, OSError) and error.filename else ""
        print("the service cannot start: %s%s" % (reason, where), file=sys.stderr)
        return 3
    ready.set()
    told.wait()
    server.stop()
    return 0
