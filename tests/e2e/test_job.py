"""One job over three engines: its results folder, its losses, its weights, its table."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crosstrain.results import JobRecord, Results, write_results
from crosstrain_service import weights

from . import inputs
from .platform import ENGINES, Platform, one

STEPS = 10
TOLERANCE = 1e-6
Available = Callable[..., list[str]]
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")


@pytest.fixture(scope="module")
def record(platform: Platform, available: Available, digits: tuple[Any, Any]) -> JobRecord:
    return platform.run(inputs.document(available(), cross_evaluate=True), digits, "main")


@pytest.fixture(scope="module")
def results(platform: Platform, record: JobRecord, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return write_results(platform.client, "main", tmp_path_factory.mktemp("results") / "out", record)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_results_csv_has_nine_columns_and_a_row_per_run(results: Results) -> None:
    found = rows(results.folder / "results.csv")
    assert list(found[0]) == [
        "timestamp", "framework", "model", "device", "batch_size", "train_time_sec", "accuracy_pct",
        "memory_peak_mb", "gpu_util_pct",
    ]  # fmt: skip
    assert [row["framework"].partition("@")[0] for row in found] == list(ENGINES)
    for row in found:
        assert (row["model"], row["device"], row["batch_size"]) == ("tiny", "cpu:0", "16")
        assert float(row["train_time_sec"]) > 0
        assert 0 <= float(row["accuracy_pct"]) <= 100
        assert 20 < float(row["memory_peak_mb"]) < 4000
        assert LINE.fullmatch(row["timestamp"] + " ")


def test_every_engine_has_a_file_of_its_own(results: Results) -> None:
    merged = rows(results.folder / "results.csv")
    for engine, row in zip(ENGINES, merged, strict=True):
        assert rows(results.folder / f"cnn2d_1layer_fullconnected_2layer_{engine}.csv") == [row]


def test_epochs_and_steps(results: Results) -> None:
    epochs = rows(results.folder / "epochs.csv")
    assert [(row["engine"], row["epoch"], row["last_step"]) for row in epochs] == [
        (engine, "0", str(STEPS - 1)) for engine in ENGINES
    ]
    table = pq.read_table(results.folder / "steps.parquet")
    assert table.num_rows == STEPS * len(ENGINES)
    kinds = {field.name: field.type for field in table.schema}
    text = pa.dictionary(pa.int32(), pa.string())
    seconds = {f"{name}_seconds" for name in ("step", "data", "copy", "compute", "sync", "callback")}
    assert kinds == {
        "engine": text, "version": text, "variant": text, "run_id": text, "repeat": pa.int32(), "step": pa.int64(),
        "epoch": pa.int32(), "loss": pa.float64(), "learning_rate": pa.float64(), "samples": pa.int32(),
        **dict.fromkeys(seconds, pa.float64()),
    }  # fmt: skip
    columns = table.to_pydict()
    assert columns["step"] == list(range(STEPS)) * len(ENGINES)
    assert set(columns["learning_rate"]) == {0.05}
    assert set(columns["samples"]) == {16}
    assert all(value > 0 for value in columns["step_seconds"])


def test_run_log(results: Results, record: JobRecord) -> None:
    lines = (results.folder / "run.log").read_text().splitlines()
    assert all(LINE.match(line) for line in lines)
    times = [line.split(" ", 1)[0] for line in lines]
    assert times == sorted(times)
    text = "\n".join(lines)
    assert "data train: 160 samples of 1x28x28, 10 classes, values divided by 255" in text
    assert "model tiny: " in text
    for run in record.training_runs():
        own = "\n".join(line for line in lines if f"[{run.label} #0]" in line)
        for part in ("environment: ", "epoch 1: train loss ", "peak memory ", "trained 10 steps", "succeeded"):
            assert part in own, (run.label, part)


def test_document_facts_and_summary(results: Results, record: JobRecord, platform: Platform) -> None:
    summary = json.loads((results.folder / "summary.json").read_text())
    assert summary["state"] == "succeeded"
    assert set(summary["files"]) == {path.name for path in results.folder.iterdir()}
    facts = json.loads((results.folder / "fingerprints.json").read_text())
    for run in record.training_runs():
        own = facts[run.run_id]
        assert own["data.train.pixels_digest"] == record.job.train.pixels_digest
        assert own["weights.initial_digest"] == record.job.initial_weights_digest
    # The document with its defaults filled in asks for the same job.
    again = platform.client.create_job(
        (results.folder / "job.yaml").read_text(), record.job.train, record.job.test, "again"
    )
    assert again.document == record.job.document
    assert again.initial_weights_digest == record.job.initial_weights_digest
    platform.client.cancel_job("again")
    list(platform.client.watch_job("again"))


def test_losses_stay_with_the_reference(record: JobRecord, results: Results) -> None:
    expected = one(record, "reference").steps()["loss"]
    assert len(expected) == STEPS and expected[-1] < expected[0]
    for engine in ENGINES[1:]:
        distance = np.abs(one(record, engine).steps()["loss"] - expected).max()
        assert 0 < distance <= TOLERANCE, engine  # float32 against float64: close, and not the same numbers
    compared = {item.engine: item for item in results.differences}
    assert set(compared) == set(ENGINES[1:])
    assert all(item.steps == STEPS and item.first_above is None for item in compared.values())


def test_weights_can_be_downloaded_and_agree(record: JobRecord, platform: Platform, tmp_path: Path) -> None:
    found = {}
    for engine in ENGINES:
        run = one(record, engine)
        assert run.result is not None
        path = tmp_path / f"{engine}.safetensors"
        platform.client.download(run.result.weights_digest, path)
        found[engine], _ = weights.from_bytes(path.read_bytes())
    expected = found["reference"]
    assert set(expected) == {f"{name}.{part}" for name in ("conv1", "dense1", "dense2") for part in ("weight", "bias")}
    for engine in ENGINES[1:]:
        assert {name: value.shape for name, value in found[engine].items()} == {
            name: value.shape for name, value in expected.items()
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[engine][name], value, rtol=0, atol=1e-5, err_msg=f"{engine} {name}")


def test_cross_evaluation_is_complete_and_agrees(results: Results, record: JobRecord) -> None:
    labels = [run.label for run in record.training_runs()]
    pairs = rows(results.folder / "cross_evaluation.csv")
    assert {(row["weights_of"], row["evaluated_in"]) for row in pairs} == {(a, b) for a in labels for b in labels}
    for row in pairs:
        assert row["images"] == str(inputs.TEST)
        assert row["images_differing"] == row["images_differing_within_rounding"]
    # An engine that evaluates its own weights finds what it found after its last epoch.
    accuracy = {row["framework"]: float(row["accuracy_pct"]) for row in rows(results.folder / "results.csv")}
    for row in pairs:
        if row["weights_of"] == row["evaluated_in"]:
            assert float(row["accuracy_pct"]) == pytest.approx(accuracy[row["weights_of"]], abs=1e-3)


def test_the_command_line_prints_the_same_as_json(
    record: JobRecord, platform: Platform, files: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    text = json.loads(inputs.document(["reference", "torch"], training={"max_steps": 3}))
    path.write_text(json.dumps({**text, "data": {"train": str(files[0]), "test": str(files[1])}}))
    ran = platform.crosstrain("run", path, "--json", "--results", tmp_path / "out", "--coordinator", platform.address)
    assert ran.code == 0, ran.err
    found = ran.json
    assert (found["state"], found["exit_code"], found["error"]) == ("succeeded", 0, None)
    assert [(run["engine"], run["state"], run["steps"]) for run in found["runs"]] == [
        ("reference", "succeeded", 3), ("torch", "succeeded", 3)
    ]  # fmt: skip
    # The command imported the same files by itself: the losses are bit for bit those of the first job.
    for run in found["runs"]:
        assert run["final_loss"] == one(record, run["engine"]).steps()["loss"][2]
    assert found["comparison"][0]["engine"] == "torch"
    assert found["comparison"][0]["largest"] <= TOLERANCE
    exported = platform.crosstrain("export-results", found["job_id"], tmp_path / "exported")
    assert exported.code == 0
    # The runs, then how far the others are from the reference.
    runs, distances = exported.out.split("|loss - reference|")
    for table, lines in ((runs, 2), (distances, 1)):
        assert len(re.findall(r"^(?:reference|torch)@", table, re.MULTILINE)) == lines
