"""What is written about runs on several ranks: tables, log and summary; superseded steps left out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crosstrain.report import load_folder, render_report
from crosstrain.results import write_results
from crosstrain_protos.v1 import run_pb2, training_pb2
from doubles.recorded import Recording

DOCUMENT = """name: recorded
model: cnn2
training:
  batch_size: 7
  epochs: 2
  optimizer: {sgd: {learning_rate: 0.1}}
  schedule: {scale_with_batch: true, base_batch_size: 14}
engines: [torch, "torch[data=3]"]
"""


def emit_steps(recording: Recording, run: str, first: int, count: int, ranks: int, attempt: int = 1) -> None:
    records = run_pb2.StepRecords(
        first_step=first, epoch=[0] * count, loss=[2.0] * count, learning_rate=[0.05] * count,
        step_seconds=[1.0] * count, samples=[7] * count,
    )  # fmt: skip
    for rank in range(ranks):
        records.ranks.add(
            step_seconds=[1.0] * count,
            data_seconds=[0.125] * count,
            compute_seconds=[0.75 if rank == 0 else 0.5] * count,
            sync_seconds=[0.125 if rank == 0 else 0.375] * count,
            samples=[7 // ranks + (rank < 7 % ranks)] * count,
        )
    recording.emit(run, attempt, steps=records)


@pytest.fixture
def recording() -> Recording:
    recording = Recording(DOCUMENT)
    alone = recording.add_run("torch", "2.13.0")
    recording.start(alone)
    recording.steps(alone, 0, [2.0] * 6)
    recording.succeed(alone, 6)
    spread = recording.add_run("torch", "2.13.0", variant="data=3", parallel=training_pb2.Parallel(
        data=3, backend="horovod", on_rank_loss=training_pb2.RANK_LOSS_SHRINK))  # fmt: skip
    recording.emit(spread, attempt_started=run_pb2.AttemptStarted(resume_step=0, ranks=3))
    emit_steps(recording, spread, 0, 4, 3)
    recording.emit(spread, rank_lost=run_pb2.RankLost(rank=2, reason="rank 2 was ended by signal 9"))
    recording.emit(spread, rank_lost=run_pb2.RankLost(rank=-1, reason="none has gone on"))
    recording.emit(spread, rank_lost=run_pb2.RankLost(rank=-1, member=1, reason="nothing was heard of it"))
    recording.emit(spread, 2, attempt_started=run_pb2.AttemptStarted(resume_step=3, ranks=2))
    emit_steps(recording, spread, 3, 3, 2, attempt=2)
    recording.emit(spread, 2, result=run_pb2.TrainResult(
        weights_digest="d" * 64, steps=6, train_seconds=6.0, ranks=2, reduced_bytes_per_step=5e5))  # fmt: skip
    recording._end(spread, run_pb2.RUN_STATE_SUCCEEDED)  # noqa: SLF001
    recording.end()
    return recording


@pytest.fixture
def results(tmp_path: Path, recording: Recording) -> Path:
    return write_results(recording, "job-1", tmp_path / "out").folder  # type: ignore[arg-type]


def test_there_is_one_row_per_rank_and_step_of_what_counts(results: Path) -> None:
    rows = pq.read_table(results / "rank_steps.parquet").to_pylist()
    assert [(row["step"], row["rank"], row["samples"]) for row in rows] == [
        *((step, rank, (3, 2, 2)[rank]) for step in range(3) for rank in range(3)),
        *((step, rank, (4, 3)[rank]) for step in range(3, 6) for rank in range(2)),
    ]
    assert {row["variant"] for row in rows} == {"data=3"}
    assert rows[0]["compute_seconds"] == 0.75
    assert rows[1]["sync_seconds"] == 0.375


def test_ranks_csv_tells_of_the_ranks_that_were_there_at_the_end(results: Path) -> None:
    with (results / "ranks.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["rank"] for row in rows] == ["0", "1"]
    assert [float(row["compute_seconds"]) for row in rows] == [0.75, 0.5]
    assert {row["backend"] for row in rows} == {"horovod"}


def test_each_variant_has_its_own_file_and_label(results: Path) -> None:
    names = {path.name for path in results.glob("cnn2d_*.csv")}
    stem = "cnn2d_2layer_fullconnected_2layer_torch"
    assert names == {f"{stem}.csv", f"{stem}_data_3.csv"}
    with (results / "results.csv").open() as stream:
        assert [row["framework"] for row in csv.DictReader(stream)] == ["torch@2.13.0", "torch@2.13.0[data=3]"]
    table = pq.read_table(results / "steps.parquet").to_pylist()
    assert {(row["variant"], row["run_id"]) for row in table} == {
        ("", "job-1.torch-2.13.0.0"), ("data=3", "job-1.torch-2.13.0-data3.0"),
    }  # fmt: skip


def test_summary_states_batch_learning_rate_and_shares(results: Path) -> None:
    told = json.loads((results / "summary.json").read_text())
    assert told["training"]["batch_size"] == 7
    assert told["training"]["learning_rate_largest"] == pytest.approx(0.05)
    assert told["training"]["scaled_with_batch"] is True
    alone, spread = told["runs"]
    assert alone["ranks"] is None
    assert spread["variant"] == "data=3"
    assert spread["ranks"]["share"] == 3
    assert spread["ranks"]["lost"] == 3
    assert spread["ranks"]["imbalance"] == pytest.approx(0.75 / 0.625)
    assert spread["ranks"]["sync_share"] == pytest.approx(0.25)
    parameters = spread["ranks"]["parameter_bytes"]
    assert spread["ranks"]["ring_bytes"] == pytest.approx(2 * 2 / 3 * parameters)


def test_the_log_names_the_lost_rank_and_what_is_done(results: Path) -> None:
    log = (results / "run.log").read_text()
    told = "batches of 7 samples over all ranks together, learning rate 0.05 (scaled by batch size / 14)"
    assert f"training: {told}" in log
    assert "[torch@2.13.0[data=3] #0] 3 ranks: data 3, backend horovod" in log
    assert "attempt 1 starts at step 0 on 3 ranks" in log
    assert "error: rank 2 lost: rank 2 was ended by signal 9; on_rank_loss: the others go on" in log
    assert "error: all ranks lost: none has gone on; on_rank_loss: all start again" in log
    assert "error: all ranks of member 1 lost: nothing was heard of it; on_rank_loss: the others go on" in log
    assert "attempt 2 starts at step 3 on 2 ranks" in log
    assert "trained 6 steps in 6.00 s on 2 ranks" in log


def test_the_report_has_a_section_for_ranks(results: Path) -> None:
    page = render_report(None, load_folder(results))
    section = page[page.index('<section id="ranks">') :]
    section = section[: section.index("</section>")]
    assert "3 ranks (data 3), backend horovod" in section
    assert "batches of 7 samples in all, at most 3 per data rank" in section
    assert "<b>25.0 %</b>" in section
    assert "imbalance 1.2" in section
    assert "Small model: a larger batch or fewer ranks." in section
    assert section.count("<tr><th scope=\"row\">") == 2
    assert "learning rate 0.05 (scaled by batch size / 14)" in page


def test_a_page_without_ranks_has_no_such_section(results: Path) -> None:
    told = json.loads((results / "summary.json").read_text())
    for run in told["runs"]:
        run["ranks"] = None
    (results / "summary.json").write_text(json.dumps(told))
    assert '<section id="ranks">' not in render_report(None, load_folder(results))


def test_ranks_of_a_damaged_summary_are_left_out(results: Path) -> None:
    told = json.loads((results / "summary.json").read_text())
    told["runs"][1]["ranks"] = {"ranks": "<b>", "each": [{"rank": [], "compute_seconds": "x"}, 3], "reduced_bytes": {}}
    told["training"] = ["x"]
    (results / "summary.json").write_text(json.dumps(told))
    page = render_report(None, load_folder(results))
    assert "<b> ranks" not in page
