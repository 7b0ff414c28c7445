"""What is wrong in a request is named, nothing starts, no stack trace leaves a process, and work goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from crosstrain.client import Client
from crosstrain.rpc import from_rpc
from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc
from crosstrain_service import weights
from crosstrain_service.errors import CrosstrainError

from . import inputs
from .platform import Platform

Available = Callable[..., list[str]]
Data = tuple[Any, Any]
pytestmark = pytest.mark.usefixtures("reference")


@pytest.fixture
def reference(available: Available) -> None:
    available("reference")


def changed(**fields: Any) -> str:
    return inputs.document(["reference"], **fields)


def layers(*items: dict[str, Any]) -> dict[str, Any]:
    return {"name": "bad", "layers": list(items)}


DENSE = {"dense": {"units": "classes"}}
DOCUMENTS = {
    "unknown optimizer": (changed(training={"optimizer": {"sdg": {"learning_rate": 0.1}}}), "INVALID_JOB", "optimizer"),
    "two optimizers": (
        changed(training={"optimizer": {"sgd": {"learning_rate": 0.1}, "adam": {"learning_rate": 0.1}}}),
        "INVALID_JOB", "training.optimizer",
    ),
    "negative batch": (changed(training={"batch_size": -16}), "INVALID_JOB", "training.batch_size"),
    "negative epochs": (changed(training={"epochs": -1}), "INVALID_JOB", "training.epochs"),
    "negative channels": (
        changed(model=layers({"convolution": {"channels": -4, "kernel": 3}}, {"flatten": {}}, DENSE)),
        "INVALID_JOB", "model.layers[0]",
    ),
    "negative rate": (
        changed(training={"optimizer": {"sgd": {"learning_rate": -0.1}}}), "INVALID_JOB", "learning_rate",
    ),
    "rate that is no number": (
        changed(training={"optimizer": {"sgd": {"learning_rate": float("nan")}}}), "INVALID_JOB", "learning_rate",
    ),
    "batch beyond the data": (changed(training={"batch_size": 161}), "INVALID_JOB", "training.batch_size"),
    "kernel beyond the image": (
        changed(model=layers({"convolution": {"channels": 4, "kernel": 29}}, {"flatten": {}}, DENSE)),
        "INVALID_MODEL", "model.layers[0]",
    ),
    "no flatten": (changed(model=layers(DENSE)), "INVALID_MODEL", "model.layers[0]"),
    "outputs that are not the classes": (
        changed(model=layers({"flatten": {}}, {"dense": {"units": 7}})), "INVALID_MODEL", "model",
    ),
    "kernel of three dimensions": (
        changed(model=layers({"convolution": {"channels": 4, "kernel": [3, 3, 3]}}, {"flatten": {}}, DENSE)),
        "INVALID_JOB", "model.layers[0].convolution.kernel",
    ),
    "unknown engine": (inputs.document(["torhc"]), "ENGINE_NOT_FOUND", "engines[0]"),
    "unknown version": (inputs.document(["reference@9"]), "ENGINE_NOT_FOUND", "engines[0]"),
    "unknown field": (changed(repeat=3), "INVALID_JOB", "repeat"),
    "unknown compiler": (changed(execution={"compiler": "fastest"}), "UNSUPPORTED", "engines[0]"),
    "no YAML": ("name: [", "INVALID_JOB", ""),
    "a tag": ("name: !!python/object/apply:os.system ['true']", "INVALID_JOB", ""),
    "empty": ("", "INVALID_JOB", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", DOCUMENTS)
def test_documents(platform: Platform, digits: Data, case: str) -> None:
    text, reason, field = DOCUMENTS[case]
    error = platform.refused(text, digits)
    assert error.reason == reason, error.message
    fields = [error.field, *(violation.field for violation in error.violations)]
    assert any(field in name for name in fields), (fields, error.message)
    codes = {"ENGINE_NOT_FOUND": "NOT_FOUND", "UNSUPPORTED": "FAILED_PRECONDITION"}
    assert error.code == codes.get(reason, "INVALID_ARGUMENT")


@pytest.mark.parametrize("case", ["unknown optimizer", "negative batch", "kernel beyond the image", "unknown field"])
def test_documents_on_the_command_line(
    platform: Platform, files: tuple[Path, Path], tmp_path: Path, case: str
) -> None:
    text, _, field = DOCUMENTS[case]
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**json.loads(text), "data": {"train": str(files[0])}}, indent=1))
    ran = platform.crosstrain("submit", path)
    assert (ran.code, ran.out) == (3, "")
    assert f"{path}:" in ran.err
    assert field in ran.err


def test_wrong_usage_of_the_command_line(platform: Platform, tmp_path: Path) -> None:
    assert platform.crosstrain("run").code == 64
    assert platform.crosstrain("evaluate", tmp_path / "job.yaml").code == 64
    missing = platform.crosstrain("run", tmp_path / "none.yaml")
    assert missing.code == 3 and "none.yaml" in missing.err


def test_labels_outside_of_the_classes(platform: Platform, digits: Data) -> None:
    train = digits[0]
    labels = np.arange(inputs.TRAIN, dtype="<i8") % 10
    labels[17] = 10
    wrong = type(train)()
    wrong.CopyFrom(train)
    wrong.labels_digest = platform.client.upload(inputs.npy(labels))
    error = platform.refused(changed(), (wrong, None))
    assert (error.reason, error.field) == ("INVALID_DATA", "train.labels_digest")
    assert "sample 17 has the label 10" in error.message


def test_labels_and_values_in_files(platform: Platform) -> None:
    pixels = np.zeros((4, 16), dtype=np.int64)
    inputs.write_csv(platform.data_dir / "ones.csv", np.array([1, 2, 3, 4]), pixels)
    error = platform.refused(changed(data={"train": "ones.csv"}))
    assert error.reason == "INVALID_DATA" and "label" in error.message
    text = (platform.data_dir / "ones.csv").read_text().replace("4,0", "4,?", 1)
    (platform.data_dir / "marks.csv").write_text(text)
    error = platform.refused(changed(data={"train": "marks.csv"}))
    assert error.reason == "INVALID_DATA"
    assert "marks.csv" in error.message and "?" in error.message and "row 5" in error.message


@pytest.mark.parametrize(
    "name", ["../outside.csv", "digits/../../outside.csv", "link.csv", "/etc/passwd", "linked/outside.csv"]
)
def test_paths_outside_of_the_data_directory(platform: Platform, name: str) -> None:
    outside = inputs.write_csv(platform.folder / "outside.csv", np.arange(2), np.zeros((2, 16), dtype=np.int64))
    for link, target in (("link.csv", outside), ("linked", platform.folder)):
        path = platform.data_dir / link
        if not path.is_symlink():
            path.symlink_to(target)
    error = platform.refused(changed(data={"train": name}))
    assert (error.reason, error.field, error.code) == ("PATH_OUTSIDE_DATA", "data.train", "INVALID_ARGUMENT")


def test_weights_that_cannot_be_used(
    platform: Platform, digits: Data, files: tuple[Path, Path], tmp_path: Path
) -> None:
    whole = weights.to_bytes({"conv1.weight": np.zeros((4, 1, 3, 3), np.float32)})
    foreign = {
        "truncated": whole[:-7],
        "pickle": b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
        "empty": b"",
        "huge header": (1 << 62).to_bytes(8, "little") + b"{}",
        "another model": whole,
        "not finite": whole.replace(bytes(4), np.float32("nan").tobytes()),
    }
    for what, data in foreign.items():
        digest = platform.client.upload(data)
        error = platform.refused(changed(task="evaluate", weights=[digest]), (None, digits[1]))
        assert (error.reason, error.field) == ("INVALID_WEIGHTS", "weights[0]"), what
        error = platform.refused(changed(initial_weights=digest), digits)
        assert (error.reason, error.field) == ("INVALID_WEIGHTS", "initial_weights"), what
    unknown = "0" * 64
    error = platform.refused(changed(task="evaluate", weights=[unknown]), (None, digits[1]))
    assert (error.reason, error.field) == ("ARTIFACT_NOT_FOUND", "weights[0]")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**json.loads(changed()), "data": {"test": str(files[1])}}))
    (tmp_path / "cut.safetensors").write_bytes(foreign["truncated"])
    ran = platform.crosstrain("evaluate", path, "--weights", tmp_path / "cut.safetensors", "--json")
    assert ran.code == 3
    assert ran.json["error"]["reason"] == "INVALID_WEIGHTS"
    missing = platform.crosstrain("evaluate", path, "--weights", tmp_path / "none.safetensors")
    assert missing.code == 3 and "none.safetensors" in missing.err


def test_messages_over_the_limit(platform: Platform, digits: Data) -> None:
    with grpc.insecure_channel(platform.address) as channel:
        stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        artifacts = artifact_pb2_grpc.ArtifactServiceStub(channel)
        calls: list[Callable[[], Any]] = [
            lambda: stub.CreateJob(coordinator_pb2.CreateJobRequest(document="#" * (5 << 20)), timeout=30),
            lambda: stub.CreateJob(coordinator_pb2.CreateJobRequest(document="#" * (20 << 20)), timeout=30),
            lambda: artifacts.Write(iter([artifact_pb2.WriteRequest(chunk=bytes(5 << 20))]), timeout=30),
            lambda: stub.CreateJob(coordinator_pb2.CreateJobRequest(job_id="x" * 200), timeout=30),
        ]
        for call in calls[:3]:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            error = from_rpc(caught.value)
            assert error.reason == "LIMIT_EXCEEDED"
            assert "Traceback" not in error.message
        with pytest.raises(grpc.RpcError) as caught:
            calls[3]()
        assert from_rpc(caught.value).field == "job_id"
    error = platform.refused("# " + "x" * (2 << 20) + "\n" + changed(), digits)
    assert error.reason == "LIMIT_EXCEEDED"
    assert (error.field, "1048576 bytes" in error.message) == ("document", True)


def test_services_refuse_what_the_coordinator_would_never_send(platform: Platform) -> None:
    from crosstrain_protos.v1 import run_pb2, service_pb2

    service = platform.services["reference"]
    requests = {
        "run_id": service_pb2.TrainRequest(run_id="../../etc", engine="reference"),
        "spec": service_pb2.TrainRequest(run_id="a", engine="reference", spec=run_pb2.TrainSpec()),
    }
    for field, request in requests.items():
        with pytest.raises(grpc.RpcError) as caught:
            service.training.Train(request, timeout=30)
        error = from_rpc(caught.value)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert field in error.field or field in error.message, (error.field, error.message)
    with pytest.raises(grpc.RpcError) as caught:
        service.training.Train(service_pb2.TrainRequest(run_id="a", engine="../x"), timeout=30)
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_afterwards_a_good_job_succeeds(platform: Platform, digits: Data) -> None:
    record = platform.run(changed(training={"max_steps": 2}), digits)
    assert record.training_runs()[0].last_step == 1
    assert "Traceback" not in platform.log


def test_a_client_of_a_dead_address_gets_an_error_of_the_catalogue() -> None:
    with Client("127.0.0.1:9", timeout=1, retry=0) as client, pytest.raises(CrosstrainError) as caught:
        client.get_job("x")
    assert caught.value.reason == "SERVICE_UNREACHABLE"
