"""The health check of containers."""

from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crosstrain_service import healthcheck


@pytest.fixture
def server():
    running = grpc.server(futures.ThreadPoolExecutor(2))
    running.health = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(running.health, running)
    running.address = "127.0.0.1:%d" % running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield running
    running.stop(0)


def test_status_follows_the_service(server, capsys):
    server.health.set("", health_pb2.HealthCheckResponse.SERVING)
    assert healthcheck.main([server.address]) == 0
    server.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert healthcheck.main([server.address]) == 1
    assert capsys.readouterr().err == server.address + ": NOT_SERVING\n"


def test_nobody_there_is_one_line(capsys):
    assert healthcheck.main(["127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "127.0.0.1:1: UNAVAILABLE\n"
    assert healthcheck.main([]) == 2
