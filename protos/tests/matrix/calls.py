"""A server and a client of every service of the API that check each other's messages.

Every RPC is called. The client sends the samples of the request type, the server compares
them field by field with its own and answers with the samples of the response type, which the
client compares in turn. Python 3.7 syntax.
"""

from concurrent import futures

import grpc
from crosstrain_protos.v1 import (
    artifact_pb2,
    artifact_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    service_pb2,
    service_pb2_grpc,
)
from google.protobuf import descriptor_pb2
from samples import MAX_VARIANTS, message_classes, sample

SERVICES = (
    (artifact_pb2, artifact_pb2_grpc, "ArtifactService"),
    (coordinator_pb2, coordinator_pb2_grpc, "CoordinatorService"),
    (service_pb2, service_pb2_grpc, "TrainingService"),
)

_DEADLINE_SECONDS = 20
_STREAM = range(MAX_VARIANTS)


def start_server():
    """Starts a server of all services on a free local port; returns (server, port)."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    for module, stubs, name in SERVICES:
        add = getattr(stubs, f"add_{name}Servicer_to_server")
        add(_servicer(module, getattr(stubs, name + "Servicer"), name)(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def call_everything(port):
    """Calls every RPC of every service; returns the full names of those called.

    Raises AssertionError if a response differs, grpc.RpcError if the server refused a request.
    """
    called = []
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    try:
        for module, stubs, name in SERVICES:
            stub = getattr(stubs, name + "Stub")(channel)
            for method in _methods(module, name):
                _call(stub, method)
                called.append(f"{name}.{method.name}")
    finally:
        channel.close()
    return called


def _call(stub, method):
    request_class, response_class = _classes(method)
    call = getattr(stub, method.name)
    for variant in (0,) if method.client_streaming else _STREAM:
        if method.client_streaming:
            argument = iter([sample(request_class, number) for number in _STREAM])
        else:
            argument = sample(request_class, variant)
        answer = call(argument, timeout=_DEADLINE_SECONDS)
        if method.server_streaming:
            _expect_stream(method, answer, response_class)
        elif method.client_streaming:
            _expect(method, answer, response_class, 0)
        else:
            _expect(method, answer, response_class, _variant_of(argument, method))


def _servicer(module, base, name):
    members = {}
    for method in _methods(module, name):
        members[method.name] = _handler(method)
    return type(name + "Sample", (base,), members)


def _handler(method):
    request_class, response_class = _classes(method)

    def unary(_self, request, _context):
        return sample(response_class, _variant_of(request, method))

    def server_stream(_self, request, _context):
        _variant_of(request, method)
        for number in _STREAM:
            yield sample(response_class, number)

    def client_stream(_self, requests, _context):
        _expect_stream(method, requests, request_class)
        return sample(response_class, 0)

    if method.client_streaming and method.server_streaming:
        raise AssertionError(f"{method.name} streams both ways, which no RPC of the API did before")
    if method.client_streaming:
        return client_stream
    return server_stream if method.server_streaming else unary


def _variant_of(request, method):
    # Messages without fields are the same in all variants: the first one counts.
    request_class = _classes(method)[0]
    for number in _STREAM:
        if request == sample(request_class, number):
            return number
    raise AssertionError(f"the request of {method.name} is none of the samples: {request}")


def _methods(module, name):
    # The proto form of the descriptor says in every release which side streams.
    description = descriptor_pb2.ServiceDescriptorProto()
    module.DESCRIPTOR.services_by_name[name].CopyToProto(description)
    return list(description.method)


def _classes(method):
    known = message_classes()
    return known[method.input_type.lstrip(".")], known[method.output_type.lstrip(".")]


def _expect_stream(method, messages, message_class):
    received = list(messages)
    assert len(received) == MAX_VARIANTS, f"{method.name}: {len(received)} messages"
    for number, message in enumerate(received):
        _expect(method, message, message_class, number)


def _expect(method, message, message_class, variant):
    expected = sample(message_class, variant)
    assert message == expected, f"{method.name}: got {message} instead of {expected}"
