"""crosstrain scale against a coordinator with fake services, and the arithmetic behind its table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.cli.exits import CommandError
from crosstrain.cli.jobfile import read_job
from crosstrain.cli.scaling import best, rank_counts, scaled
from crosstrain.results.records import RunRecord
from crosstrain.scaling import Interval, ScaleRow, measure, scale_csv, scale_page
from crosstrain_protos.v1 import run_pb2, training_pb2
from doubles.world import World

Cli = Callable[..., Any]


@pytest.fixture
def address(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """A coordinator with two engines, which commands find by the environment variable."""
    world.service("fake", engines=(("torch", "2.13.0"), ("reference", "1")))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    return world.server.address


def run_of(seconds: float, data: int = 1, repeat: int = 0, engine: str = "torch", failed: bool = False) -> RunRecord:
    """A run of four steps; the first is slow and must not count."""
    variant = f"data={data}"
    state = run_pb2.RUN_STATE_FAILED if failed else run_pb2.RUN_STATE_SUCCEEDED
    run = RunRecord(f"{engine}-{variant}-{repeat}", engine, "1", variant, repeat=repeat, state=state)
    run.parallel = training_pb2.Parallel(data=data, backend="mpi") if data > 1 else None
    records = run_pb2.StepRecords(loss=[1.0] * 4, samples=[10] * 4, step_seconds=[100.0, *[seconds] * 3])
    for _ in range(data if data > 1 else 0):
        records.ranks.add(step_seconds=[2.0] * 4, sync_seconds=[0.5] * 4)
    run.add(run_pb2.RunEvent(steps=records))
    return run


def pair(a: int, b: int, verdict: str) -> dict[str, str]:
    return {"a": f"torch@1[data={a}]", "b": f"torch@1[data={b}]", "verdict": verdict, "sentence": "They differ."}


def test_an_interval_is_of_the_logarithms() -> None:
    found = Interval.of([1.0, 2.0, 4.0])
    assert found is not None
    assert found.mean == pytest.approx(2.0)
    # Student's t with 2 degrees of freedom: 4.3027; standard error ln 2 / sqrt 3.
    assert found.high == pytest.approx(2 * np.exp(4.302653 * np.log(2) / np.sqrt(3)), rel=1e-6)
    assert found.low is not None
    assert found.high is not None
    assert found.low * found.high == pytest.approx(4.0)
    assert Interval.of([3.0]) == Interval(pytest.approx(3.0))
    assert Interval.of([]) is None


def test_speed_up_is_paired_by_repeat_and_leaves_out_first_steps_and_failures() -> None:
    runs = [
        run_of(1.0, 1, 0), run_of(0.5, 2, 0), run_of(0.4, 4, 0),
        run_of(2.0, 1, 1), run_of(1.0, 2, 1), run_of(9.0, 4, 1, failed=True),
    ]  # fmt: skip
    rows = measure(runs, {"pairs": [pair(1, 2, "IDENTICAL"), pair(4, 1, "ROUNDING"), pair(2, 4, "MISMATCH")]})
    assert [(row.ranks, row.repeats, row.verdict, row.same) for row in rows] == [
        (1, 2, "", True), (2, 2, "IDENTICAL", True), (4, 1, "ROUNDING", True),
    ]  # fmt: skip
    one, two, four = rows
    assert one.throughput is not None
    assert one.throughput.mean == pytest.approx(np.sqrt(10.0 * 5.0))
    # The machine was half as fast in the second repeat, for both: the speed-up is exactly 2 with no spread.
    assert two.speed_up == Interval(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))
    assert two.efficiency == pytest.approx(1.0)
    assert four.speed_up == Interval(pytest.approx(2.5))
    assert four.efficiency == pytest.approx(0.625)
    assert four.sync_share == pytest.approx(0.25)
    assert four.backend == "mpi"
    # One repeat of 4 ranks has no interval.
    assert "Fastest: torch@1 on 4 ranks" in best(rows)
    assert "is not shown by so few repeats" in best(rows)
    assert best(rows[:2]) == "Fastest: torch@1 on 2 ranks, 14 samples/s."


@pytest.mark.parametrize("verdict", ["MISMATCH", "INCONCLUSIVE", ""])
def test_nothing_is_ranked_when_parity_failed_or_was_not_shown(verdict: str) -> None:
    document = {"pairs": [pair(1, 2, verdict)]} if verdict else None
    rows = measure([run_of(1.0), run_of(0.1, 2)], document)
    assert rows[1].speed_up is not None
    assert best(rows) == "Nothing is ranked: torch@1[data=2] not shown to compute what fewest ranks do."
    page = scale_page(rows, "<script>x", "batches of 10")
    assert "<script>" not in page
    assert "&lt;script&gt;x" in page
    assert '<tr class="unlike">' in page
    assert "counts for nothing" in page


def test_csv_has_all_numbers() -> None:
    rows = measure([run_of(1.0), run_of(0.5, 2)], None)
    told = list(csv.DictReader(scale_csv(rows).splitlines()))
    assert float(told[1]["speed_up"]) == pytest.approx(2.0)
    assert told[1]["speed_up_low"] == ""
    assert told[1]["data_ranks"] == "2"
    assert float(told[1]["sync_share"]) == pytest.approx(0.25)


def test_runs_without_steps_give_a_row_without_numbers() -> None:
    rows = measure([RunRecord("a", "torch", "1", "data=1"), run_of(1.0, 2)], None)
    assert [(row.throughput is None, row.speed_up) for row in rows] == [(True, None), (False, None)]
    assert isinstance(rows[0], ScaleRow)
    assert "<img" not in scale_page(rows, "x", "y")


@pytest.mark.parametrize("text", ["", "1", "2,2", "0,1", "1,x", "1,-2", "1;2"])
def test_ranks_that_are_none(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        rank_counts(text)
    assert caught.value.code == 64


def test_every_engine_gets_every_number_of_ranks(job: Path) -> None:
    text = job.read_text().replace("engines: ", "parallel: {tensor: 2}\nengines: ")
    job.write_text(text)
    found = scaled(read_job(job), [1, 2], [], 2, "mpi", 1).spec
    assert found.engines == ["torch[data=1,backend=mpi]", "torch[data=2,backend=mpi]"]
    assert found.parallel_of("torch[data=2,backend=mpi]").ranks == 4
    assert (found.repeats, found.execution.threads, found.judged) == (2, 1, True)
    named = scaled(read_job(job), [1, 2], ["torch[pipeline=2]", "reference@1"], 1, "", 0).spec
    assert named.engines == [
        "torch[data=1,pipeline=2]", "torch[data=2,pipeline=2]", "reference@1[data=1]", "reference@1[data=2]",
    ]  # fmt: skip


@pytest.mark.usefixtures("address")
def test_scale_prints_the_table_and_writes_its_files(cli: Cli, job: Path, tmp_path: Path) -> None:
    ran = cli("scale", job, "--ranks", "1,2", "--repeats", "2", "--results", tmp_path / "out")
    assert ran.code == 0, ran.err + ran.out
    assert "speed-up" in ran.out
    assert "Fastest: torch@2.13.0" in ran.out
    assert "torch on 2 ranks: 50 % of the time waiting for other ranks" in ran.out
    with (tmp_path / "out" / "scale.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["ranks"], row["repeats"]) for row in rows] == [("1", "2"), ("2", "2")]
    assert rows[1]["verdict"] in ("ROUNDING", "IDENTICAL")
    page = (tmp_path / "out" / "scale.html").read_text()
    assert "data:image/svg+xml" in page
    # Nothing is fetched and nothing runs.
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")


@pytest.mark.usefixtures("address")
def test_scale_as_json(cli: Cli, job: Path) -> None:
    ran = cli("scale", job, "--ranks", "2,4", "--repeats", "1", "--json")
    assert ran.code == 0, ran.err
    assert [row["ranks"] for row in ran.json["scaling"]] == [2, 4]
    assert ran.json["scaling"][1]["efficiency"] is not None
    assert ran.json["exit_code"] == 0


def test_scale_names_an_engine_that_cannot(
    cli: Cli, job: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service("fake", engines=(("torch", "2.13.0"),), lacking=("parallel.data",))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    ran = cli("scale", job, "--ranks", "1,2")
    assert ran.code == 3
    assert "engine torch@2.13.0 does not support: parallel.data" in ran.err


@pytest.mark.usefixtures("address")
@pytest.mark.parametrize(
    "arguments", [("--ranks", "1"), ("--repeats", "0"), ("--engine", "torch[data"), ("--backend", "nccl")]
)
def test_wrong_usage(cli: Cli, job: Path, arguments: tuple[str, ...]) -> None:
    assert cli("scale", job, *arguments).code in (3, 64)


def test_help_teaches(cli: Cli) -> None:
    ran = cli("scale", "--help")
    assert ran.code == 0
    assert "crosstrain scale" in ran.out
    assert "xample" in ran.out
    assert "efficiency" in ran.out
