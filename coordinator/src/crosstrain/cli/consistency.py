"""What engines compute from the data: each records the input of its first training step, in file order.

Every engine probes the smallest network that takes the data, flatten and one dense layer. What it is handed is
recorded as ``input``. ``output/flatten`` is computed by the framework from the tensor that the framework made of
it, in the framework's own layout, and translated back to canonical layout. A value that was converted, scaled or
moved on the way into the framework shows there, and nowhere in ``input``.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from crosstrain.client import Client, files
from crosstrain.data import DataCache, DatasetInfo
from crosstrain.data.message import dataset_message
from crosstrain.launch.state import running, state_folder
from crosstrain.rpc import from_rpc
from crosstrain_protos.v1 import (
    artifact_pb2_grpc,
    coordinator_pb2,
    data_pb2,
    run_pb2,
    service_pb2,
    service_pb2_grpc,
    training_pb2,
)
from crosstrain_service import weights
from crosstrain_service.convert import model_message
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Dense, Flatten, Model

from .connect import offers_engine
from .exits import USAGE, CommandError

#: The layer whose output is the input as the framework sees it.
FLATTEN = "flatten"


@dataclass(frozen=True)
class Seen:
    """SHA-256 of every sample as one engine recorded it, or why there are none.

    ``handed`` are samples as they were handed to the engine, ``computed`` as the framework flattened them.
    """

    engine: str
    handed: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    error: str = ""

    def first_difference(self, expected: Sequence[str]) -> int | None:
        """The first sample, from 0, that is not as expected in either record."""
        pairs = (_first_difference(found, expected) for found in (self.handed, self.computed))
        return min((place for place in pairs if place is not None), default=None)

    def identical(self, expected: Sequence[str]) -> bool:
        """Whether every sample is as expected in both records."""
        return not self.error and self.first_difference(expected) is None

    def verdict(self, expected: Sequence[str]) -> str:
        """In words."""
        if self.error:
            return self.error
        place = self.first_difference(expected)
        if place is None:
            return "identical"
        where = "handed over" if _first_difference(self.handed, expected) is not None else "in the framework"
        return f"DIFFERENT {where}, from sample {place} on"


def _first_difference(found: Sequence[str], expected: Sequence[str]) -> int | None:
    for place, (left, right) in enumerate(zip(found, expected, strict=False)):
        if left != right:
            return place
    return None if len(found) == len(expected) else min(len(found), len(expected))


def summary_digest(digests: Sequence[str]) -> str:
    """One digest of several: SHA-256 of them, one after the other, as text. Empty without any."""
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""


def service_addresses(state_dir: Path | None, given: Sequence[str]) -> dict[str, str]:
    """Addresses of services by name: those of the local 'crosstrain up', and those given."""
    result: dict[str, str] = {}
    found = running(state_folder(state_dir))
    for service in found.services if found else ():
        if service["address"]:
            result[service["service"]] = service["address"]
    for text in given:
        name, separator, address = text.partition("=")
        if not separator or ":" not in address:
            raise CommandError(f"--address {text!r} is not SERVICE=HOST:PORT", USAGE)
        result[name] = address
    return result


def probe_engines(
    client: Client,
    addresses: dict[str, str],
    engines: Sequence[str],
    info: DatasetInfo,
    cache: DataCache,
    samples: int,
) -> list[Seen]:
    """Asks the engines one after the other."""
    registered = client.list_engines()
    result = []
    for engine in engines:
        offers = [item for item in registered if offers_engine(item, engine)]
        chosen = next((item for item in offers if item.preferred), offers[0] if offers else None)
        if chosen is None:
            result.append(Seen(engine, error="no registered service offers it"))
            continue
        label = f"{chosen.description.name}@{chosen.description.version}"
        address = addresses.get(chosen.service)
        if not address:
            message = f"the address of its service {chosen.service} is not known; give --address"
            result.append(Seen(label, error=message))
            continue
        try:
            record = _probe(address, chosen, info, cache, samples)
            handed, computed = (_digests(record[name]) for name in ("input", f"output/{FLATTEN}"))
            result.append(Seen(label, handed, computed))
        except CrosstrainError as error:
            result.append(Seen(label, error=error.message))
        except grpc.RpcError as error:
            result.append(Seen(label, error=from_rpc(error).message))
    return result


def _probe(
    address: str, engine: coordinator_pb2.RegisteredEngine, info: DatasetInfo, cache: DataCache, samples: int
) -> dict[str, NDArray[Any]]:
    """What an engine recorded at its first step."""
    with grpc.insecure_channel(address) as channel:
        artifacts = artifact_pb2_grpc.ArtifactServiceStub(channel)
        training = service_pb2_grpc.TrainingServiceStub(channel)
        for digest in (info.pixels_digest, info.labels_digest):
            with open(cache.path(digest), "rb") as file:
                name, size = files.digest_of(file)
                files.upload(artifacts, name, size, file)
        case = _case(artifacts, dataset_message(info), min(samples, info.samples))
        request = service_pb2.ProbeRequest(
            run_id=f"consistency-{secrets.token_hex(6)}",
            engine=engine.description.name,
            spec=run_pb2.ProbeSpec(cases=[case], execution=training_pb2.Execution(deterministic=True)),
        )
        training.Probe(request, timeout=60.0)
        stream: Any = training.WatchRun(service_pb2.WatchRunRequest(run_id=request.run_id), timeout=300.0)
        recorded = ""
        for response in stream:
            for event in response.events:
                kind = event.WhichOneof("event")
                if kind == "probe_recorded" and event.probe_recorded.HasField("error"):
                    raise CrosstrainError("ENGINE_FAILED", event.probe_recorded.error.message)
                if kind == "probe_recorded" and event.probe_recorded.step == 0:
                    recorded = event.probe_recorded.digest
                if kind == "state_changed" and event.state_changed.HasField("error"):
                    raise CrosstrainError("ENGINE_FAILED", event.state_changed.error.message)
        if not recorded:
            raise CrosstrainError("ENGINE_FAILED", "it recorded nothing")
        data = b"".join(files.download(artifacts, recorded))
    return dict(weights.from_bytes(data)[0])


def _case(
    artifacts: artifact_pb2_grpc.ArtifactServiceStub, train: data_pb2.Dataset, samples: int
) -> run_pb2.ProbeCase:
    """One step on the first samples in file order, through the smallest network that takes them."""
    layers = (Flatten(FLATTEN), Dense("dense1", train.classes))
    model = Model("input", tuple(train.input_shape), train.classes, layers).validate()
    rates = io.BytesIO()
    np.save(rates, np.full(1, 0.1), allow_pickle=False)
    settings = training_pb2.Training(
        epochs=1, max_steps=1, batch_size=samples, keep_order=True,
        learning_rates_digest=_store(artifacts, rates.getvalue()),
    )  # fmt: skip
    settings.optimizer.sgd.momentum = 0.0
    settings.optimizer.sgd.nesterov = False
    initial = _store(artifacts, weights.to_bytes(weights.initial_parameters(model, 0)))
    return run_pb2.ProbeCase(
        case_id="input", model=model_message(model), train=train, training=settings,
        initial_weights_digest=initial, steps=[0],
    )  # fmt: skip


def _store(artifacts: artifact_pb2_grpc.ArtifactServiceStub, data: bytes) -> str:
    with io.BytesIO(data) as file:
        digest, size = files.digest_of(file)
        files.upload(artifacts, digest, size, file)
    return digest


def _as_float32(values: NDArray[Any]) -> NDArray[Any]:
    """Values as little-endian float32; an engine that computes in float64 must have got the same numbers."""
    narrow = values.astype("<f4")
    if not np.array_equal(narrow.astype(values.dtype), values):
        raise CrosstrainError("INVALID_DATA", "what it recorded is not exactly a float32 number")
    return narrow


def _digests(values: NDArray[Any]) -> tuple[str, ...]:
    """SHA-256 of each sample, as :func:`crosstrain.data.sample_digests` takes them."""
    return tuple(hashlib.sha256(sample.tobytes()).hexdigest() for sample in _as_float32(values))
