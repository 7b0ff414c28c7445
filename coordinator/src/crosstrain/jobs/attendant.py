"""What takes care of one run in a thread of its own."""

from __future__ import annotations

import threading

import grpc

from crosstrain.artifacts import ArtifactStore, send
from crosstrain.registry import Registry
from crosstrain.store import RunRow, Store
from crosstrain_protos.v1 import artifact_pb2_grpc

from .reaching import confirm
from .requests import Request, artifacts_of_request


class Attendant:
    """Takes care of one run.

    Everything is decided from what is stored, so it makes no difference whether this is the first process that does.

    Args:
        patience: a run fails after this many seconds without an answer that it needs.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, registry: Registry, run_id: str, patience: float
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._registry = registry
        self._run_id = run_id
        self._patience = patience
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Makes it return soon, wherever the run stands."""
        self._stopping.set()

    def _supply(self, channel: grpc.Channel, row: RunRow, service: str, request: Request) -> None:
        """Makes sure that a service can take the run, and has everything that the request names."""
        confirm(channel, service, row.engine, row.engine_version)
        stub = artifact_pb2_grpc.ArtifactServiceStub(channel)
        digests = artifacts_of_request(request)
        send(self._artifacts, stub, digests, go_on=lambda: not self._stopping.is_set())
