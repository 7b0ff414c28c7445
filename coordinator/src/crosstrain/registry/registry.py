"""Registered services, their engines and their health."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from crosstrain.store import ServiceRow, ServiceStore
from crosstrain_protos.v1 import service_pb2, service_pb2_grpc
from crosstrain_service.convert import check_name
from crosstrain_service.errors import CrosstrainError, invalid_field

from .channels import Channels
from .resolve import Offer, resolve

_ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?):(\d{1,5})$")
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "[::]")
#: Seconds a service may take to say what it can do: its first answer may import frameworks.
DESCRIBE_TIMEOUT = 60.0


class Registry:
    """Services that registered and whose registration has not run out.

    Args:
        services: where registrations are kept.
        channels: connections to services.
        lease_seconds: a registration ends after this time unless it is renewed.
        single_host: all services share one machine although their addresses differ (containers).
    """

    def __init__(
        self, services: ServiceStore, channels: Channels, lease_seconds: int = 30, single_host: bool = False
    ) -> None:
        self._services = services
        self._channels = channels
        self._lease_seconds = lease_seconds
        self._single_host = single_host
        self._unhealthy: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def register(self, service: str, address: str, preferred: bool) -> int:
        """Registers a service or renews its registration, and returns the lease in seconds.

        The service is called back for its description.

        Raises:
            CrosstrainError: ``INVALID_FIELD`` for a malformed name or address or one that belongs
                to another service, ``SERVICE_UNREACHABLE`` if the call back fails.
        """
        check_name(service, "service")
        match = _ADDRESS.match(address)
        if not match or not 0 < int(match.group(3)) < 65536:
            raise invalid_field("address", f"{address[:80]!r} is not host:port")
        description = self._describe(address)
        if description.service != service:
            raise invalid_field("service", f"the service at that address calls itself {description.service[:80]!r}")
        expires = time.time_ns() + self._lease_seconds * 10**9
        self._services.save(ServiceRow(service, address, preferred, expires, description))
        self._unhealthy.discard(service)
        return self._lease_seconds

    def offers(self) -> list[Offer]:
        """All engines of all services whose registration has not run out."""
        return [offer for row in self._services.all() if row.live for offer in self._offers(row)]

    def resolve(self, wanted: str, field: str = "engines") -> Offer:
        """The engine that ``name`` or ``name@version`` means; see :func:`crosstrain.registry.resolve.resolve`."""
        return resolve(self.offers(), wanted, field)

    def find(self, service: str, engine: str, version: str) -> Offer | None:
        """One engine of one service, also when its registration has run out; None if it is not known."""
        for row in self._services.all():
            if row.service == service:
                for offer in self._offers(row):
                    if (offer.engine.name, offer.engine.version) == (engine, version):
                        return offer
        return None

    def address(self, service: str) -> str | None:
        """Where a service was last reached; None if it never registered."""
        return next((row.address for row in self._services.all() if row.service == service), None)

    def live(self, service: str) -> bool:
        """Whether the registration of a service has not run out."""
        return any(row.service == service and row.live for row in self._services.all())

    def channel(self, address: str) -> grpc.Channel:
        """The channel to a service."""
        return self._channels.get(address)

    def device_key(self, offer: Offer, kind: str, index: int, count: int = 1) -> str:
        """Names the devices that a run would use: runs with a device in common exclude one another.

        ``kind`` is "cpu", "cuda" or "" (a GPU where the service has one, else the CPU). ``count`` ranks use as many
        GPUs from ``index`` on ("localhost/cuda:0-3"), but one CPU.
        """
        names = [device.name for device in offer.devices]
        if not kind:
            kind = "cuda" if any(name.startswith("cuda") for name in names) else "cpu"
        host = offer.address.rpartition(":")[0].lower()
        if self._single_host or host in _LOCAL:
            host = "localhost"
        last = f"-{index + count - 1}" if kind == "cuda" and count > 1 else ""
        return f"{host}/{kind}:{index}{last}"

    def start(self, interval: float = 5.0) -> None:
        """Checks the health of all services every ``interval`` seconds from now on."""
        self._thread = threading.Thread(target=self._watch_health, args=(interval,), name="health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the checks."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def check_health(self) -> None:
        """Asks every live service once, by the standard health service."""
        rows = [row for row in self._services.all() if row.live]
        calls: list[tuple[str, Callable[[], health_pb2.HealthCheckResponse]]] = []
        for row in rows:
            stub = health_pb2_grpc.HealthStub(self.channel(row.address))
            calls.append((row.service, stub.Check.future(health_pb2.HealthCheckRequest(), timeout=3.0).result))
        for service, result in calls:
            try:
                serving = result().status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                serving = False
            (self._unhealthy.discard if serving else self._unhealthy.add)(service)

    def _watch_health(self, interval: float) -> None:
        while not self._stopping.wait(interval):
            try:
                self.check_health()
            except CrosstrainError:
                continue  # the store does not answer; the next round tries again

    def _describe(self, address: str) -> service_pb2.DescribeResponse:
        stub = service_pb2_grpc.TrainingServiceStub(self.channel(address))
        try:
            return stub.Describe(service_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT)
        except grpc.RpcError as error:
            message = f"the service cannot be reached at the address it gave ({error.code().name})"
            raise CrosstrainError("SERVICE_UNREACHABLE", message, "address") from error

    def _offers(self, row: ServiceRow) -> list[Offer]:
        healthy = row.live and row.service not in self._unhealthy
        devices = tuple(row.description.devices)
        return [
            Offer(row.service, row.address, row.preferred, healthy, engine, devices)
            for engine in row.description.engines
        ]
