"""The results folder: columns, one row per step, names of files, formula injection, overwriting."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from crosstrain.results import check_folder, write_results
from crosstrain.results.cross_evaluation import rounding_estimate
from crosstrain.results.files import csv_text, json_text
from crosstrain.results.tables import file_name
from crosstrain_protos.v1 import run_pb2
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.testing import cnn2
from doubles.recorded import Recording, full_recording

COLUMNS = (
    "timestamp,framework,model,device,batch_size,train_time_sec,accuracy_pct,memory_peak_mb,gpu_util_pct"
)


def written(recording: Any, folder: Path) -> Path:
    write_results(recording, recording.job.job_id, folder)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    recording = full_recording()
    recording.end()
    return written(recording, tmp_path / "out")


def test_results_csv_has_exactly_the_columns_and_a_row_per_run(results: Path) -> None:
    lines = (results / "results.csv").read_text().splitlines()
    assert lines[0] == COLUMNS
    assert len(lines) == 5
    first = rows(results / "results.csv")[1]
    assert first["framework"] == "torch@2.13.0"
    assert first["model"] == "cnn2"
    assert first["device"] == "cpu:0"
    assert first["batch_size"] == "8"
    assert float(first["train_time_sec"]) == 4.0
    assert float(first["accuracy_pct"]) == 87.5
    assert float(first["memory_peak_mb"]) == 250.0
    assert first["gpu_util_pct"] == ""
    assert re.fullmatch(r"2023-11-14T22:13:20\.\d{3}Z", first["timestamp"])


def test_one_file_per_model_and_engine_with_the_version_where_there_are_several(results: Path) -> None:
    names = sorted(path.name for path in results.glob("cnn2d_*"))
    assert names == [
        "cnn2d_2layer_fullconnected_2layer_keras_tensorflow_2.12.0.csv",
        "cnn2d_2layer_fullconnected_2layer_keras_tensorflow_3.15.1.csv",
        "cnn2d_2layer_fullconnected_2layer_reference.csv",
        "cnn2d_2layer_fullconnected_2layer_torch.csv",
    ]
    for name in names:
        lines = (results / name).read_text().splitlines()
        assert lines[0] == COLUMNS
        assert len(lines) == 2


def test_the_name_of_a_file_follows_the_pattern() -> None:
    model = cnn2(channels=(2, 3, 4), units=5)
    assert file_name(model, "keras-tensorflow") == "cnn2d_3layer_fullconnected_2layer_keras_tensorflow.csv"
    assert file_name(model, "../x", "1/2") == "cnn2d_3layer_fullconnected_2layer_.._x_1_2.csv"


def test_steps_parquet_has_one_row_per_step_and_run(results: Path) -> None:
    table = pq.read_table(results / "steps.parquet")
    expected = {"engine", "version", "variant", "repeat", "step", "epoch", "loss", "learning_rate", "step_seconds",
                "data_seconds", "copy_seconds", "compute_seconds", "sync_seconds", "callback_seconds", "samples",
                "run_id"}  # fmt: skip
    assert set(table.column_names) == expected
    assert str(table.schema.field("loss").type) == "double"
    frame = table.to_pydict()
    assert len(frame["step"]) == 4 * 8
    pairs = list(zip(frame["run_id"], frame["step"], strict=True))
    assert len(set(pairs)) == len(pairs)
    torch = [
        loss for engine, loss in zip(frame["engine"], frame["loss"], strict=True) if engine == "torch"
    ]
    assert torch[:4] == [2.0, 1.9, 1.8, 1.7]
    assert max(torch[4:]) < 2.0, "records of the attempt that was killed are left out"


def test_epochs_csv(results: Path) -> None:
    found = [row for row in rows(results / "epochs.csv") if row["engine"] == "torch"]
    assert [(row["epoch"], row["last_step"]) for row in found] == [("0", "3"), ("1", "7")]
    assert found[0]["test_accuracy_pct"] == "87.5"
    assert found[0]["validation_loss"] == ""


def test_comparison_csv(results: Path) -> None:
    found = {(row["engine"], row["version"]): row for row in rows(results / "comparison.csv")}
    assert found["torch", "2.13.0"]["first_step_above_1e_6"] == "4"
    assert found["keras-tensorflow", "2.12.0"]["first_step_above_1e_6"] == ""


def test_log_has_millisecond_times_in_order_and_says_what_ran(results: Path) -> None:
    lines = (results / "run.log").read_text().splitlines()
    stamps = [line.split(" ")[0] for line in lines]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp) for stamp in stamps)
    assert stamps == sorted(stamps)
    text = "\n".join(lines)
    assert "data train: 16 samples of 1x8x8, 3 classes" in text
    assert "model cnn2: " in text
    assert "[torch@2.13.0 #0] attempt 2 starts at step 4" in text
    assert "[torch@2.13.0 #0] epoch 2: train loss 1.000000, test loss 0.500000, test accuracy 87.50 %" in text
    assert "peak memory 250.0 MB (100.0 MB after import)" in text
    assert "environment: cpu.model a processor" in text
    assert lines[-1].endswith("job succeeded")


def test_document_fingerprints_and_summary(results: Path) -> None:
    assert (results / "job.yaml").read_text().startswith("name: recorded")
    facts = json.loads((results / "fingerprints.json").read_text())
    assert facts["job-1.torch-2.13.0.0"]["numpy.version"] == "2.4.6"
    summary = json.loads((results / "summary.json").read_text())
    assert summary["state"] == "succeeded"
    assert sorted(summary["files"]) == sorted(path.name for path in results.iterdir())
    assert [run["attempts"] for run in summary["runs"]] == [1, 2, 1, 1]


def test_a_failed_run_has_no_row_but_its_error_is_told(tmp_path: Path) -> None:
    recording = Recording()
    run = recording.add_run("torch", "2.13.0")
    recording.steps(run, 0, [1.0])
    recording.fail(run, "the process ended\nby \x1b[31mSIGSEGV")
    recording.end()
    folder = written(recording, tmp_path / "out")
    assert (folder / "results.csv").read_text().splitlines() == [COLUMNS]
    (log,) = [line for line in (folder / "run.log").read_text().splitlines() if "failed" in line]
    assert "CHILD_DIED: the process ended by" in log
    assert "\x1b" not in log
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["runs"][0]["error"]["reason"] == "CHILD_DIED"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_cells_are_no_formulas(text: str) -> None:
    (line,) = list(csv.reader(csv_text(["a"], [[text]]).splitlines(keepends=True)[1:]))[:1]
    assert line[0].startswith("'")


def test_csv_keeps_every_digit_and_quotes() -> None:
    values = [0.1 + 0.2, -1.5, 1e-300]
    text = csv_text(["a", "b", "c"], [values])
    assert [float(cell) for cell in text.splitlines()[1].split(",")] == values
    assert csv_text(["a"], [['say "hi", you']]) == 'a\n"say ""hi"", you"\n'
    assert csv_text(["a", "b"], [[None, float("nan")]]) == "a,b\n,\n"


def test_json_has_no_nan() -> None:
    assert json.loads(json_text({"a": [float("nan"), float("inf"), 1.0]})) == {"a": [None, None, 1.0]}


def test_a_rerun_overwrites_its_own_files_only(tmp_path: Path) -> None:
    recording = full_recording()
    recording.end()
    folder = written(recording, tmp_path / "out")
    (folder / "notes.txt").write_text("mine")
    smaller = Recording(job_id="job-2")
    run = smaller.add_run("torch", "2.13.0")
    smaller.steps(run, 0, [1.0])
    smaller.succeed(run)
    smaller.end()
    written(smaller, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "cnn2d_2layer_fullconnected_2layer_reference.csv").exists()
    assert not (folder / "comparison.csv").exists()
    assert len((folder / "results.csv").read_text().splitlines()) == 2
    assert json.loads((folder / "summary.json").read_text())["job_id"] == "job-2"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    recording = full_recording()
    recording.end()
    folder = written(recording, tmp_path / "out")
    other = Recording(name="another")
    other.end()
    with pytest.raises(CrosstrainError, match="results of the job 'recorded'"):
        written(other, folder)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious.txt").write_text("x")
    with pytest.raises(CrosstrainError, match="other files"):
        written(recording, foreign)
    with pytest.raises(CrosstrainError, match="is a file"):
        check_folder(foreign / "precious.txt", "recorded")
    assert [path.name for path in foreign.iterdir()] == ["precious.txt"]


def test_a_summary_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("x")
    (folder / "summary.json").write_text(json.dumps({"job": "recorded", "files": ["../victim", str(victim), 3]}))
    recording = full_recording()
    recording.end()
    written(recording, folder)
    assert victim.exists()


def test_failure_while_writing_leaves_the_old_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = full_recording()
    recording.end()
    folder = written(recording, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("crosstrain.results.tables.write_steps", broken)
    with pytest.raises(CrosstrainError) as caught:
        written(recording, folder)
    assert caught.value.reason == "STORAGE_FULL"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_cross_evaluation(tmp_path: Path) -> None:
    recording = full_recording()
    labels = np.array([0, 1, 2, 0])
    sure = np.array([[9, 0, 0], [0, 9, 0], [0, 0, 9], [9, 0, 0]], np.float32)
    close = sure.copy()
    close[3] = [1.0, 1.0 - 1e-7, 0.0]
    flipped = close.copy()
    flipped[3] = [1.0 - 1e-7, 1.0, 0.0]
    wrong = sure.copy()
    wrong[0] = [0, 9, 0]
    reference = recording.add_run("reference", "1", kind=run_pb2.RUN_KIND_EVALUATE)
    torch = recording.add_run("torch", "2.13.0", kind=run_pb2.RUN_KIND_EVALUATE)
    recording.evaluated(reference, "1" * 64, close, labels)
    recording.evaluated(reference, "2" * 64, sure, labels)
    recording.evaluated(torch, "1" * 64, flipped, labels)
    recording.evaluated(torch, "2" * 64, wrong, labels)
    recording.end()
    folder = written(recording, tmp_path / "out")
    found = {(row["weights_of"], row["evaluated_in"]): row for row in rows(folder / "cross_evaluation.csv")}
    assert len(found) == 4
    assert float(found["reference@1", "torch@2.13.0"]["accuracy_pct"]) == 75.0
    assert found["reference@1", "torch@2.13.0"]["images_differing"] == "1"
    assert found["reference@1", "torch@2.13.0"]["images_differing_within_rounding"] == "1"
    assert found["torch@2.13.0", "reference@1"]["images_differing"] == "1"
    assert found["torch@2.13.0", "reference@1"]["images_differing_within_rounding"] == "0"
    assert found["torch@2.13.0", "torch@2.13.0"]["images_differing"] == "0"
    listed = rows(folder / "cross_evaluation_differences.csv")
    assert [(row["weights_of"], row["image"], row["within_rounding"]) for row in listed] == [
        ("reference@1", "3", "True"),
        ("torch@2.13.0", "0", "False"),
    ]
    assert float(listed[0]["logits_gap_a"]) == pytest.approx(1e-7, rel=0.2)


def test_the_rounding_estimate_adds_up_over_layers() -> None:
    model = cnn2((1, 8, 8), 3, channels=(2, 3), units=5)
    expected = 4 * 2.0**-24 * sum(np.sqrt(n) for n in (9, 18, 12, 5))
    assert rounding_estimate(model) == pytest.approx(expected)
