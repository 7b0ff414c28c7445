"""Verdicts over real engines: a job, a check, native semantics, comparisons, damaged artifacts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crosstrain.compare.verdict import read_verdict
from crosstrain.results import JobRecord, Results, write_results
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError
from tests.support.service import Service, ServiceUnavailable

from . import inputs
from .platform import Platform

Available = Callable[..., list[str]]
#: A smaller last batch (160 = 6 * 24 + 16) and a rate that changes: all three cases of a probe.
TRAINING = {"batch_size": 24, "schedule": {"warmup_steps": 3}}


@pytest.fixture(scope="module")
def record(platform: Platform, available: Available, digits: tuple[Any, Any]) -> JobRecord:
    text = inputs.document(available("torch", "reference"), training=TRAINING, verdict={})
    return platform.run(text, digits, "judged")


@pytest.fixture(scope="module")
def results(platform: Platform, record: JobRecord, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return write_results(platform.client, "judged", tmp_path_factory.mktemp("judged") / "out", record)


@pytest.fixture(scope="module")
def theano(platform: Platform) -> Iterator[Service]:
    try:
        service = Service("keras_theano", options=("--coordinator", platform.address))
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))
    deadline = time.monotonic() + 120
    while not any(item.service == service.name and item.healthy for item in platform.client.list_engines()):
        assert time.monotonic() < deadline, "the service did not register"
        time.sleep(0.1)
    yield service
    service.close()


def verdict_of(platform: Platform, record: JobRecord) -> dict[str, Any]:
    return read_verdict(platform.client.read(record.job.verdict_digest))


def test_a_correct_engine_differs_by_rounding(results: Results) -> None:
    found = results.verdict
    assert found is not None
    assert (found["verdict"], found["exit_code"]) == ("ROUNDING", 0), found["sentence"]
    assert found["reference"]["engine"] == "reference"
    for engine in found["engines"]:
        certificate = engine["certificate"]
        assert certificate["cases"] == ["start", "rate-change", "last-batch"]
        assert certificate["failed"] == 0 and certificate["checks"] > 200
        assert not engine["causes"]
    assert found["envelope"]["runs"] == 4
    assert found["could_not_compare"] == []


def test_the_folder_holds_the_verdict_and_no_result_of_its_runs(results: Results, record: JobRecord) -> None:
    names = {path.name for path in results.folder.iterdir()}
    assert {"verdict.json", "verdict.junit.xml", "report.html", "results.csv"} <= names
    assert read_verdict(results.folder / "verdict.json") == results.verdict
    rows = (results.folder / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + 2
    purposes = [run.purpose for run in record.runs.values()]
    assert purposes.count(coordinator_pb2.RUN_PURPOSE_ENVELOPE) == 4
    assert len(record.training_runs()) == 2


def test_native_lasagne_departs_by_two_conventions(
    platform: Platform, available: Available, digits: tuple[Any, Any], theano: Service
) -> None:
    engines = [*available("torch"), "lasagne"]
    text = inputs.document(engines, name="native", task="check", semantics="native", verdict={})
    found = verdict_of(platform, platform.run(text, digits))
    assert (found["verdict"], found["exit_code"], found["semantics"]) == ("MISMATCH", 1, "native")
    torch, lasagne = found["engines"]
    assert torch["verdict"] == "ROUNDING"
    ids = {name for cause in lasagne["causes"] for name in cause["ids"]}
    assert ids == {"pool.ties_all", "relu.half_at_zero"}
    assert all(cause["restore"] for cause in lasagne["causes"])


def test_migrate_lists_what_changes(
    platform: Platform, available: Available, theano: Service, files: tuple[Path, Path], tmp_path: Path
) -> None:
    available("torch")
    job = tmp_path / "job.yaml"
    values = json.loads(inputs.document(["torch"]))
    job.write_text(json.dumps({**values, "data": {"train": str(files[0]), "test": str(files[1])}}))
    moved = ("--from", "lasagne", "--to", "torch")
    ran = platform.crosstrain("migrate", job, *moved, "--results", tmp_path / "out", "--json")
    assert ran.code == 1, ran.err
    assert {tuple(item["ids"]) for item in ran.json["lost"]} == {("pool.ties_all",), ("relu.half_at_zero",)}
    assert ran.json["gained"] == ran.json["shared"] == ran.json["unknown"] == []


def test_check_compare_and_verdict_commands(
    platform: Platform, available: Available, record: JobRecord, files: tuple[Path, Path], tmp_path: Path
) -> None:
    available("torch")
    job = tmp_path / "job.yaml"
    values = json.loads(inputs.document(["torch"]))
    job.write_text(json.dumps({**values, "data": {"train": str(files[0]), "test": str(files[1])}}))
    ran = platform.crosstrain("check", job, "--results", tmp_path / "checked")
    assert ran.code == 0, ran.err
    assert "ROUNDING: " in ran.out
    assert (tmp_path / "checked" / "report.html").is_file()
    ran = platform.crosstrain("compare", "judged/torch", "judged/reference", "--json", "--results", tmp_path / "two")
    assert ran.code == 0, ran.out + ran.err
    assert (ran.json["task"], ran.json["verdict"]) == ("compare", "ROUNDING")
    assert (tmp_path / "two" / "verdict.junit.xml").is_file()
    ran = platform.crosstrain("verdict", "judged")
    assert ran.code == 0
    assert "ROUNDING: " in ran.out
    ran = platform.crosstrain("compare", "judged/torch", "judged/torch")
    assert ran.code == 3
    assert "same one" in ran.err


def test_a_damaged_certificate_is_no_verdict(platform: Platform, record: JobRecord) -> None:
    probe = next(run for run in record.job.runs if run.purpose == coordinator_pb2.RUN_PURPOSE_PROBE)
    digest = probe.certificate_digest
    path = next(platform.folder.glob(f"**/artifacts/sha256/{digest[:2]}/{digest}"))
    whole = path.read_bytes()
    runs = [run.run.run_id for run in record.job.runs if run.purpose == coordinator_pb2.RUN_PURPOSE_TRAIN]
    try:
        for damaged in (whole[: len(whole) // 2], whole.replace(b"0", b"1", 1), b""):
            path.write_bytes(damaged)
            found = platform.client.compare_runs(*runs)
            document = read_verdict(platform.client.read(found.verdict_digest))
            assert (document["verdict"], document["exit_code"]) == ("INCONCLUSIVE", 3)
            assert any("damaged" in failure["reason"] for failure in document["could_not_compare"])
    finally:
        path.write_bytes(whole)
    assert platform.client.compare_runs(*runs).verdict == coordinator_pb2.VERDICT_ROUNDING


def test_only_finished_runs_of_one_kind_are_compared(platform: Platform, record: JobRecord) -> None:
    by_kind = {run.run.kind: run.run.run_id for run in record.job.runs}
    with pytest.raises(CrosstrainError) as caught:
        platform.client.compare_runs(by_kind[run_pb2.RUN_KIND_TRAIN], by_kind[run_pb2.RUN_KIND_PROBE])
    assert caught.value.reason == "WRONG_STATE"
    with pytest.raises(CrosstrainError) as caught:
        platform.client.compare_runs(by_kind[run_pb2.RUN_KIND_TRAIN], "nothing")
    assert caught.value.reason == "RUN_NOT_FOUND"
