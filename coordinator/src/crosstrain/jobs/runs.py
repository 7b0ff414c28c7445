"""Runs of a job, with the requests that start them."""

from __future__ import annotations

from crosstrain.registry import Offer
from crosstrain.store import NewRun
from crosstrain_protos.v1 import run_pb2, service_pb2

from .naming import run_id


def train_run(job_id: str, offer: Offer, repeat: int, spec: run_pb2.TrainSpec, device_key: str) -> NewRun:
    """A training run."""
    name = run_id(job_id, offer.engine.name, offer.engine.version, str(repeat))
    request = service_pb2.TrainRequest(run_id=name, engine=offer.engine.name, spec=spec)
    return _run(name, run_pb2.RUN_KIND_TRAIN, repeat, offer, device_key, request)


def evaluate_run(job_id: str, offer: Offer, spec: run_pb2.EvaluateSpec, device_key: str) -> NewRun:
    """An evaluation run."""
    name = run_id(job_id, offer.engine.name, offer.engine.version, "evaluate")
    request = service_pb2.EvaluateRequest(run_id=name, engine=offer.engine.name, spec=spec)
    return _run(name, run_pb2.RUN_KIND_EVALUATE, 0, offer, device_key, request)


def _run(
    name: str,
    kind: run_pb2.RunKind.ValueType,
    repeat: int,
    offer: Offer,
    device_key: str,
    request: service_pb2.TrainRequest | service_pb2.EvaluateRequest,
) -> NewRun:
    return NewRun(
        run_id=name,
        kind=kind,
        repeat=repeat,
        service=offer.service,
        engine=offer.engine.name,
        engine_version=offer.engine.version,
        device_key=device_key,
        # The same bytes whenever it is sent again, so the service sees the same body.
        request=request.SerializeToString(deterministic=True),
    )
