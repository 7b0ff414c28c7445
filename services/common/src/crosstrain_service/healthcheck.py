"""Asks a service or the coordinator whether it serves: ``python -m crosstrain_service.healthcheck HOST:PORT``.

For the health check of a container, which has no other client. Exit status 0: it serves, 1: it does not.
"""

import sys
from typing import List, Optional

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_SECONDS = 4.0


def main(arguments: Optional[List[str]] = None) -> int:
    """Prints one line if it does not serve."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print("usage: python -m crosstrain_service.healthcheck HOST:PORT", file=sys.stderr)
        return 2
    try:
        with grpc.insecure_channel(given[0]) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS, wait_for_ready=False)
    except grpc.RpcError as error:
        print("%s: %s" % (given[0], error.code().name), file=sys.stderr)
        return 1
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        print("%s: %s" % (given[0], health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
