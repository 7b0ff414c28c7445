"""Results folders: the page made from one is that made while the job was watched."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.report import CrossRow, from_record, from_runs, load_folder, load_verdict
from crosstrain.report.__main__ import main
from crosstrain.results import JobRecord, write_results
from crosstrain.results.cross_evaluation import PAIR_COLUMNS
from crosstrain.results.files import csv_text
from crosstrain_service.errors import CrosstrainError
from doubles.recorded import full_recording
from doubles.report_sample import sample_data, sample_verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recording = full_recording()
    client: Any = recording
    write_results(client, "job-1", tmp_path / "out")
    pairs = csv_text(PAIR_COLUMNS, [("=odd@1", "torch@2.13.0", 87.5, math.nan, 16, 2, 1)])
    (tmp_path / "out" / "cross_evaluation.csv").write_text(pairs, encoding="utf-8")
    return tmp_path / "out"


def test_a_folder_holds_what_was_watched(folder: Path) -> None:
    recording = full_recording()
    watched = from_record(JobRecord(recording.job).add_all(recording.events))
    read = load_folder(folder)
    assert read.problems == ()
    for one, other in zip(watched.runs, read.runs, strict=True):
        assert one.run_id == other.run_id
        assert set(one.steps) == set(other.steps)
        for name, values in one.steps.items():
            np.testing.assert_array_equal(values, other.steps[name])
        assert {**one.facts, "run.repeat": str(one.repeat)} == other.facts
        assert dataclasses.replace(one, steps={}, facts={}) == dataclasses.replace(other, steps={}, facts={})
    assert read.document
    assert read.cross == (CrossRow("=odd@1", "torch@2.13.0", 87.5, None, 16, 2, 1),)
    assert any(run.memory_after_import_bytes == 100_000_000 for run in read.runs)


def test_a_comparison_shows_the_two_runs_alone() -> None:
    recording = full_recording()
    record = JobRecord(recording.job).add_all(recording.events)
    chosen = [run.run_id for run in record.training_runs()[1:3]]
    data = from_runs([record, record], chosen)
    assert [run.run_id for run in data.runs] == chosen
    assert all(run.trained for run in data.runs)
    assert (data.job_name, data.document) == ("recorded", record.job.document)


@pytest.mark.parametrize(
    "name", ["steps.parquet", "epochs.csv", "fingerprints.json", "cross_evaluation.csv", "job.yaml"]
)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe not this", b"{}", b"[1, 2]", b"a,b\n1,2\n"])
def test_a_broken_file_is_named_and_the_rest_is_shown(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    data = load_folder(folder)
    assert len(data.runs) > 0
    assert all(problem.startswith(name) for problem in data.problems)
    if content.startswith(b"\xff"):
        assert len(data.problems) == 1
    assert main([str(folder)]) == 0


@pytest.mark.parametrize(
    "name", ["steps.parquet", "epochs.csv", "fingerprints.json", "cross_evaluation.csv", "job.yaml"]
)
def test_a_missing_file_leaves_a_gap(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert load_folder(folder).problems == ()
    assert main([str(folder)]) == 0


def test_the_command_makes_the_page_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sample_data()
    (folder / "verdict.json").write_text(json.dumps(sample_verdict(data)), encoding="utf-8")
    assert main([str(folder), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "lasagne@0.1 computes something else" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_verdict_that_is_none_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "verdict.json").write_text('{"verdict": "IDENTICAL"}', encoding="utf-8")
    with pytest.raises(CrosstrainError, match="verdict"):
        load_verdict(folder)
    assert main([str(folder)]) == 3
    assert "verdict" in capsys.readouterr().err
    assert not (folder / "report.html").exists() or "IDENTICAL" not in (folder / "report.html").read_text()


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text("[]")
    assert main([str(tmp_path)]) == 3
    assert "no results folder" in capsys.readouterr().err
    assert main([str(tmp_path / "missing")]) == 3
