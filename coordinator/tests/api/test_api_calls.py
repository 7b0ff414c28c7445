"""The coordinator's API from outside: errors, limits, artifacts, health, reflection, registration."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from crosstrain.rpc import from_rpc
from crosstrain_protos.v1 import (
    artifact_pb2,
    artifact_pb2_grpc,
    coordinator_pb2,
    coordinator_pb2_grpc,
    errors_pb2,
    run_pb2,
)
from crosstrain_service.errors import CODES, DOMAIN, CrosstrainError
from doubles.world import World, document, upload_dataset, wait_for


@pytest.fixture
def channel(world: World) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(world.server.address) as opened:
        yield opened


def reasons(error: grpc.RpcError) -> list[Any]:
    """The details of a status, each unpacked."""
    found = []
    for detail in rpc_status.from_call(error).details:
        is_info = detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)
        message = error_details_pb2.ErrorInfo() if is_info else error_details_pb2.BadRequest()
        assert detail.Unpack(message)
        found.append(message)
    return found


def test_errors_carry_standard_details(world: World, channel: grpc.Channel) -> None:
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    text = "name: x\nmodel: cnn2\nengines: []\nrepeats: many\n"
    with pytest.raises(grpc.RpcError) as caught:
        stub.CreateJob(coordinator_pb2.CreateJobRequest(document=text))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    info, bad = reasons(caught.value)
    assert (info.reason, info.domain) == ("INVALID_JOB", DOMAIN)
    fields = {item.field: item.description for item in bad.field_violations}
    assert set(fields) >= {"engines", "repeats"}
    assert "line 4" in fields["repeats"]


def test_every_reason_of_the_catalogue_has_a_status_code() -> None:
    names = {value.name.removeprefix("ERROR_REASON_") for value in errors_pb2.ErrorReason.DESCRIPTOR.values}
    names.remove("UNSPECIFIED")
    assert names == set(CODES)
    for code in CODES.values():
        assert hasattr(grpc.StatusCode, code)


def test_errors_within_a_stream_carry_details_too(world: World, channel: grpc.Channel) -> None:
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.WatchJob(coordinator_pb2.WatchJobRequest(job_id="none")))
    assert reasons(caught.value)[0].reason == "JOB_NOT_FOUND"
    digest = world.client.upload(b"x" * 2_000_000)
    path = world.server.artifacts.path(digest)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(1_500_000)
        file.write(b"y")
    chunks: list[int] = []
    stream = artifact_pb2_grpc.ArtifactServiceStub(channel).Read(artifact_pb2.ReadRequest(digest=digest))
    with pytest.raises(grpc.RpcError) as caught:
        chunks.extend(len(response.chunk) for response in stream)
    # The damage is found when all chunks are on their way already.
    assert sum(chunks) == 2_000_000
    assert max(chunks) <= 1 << 20
    assert caught.value.code() == grpc.StatusCode.DATA_LOSS
    assert reasons(caught.value)[0].reason == "ARTIFACT_CORRUPT"


def test_a_defect_says_nothing_about_the_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job_id: str) -> None:
        raise RuntimeError("/secret/path token=abc")

    monkeypatch.setattr(world.server.store.jobs, "job", broken)
    with pytest.raises(CrosstrainError) as caught:
        world.client.get_job("j")
    assert (caught.value.reason, caught.value.code) == ("INTERNAL", "INTERNAL")
    assert "secret" not in caught.value.message
    assert "Traceback" not in caught.value.message


def test_a_message_over_the_limit_is_refused(world: World) -> None:
    for size in (5 << 20, 20 << 20):
        with pytest.raises(CrosstrainError) as caught:
            world.client.create_job("#" * size)
        assert (caught.value.reason, caught.value.code) == ("LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED")
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job("#" * (2 << 20))
    assert (caught.value.reason, caught.value.field) == ("LIMIT_EXCEEDED", "document")


@pytest.mark.parametrize("job_id", ["a/b", "../x", "x" * 129, ".hidden", "ä"])
def test_malformed_job_ids_are_refused(world: World, job_id: str) -> None:
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(document(), job_id=job_id)
    assert (caught.value.reason, caught.value.field) == ("INVALID_FIELD", "job_id")


def test_the_longest_job_id_gives_legal_run_ids(world: World) -> None:
    service = world.service(engines=(("torch", "2.13.0+cpu"),))
    for job_id in ("a" * 128, "a" * 127 + "b"):
        job = world.finished(world.create(document(), job_id).job_id)
        assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", job.runs[0].run.run_id)
    assert len(service.executions) == 2


def test_listing_is_paged_and_checked(world: World, channel: grpc.Channel) -> None:
    world.service(steps=1)
    for index in range(5):
        world.create(document(), f"j{index}")
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    seen, token = [], ""
    while True:
        response = stub.ListJobs(coordinator_pb2.ListJobsRequest(page_size=2, page_token=token))
        seen += [job.job_id for job in response.jobs]
        token = response.next_page_token
        if not token:
            break
    assert seen == ["j4", "j3", "j2", "j1", "j0"]
    for request in ({"page_size": 1001}, {"page_size": -1}, {"page_token": "x"}, {"page_token": "9" * 30}):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListJobs(coordinator_pb2.ListJobsRequest(**request))
        assert from_rpc(caught.value).field == next(iter(request))


def test_a_watcher_sees_new_events_at_once(world: World) -> None:
    service = world.service(steps=1000, delay=0.05)
    world.create(document(), "j")
    wait_for(lambda: bool(service.running))
    stream = world.client.watch_job("j", after=world.client.get_job("j").last_sequence)
    delays = []
    for _ in range(5):
        event = next(stream)
        delays.append(time.time() - event.time.ToNanoseconds() / 1e9)
    assert sorted(delays)[2] < 0.5
    world.client.cancel_job("j")


def test_health_and_reflection(world: World, channel: grpc.Channel) -> None:
    checks = health_pb2_grpc.HealthStub(channel)
    for name in ("", "crosstrain.v1.CoordinatorService", "crosstrain.v1.ArtifactService"):
        status = checks.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="crosstrain.v1.CoordinatorService"),
    ]
    listed, file = stub.ServerReflectionInfo(iter(requests))
    names = {service.name for service in listed.list_services_response.service}
    assert {"crosstrain.v1.CoordinatorService", "crosstrain.v1.ArtifactService"} <= names
    descriptor = FileDescriptorProto.FromString(file.file_descriptor_response.file_descriptor_proto[0])
    assert descriptor.package == "crosstrain.v1"


# Artifacts.


def test_artifacts_go_there_and_back(world: World, tmp_path: Path) -> None:
    data = np.random.RandomState(0).bytes(3_000_001)
    source = tmp_path / "source"
    source.write_bytes(data)
    digest = world.client.upload(source)
    assert digest == hashlib.sha256(data).hexdigest()
    assert world.client.upload(data) == digest
    world.client.download(digest, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == data
    assert world.client.read(world.client.upload(b"")) == b""


def test_an_unknown_artifact_leaves_no_file(world: World, tmp_path: Path) -> None:
    with pytest.raises(CrosstrainError) as caught:
        world.client.download("0" * 64, tmp_path / "target")
    assert (caught.value.reason, caught.value.code) == ("ARTIFACT_NOT_FOUND", "NOT_FOUND")
    assert [path.name for path in tmp_path.iterdir() if "target" in path.name] == []


def write(channel: grpc.Channel, header: dict[str, Any], *chunks: bytes) -> artifact_pb2.WriteResponse:
    parts = [artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(**header))]
    parts += [artifact_pb2.WriteRequest(chunk=chunk) for chunk in chunks]
    return artifact_pb2_grpc.ArtifactServiceStub(channel).Write(iter(parts))


@pytest.mark.parametrize(("header", "chunks", "reason"), [
    ({"digest": hashlib.sha256(b"ab").hexdigest(), "size_bytes": 2}, [b"ac"], "ARTIFACT_CORRUPT"),
    ({"digest": hashlib.sha256(b"ab").hexdigest(), "size_bytes": 2}, [b"a"], "ARTIFACT_CORRUPT"),
    ({"digest": hashlib.sha256(b"ab").hexdigest(), "size_bytes": 1}, [b"ab"], "ARTIFACT_CORRUPT"),
    ({"digest": "AB" * 32, "size_bytes": 1}, [b"a"], "INVALID_FIELD"),
    ({"digest": "../../etc/passwd", "size_bytes": 1}, [b"a"], "INVALID_FIELD"),
    ({"digest": "0" * 64, "size_bytes": -1}, [], "INVALID_FIELD"),
    ({"digest": "0" * 64, "size_bytes": 2 << 20}, [b"x" * (1 << 20) + b"x"], "INVALID_FIELD"),
])
def test_wrong_artifacts_are_refused_and_leave_nothing(
    world: World, channel: grpc.Channel, header: dict[str, Any], chunks: list[bytes], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        write(channel, header, *chunks)
    assert from_rpc(caught.value).reason == reason
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    root = world.folder / "state" / "artifacts"
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_broken_upload_leaves_nothing(world: World, channel: grpc.Channel) -> None:
    def parts() -> Iterator[artifact_pb2.WriteRequest]:
        header = artifact_pb2.ArtifactHeader(digest="0" * 64, size_bytes=10 << 20)
        yield artifact_pb2.WriteRequest(header=header)
        yield artifact_pb2.WriteRequest(chunk=b"x" * 1000)
        time.sleep(0.3)
        call.cancel()

    call = artifact_pb2_grpc.ArtifactServiceStub(channel).Write.future(parts())
    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        call.result(timeout=10)
    root = world.folder / "state" / "artifacts"
    wait_for(lambda: [path for path in root.rglob("*") if path.is_file()] == [])


def test_stat_names_what_is_missing(world: World, channel: grpc.Channel) -> None:
    there = world.client.upload(b"there")
    stub = artifact_pb2_grpc.ArtifactServiceStub(channel)
    assert stub.Stat(artifact_pb2.StatRequest(digests=[there, "0" * 64])).missing == ["0" * 64]
    with pytest.raises(grpc.RpcError) as caught:
        stub.Stat(artifact_pb2.StatRequest(digests=["0" * 64] * 1001))
    assert from_rpc(caught.value).reason == "INVALID_FIELD"


# Registration.


def test_engines_are_listed_with_health_and_preference(world: World) -> None:
    old = world.service("old", engines=(("tensorflow", "2.12.1"),), preferred=True)
    world.service("new", engines=(("tensorflow", "2.21.0"), ("keras-tensorflow", "2.21.0")))
    listed = {(item.description.name, item.service): item for item in world.client.list_engines()}
    assert {key: item.preferred for key, item in listed.items()} == {
        ("tensorflow", "old"): True,
        ("tensorflow", "new"): False,
        ("keras-tensorflow", "new"): True,
    }
    assert all(item.healthy for item in listed.values())
    old.stop()
    world.server.registry.check_health()
    assert {item.service: item.healthy for item in world.client.list_engines()} == {"old": False, "new": True}


def test_a_registration_runs_out(tmp_path: Path) -> None:
    world = World(tmp_path, lease_seconds=1)
    try:
        service = world.service()
        assert world.client.register_service("fake", service.address) == 1
        assert len(world.client.list_engines()) == 1
        time.sleep(1.1)
        assert world.client.list_engines() == []
        with pytest.raises(CrosstrainError) as caught:
            world.create(document())
        assert caught.value.reason == "ENGINE_NOT_FOUND"
    finally:
        world.close()


@pytest.mark.parametrize(("service", "address", "reason"), [
    ("x/y", "127.0.0.1:1", "INVALID_FIELD"),
    ("x", "127.0.0.1", "INVALID_FIELD"),
    ("x", "http://127.0.0.1:80/", "INVALID_FIELD"),
    ("x", "127.0.0.1:99999", "INVALID_FIELD"),
    ("x", "127.0.0.1:1", "SERVICE_UNREACHABLE"),
])
def test_wrong_registrations_are_refused(world: World, service: str, address: str, reason: str) -> None:
    with pytest.raises(CrosstrainError) as caught:
        world.client.register_service(service, address)
    assert caught.value.reason == reason
    assert world.client.list_engines() == []


def test_a_service_cannot_take_the_name_of_another(world: World) -> None:
    service = world.service("own")
    with pytest.raises(CrosstrainError) as caught:
        world.client.register_service("other", service.address)
    assert caught.value.field == "service"


# Data by path.


def csv(path: Path, rows: int = 16) -> None:
    random = np.random.RandomState(0)
    header = ",".join(["label", *(f"pixel{index}" for index in range(64))])
    lines = [",".join(map(str, [row % 3, *random.randint(0, 256, 64)])) for row in range(rows)]
    path.write_text("\n".join([header, *lines]) + "\n")


@pytest.fixture
def with_data(tmp_path: Path) -> Iterator[World]:
    data = tmp_path / "data"
    data.mkdir()
    csv(data / "train.csv")
    csv(tmp_path / "outside.csv")
    (data / "link.csv").symlink_to(tmp_path / "outside.csv")
    (data / "inner.csv").symlink_to(data / "train.csv")
    (data / "folder").symlink_to(tmp_path)
    images = data / "images"
    (images / "a").mkdir(parents=True)
    (images / "a" / "x.png").symlink_to(tmp_path / "outside.csv")
    opened = World(tmp_path, data_dir=str(data))
    opened.service()
    yield opened
    opened.close()


def named(path: str) -> str:
    return document() + f"data: {{train: '{path}'}}\n"


@pytest.mark.parametrize("path", ["train.csv", "inner.csv", "./images/../train.csv"])
def test_files_of_the_data_directory_can_be_named(with_data: World, path: str) -> None:
    job = with_data.finished(with_data.client.create_job(named(path)).job_id)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    assert (job.train.samples, tuple(job.train.input_shape), job.train.classes) == (16, (1, 8, 8), 3)


@pytest.mark.parametrize(
    "path", ["../outside.csv", "link.csv", "folder/outside.csv", "/etc/passwd", "images", "folder", ".."]
)
def test_paths_out_of_the_data_directory_are_refused(with_data: World, path: str) -> None:
    with pytest.raises(CrosstrainError) as caught:
        with_data.client.create_job(named(path))
    assert (caught.value.reason, caught.value.field) == ("PATH_OUTSIDE_DATA", "data.train")
    assert str(with_data.folder) not in caught.value.message


def test_links_inside_linked_folders_are_followed(with_data: World) -> None:
    data = with_data.folder / "data"
    (data / "shared").mkdir()
    (data / "shared" / "x.png").symlink_to(with_data.folder / "outside.csv")
    (data / "tree").mkdir()
    (data / "tree" / "a").symlink_to(data / "shared")
    with pytest.raises(CrosstrainError) as caught:
        with_data.client.create_job(named("tree"))
    assert (caught.value.reason, caught.value.field) == ("PATH_OUTSIDE_DATA", "data.train")


def test_what_the_import_found_is_kept_with_the_job(with_data: World) -> None:
    data = with_data.folder / "data"
    train = (data / "train.csv").read_text().splitlines()
    header, rows = train[:1], train[1:]
    (data / "test.csv").write_text("\n".join(header + [row for row in rows if row[0] != "2"]) + "\n")
    text = document() + "data: {train: train.csv, test: test.csv}\n"
    created = with_data.client.create_job(text)
    texts = [remark.text for remark in created.remarks if remark.severity == "warning"]
    assert any("test has no sample of 1 classes: 2" in text for text in texts), texts
    assert any("test samples repeat the pixels of a training sample" in text for text in texts), texts
    assert with_data.client.get_job(created.job_id).remarks == created.remarks


def test_imported_bytes_share_the_divisor_of_the_training_data(with_data: World) -> None:
    data = with_data.folder / "data"
    train = (data / "train.csv").read_text().splitlines()
    width = train[1].count(",")
    dark = [",".join([str(label), *["0"] * width]) for label in range(3)]
    (data / "dark.csv").write_text("\n".join([train[0], *dark]) + "\n")
    job = with_data.client.create_job(document() + "data: {train: train.csv, test: dark.csv}\n")
    assert (job.train.divisor, job.test.divisor) == (255.0, 255.0)


@pytest.mark.parametrize(
    "remark",
    [
        run_pb2.LogLine(severity="fatal", text="x"),
        run_pb2.LogLine(severity="warning", text="a\nb"),
        run_pb2.LogLine(severity="warning", text="x" * 4001),
    ],
)
def test_remarks_of_clients_are_checked(world: World, remark: run_pb2.LogLine) -> None:
    world.service()
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(document(), upload_dataset(world.client), remarks=[remark])
    assert (caught.value.reason, caught.value.field.partition(".")[0]) == ("INVALID_FIELD", "remarks[0]")
    with pytest.raises(CrosstrainError) as caught:
        good = [run_pb2.LogLine(severity="warning", text="x")] * 201
        world.client.create_job(document(), upload_dataset(world.client), remarks=good)
    assert caught.value.reason == "LIMIT_EXCEEDED"


def test_a_missing_file_is_not_shown_with_its_folder(with_data: World) -> None:
    with pytest.raises(CrosstrainError) as caught:
        with_data.client.create_job(named("none.csv"))
    assert caught.value.reason == "INVALID_DATA"
    assert str(with_data.folder) not in caught.value.message


def test_without_a_data_directory_no_file_is_read(world: World) -> None:
    world.service()
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(named("/etc/passwd"))
    assert caught.value.reason == "PATH_OUTSIDE_DATA"


def test_too_many_watchers_are_refused_and_calls_go_on(world: World, channel: grpc.Channel) -> None:
    world.service(steps=1000, delay=0.1)
    world.create(document(), "j")
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
    streams = [stub.WatchJob(coordinator_pb2.WatchJobRequest(job_id="j")) for _ in range(64)]
    threads = [threading.Thread(target=next, args=(stream, None)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.WatchJob(coordinator_pb2.WatchJobRequest(job_id="j")))
    assert from_rpc(caught.value).reason == "LIMIT_EXCEEDED"
    assert world.client.get_job("j").job_id == "j"
    for stream in streams:
        stream.cancel()
    world.client.cancel_job("j")
