"""What a service is asked for, and which artifacts that and its answers name."""

from __future__ import annotations

from collections.abc import Iterable

from crosstrain_protos.v1 import data_pb2, run_pb2, service_pb2

Request = service_pb2.TrainRequest | service_pb2.EvaluateRequest | service_pb2.ProbeRequest


def parse_request(kind: int, data: bytes) -> Request:
    """The stored request of a run."""
    if kind == run_pb2.RUN_KIND_EVALUATE:
        return service_pb2.EvaluateRequest.FromString(data)
    if kind == run_pb2.RUN_KIND_PROBE:
        return service_pb2.ProbeRequest.FromString(data)
    return service_pb2.TrainRequest.FromString(data)


def artifacts_of_request(request: Request) -> list[str]:
    """Digests that must be stored at a service before it is asked."""
    spec = request.spec
    if isinstance(spec, run_pb2.ProbeSpec):
        return list(dict.fromkeys(digest for case in spec.cases for digest in _of_case(case)))
    digests = list(_of_dataset(spec.test)) if spec.HasField("test") else []
    if isinstance(spec, run_pb2.TrainSpec):
        digests += [
            *_of_dataset(spec.train),
            spec.training.learning_rates_digest,
            spec.initial_weights_digest,
        ]
    else:
        digests += spec.weights_digests
    return digests


def artifacts_of_event(event: run_pb2.RunEvent) -> list[str]:
    """Digests of results that an event names and that the coordinator keeps."""
    kind = event.WhichOneof("event")
    if kind == "result":
        digest = event.result.weights_digest
    elif kind == "evaluated":
        digest = event.evaluated.logits_digest
    elif kind == "probe_recorded":
        digest = event.probe_recorded.digest
    else:
        return []
    return [digest] if digest else []


def _of_case(case: run_pb2.ProbeCase) -> Iterable[str]:
    yield from _of_dataset(case.train)
    if case.HasField("test"):
        yield from _of_dataset(case.test)
    yield from (case.training.learning_rates_digest, case.initial_weights_digest)


def _of_dataset(dataset: data_pb2.Dataset) -> Iterable[str]:
    return (dataset.pixels_digest, dataset.labels_digest)
