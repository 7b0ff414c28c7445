"""What engines see of the data: each records its first training batch, in file order."""

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
from .jobfile import dataset


@dataclass(frozen=True)
class Seen:
    """SHA-256 of the input that one engine recorded, or why there is none."""

    engine: str
    digest: str
    error: str

    def verdict(self, expected: str) -> str:
        """In words."""
        if self.error:
            return self.error
        return "identical" if self.digest == expected else "DIFFERENT"


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


def expected_digest(info: DatasetInfo, samples: int, cache: DataCache) -> str:
    """SHA-256 of the first samples as float32(pixels) / float32(divisor), little-endian, C order."""
    pixels = cache.open(info.pixels_digest)[:samples]
    return _digest(np.asarray(pixels, dtype="<f4") / np.float32(info.divisor))


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
            result.append(Seen(engine, "", "no registered service offers it"))
            continue
        label = f"{chosen.description.name}@{chosen.description.version}"
        address = addresses.get(chosen.service)
        if not address:
            message = f"the address of its service {chosen.service} is not known; give --address"
            result.append(Seen(label, "", message))
            continue
        try:
            seen = _probe(address, chosen, info, cache, samples)
            result.append(Seen(label, _digest(seen), ""))
        except CrosstrainError as error:
            result.append(Seen(label, "", error.message))
        except grpc.RpcError as error:
            result.append(Seen(label, "", from_rpc(error).message))
    return result


def _probe(
    address: str, engine: coordinator_pb2.RegisteredEngine, info: DatasetInfo, cache: DataCache, samples: int
) -> NDArray[Any]:
    """The input that an engine recorded at its first step, as float32."""
    with grpc.insecure_channel(address) as channel:
        artifacts = artifact_pb2_grpc.ArtifactServiceStub(channel)
        training = service_pb2_grpc.TrainingServiceStub(channel)
        for digest in (info.pixels_digest, info.labels_digest):
            with open(cache.path(digest), "rb") as file:
                name, size = files.digest_of(file)
                files.upload(artifacts, name, size, file)
        case = _case(artifacts, dataset(info), min(samples, info.samples))
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
    return _as_float32(weights.from_bytes(data)[0]["input"])


def _case(
    artifacts: artifact_pb2_grpc.ArtifactServiceStub, train: data_pb2.Dataset, samples: int
) -> run_pb2.ProbeCase:
    """One step on the first samples in file order, through the smallest network that takes them."""
    layers = (Flatten("flatten"), Dense("dense1", train.classes))
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
        raise CrosstrainError("INVALID_DATA", "its input is not exactly a float32 number")
    return narrow


def _digest(values: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").tobytes()).hexdigest()
