"""Calls of services."""

from __future__ import annotations

import grpc

from crosstrain.registry import DESCRIBE_TIMEOUT, Registry
from crosstrain_protos.v1 import run_pb2, service_pb2, service_pb2_grpc
from crosstrain_service.errors import CrosstrainError

from .requests import Request

_START_TIMEOUT = 120.0


def channel_of(registry: Registry, service: str) -> grpc.Channel:
    """The channel to a service; raises ``SERVICE_UNREACHABLE`` if it never registered."""
    address = registry.address(service)
    if address is None:
        raise CrosstrainError("SERVICE_UNREACHABLE", f"the service {service} is not registered")
    return registry.channel(address)


def confirm(channel: grpc.Channel, service: str, engine: str, version: str) -> None:
    """Makes sure that an address still leads to a service: another may have got its port.

    Raises:
        CrosstrainError: ``SERVICE_UNREACHABLE`` if it is another one, ``ENGINE_NOT_FOUND`` if it no longer has the
            engine in that version.
        grpc.RpcError: nobody answers.
    """
    found = describe(channel, service, DESCRIBE_TIMEOUT)
    if not any((item.name, item.version) == (engine, version) for item in found.engines):
        raise CrosstrainError("ENGINE_NOT_FOUND", f"the service {service} no longer offers {engine}@{version}")


def describe(channel: grpc.Channel, service: str, timeout: float) -> service_pb2.DescribeResponse:
    """What the service at an address can do; raises as :func:`confirm` if it is another one or does not answer."""
    stub = service_pb2_grpc.TrainingServiceStub(channel)
    found = stub.Describe(service_pb2.DescribeRequest(), timeout=timeout)
    if found.service != service:
        raise CrosstrainError("SERVICE_UNREACHABLE", f"another service answers at the address of {service}")
    return found


def start_run(channel: grpc.Channel, request: Request) -> run_pb2.Run:
    """Sends a request to a service; the run that it began or knew already."""
    stub = service_pb2_grpc.TrainingServiceStub(channel)
    if isinstance(request, service_pb2.TrainRequest):
        return stub.Train(request, timeout=_START_TIMEOUT).run
    if isinstance(request, service_pb2.ProbeRequest):
        return stub.Probe(request, timeout=_START_TIMEOUT).run
    return stub.Evaluate(request, timeout=_START_TIMEOUT).run
