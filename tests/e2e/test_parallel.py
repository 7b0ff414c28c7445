"""Jobs on several ranks of real engines: N ranks against one, with a verdict; a rank that is killed."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from crosstrain.results import Results, write_results
from crosstrain_protos.v1 import run_pb2

from . import inputs
from .platform import Platform

Available = Callable[..., list[str]]
#: Uneven shares on two and three ranks, and a last batch of 4 (160 = 12 * 13 + 4).
TRAINING = {"batch_size": 13}
ENGINES = ("reference", "torch", "torch[data=2]", "torch[data=3]", "tensorflow[data=2]")


@pytest.fixture(scope="module")
def results(
    platform: Platform, available: Available, digits: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> Results:
    available("reference", "torch", "tensorflow")
    verdict = {"envelope": 0}
    record = platform.run(inputs.document(list(ENGINES), training=TRAINING, verdict=verdict), digits, "ranks")
    return write_results(platform.client, "ranks", tmp_path_factory.mktemp("ranks") / "out", record)


def test_ranks_compute_what_one_computes(results: Results) -> None:
    found = results.verdict
    assert found is not None
    assert found["verdict"] == "ROUNDING", found["sentence"]
    assert [engine["certificate"]["failed"] for engine in found["engines"]] == [0] * len(ENGINES)


def test_results_say_how_training_was_spread(results: Results) -> None:
    with (results.folder / "ranks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # TensorFlow drives both of its ranks from one process, which measures them together.
    counts = [row["engine"] for row in rows if row["engine"] == "torch"]
    assert len(counts) == 2 + 3
    table = pq.read_table(results.folder / "rank_steps.parquet").to_pydict()
    steps = -(-inputs.TRAIN // 13)
    assert len(table["step"]) == 5 * steps
    log = (results.folder / "run.log").read_text()
    assert "batches of 13 samples over all ranks" in log


def test_a_rank_that_is_killed_is_named_and_the_curve_is_complete(
    platform: Platform, available: Available, digits: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    available("torch")
    text = inputs.document(
        ["torch[data=2]"],
        training={"epochs": 300, "max_steps": 1500, "batch_size": 16},
        execution={"checkpoint_every_steps": 50},
    )
    job = platform.client.create_job(text, *digits, "killed-rank")
    service = platform.services["torch"]
    launcher = None
    deadline = time.monotonic() + 120
    while launcher is None or not _steps(platform):
        assert time.monotonic() < deadline, "the ranks did not train"
        children = psutil.Process(service.process.pid).children(recursive=True)
        launcher = next((child for child in children if "parallel.launch" in " ".join(child.cmdline())), None)
        time.sleep(0.05)
    os.kill(launcher.children()[1].pid, signal.SIGKILL)
    record = platform.finish(job)
    run = next(iter(record.runs.values()))
    assert run.run.state == run_pb2.RUN_STATE_SUCCEEDED and run.run.attempt == 2
    out = write_results(platform.client, "killed-rank", tmp_path_factory.mktemp("killed") / "out", record)
    steps = pq.read_table(out.folder / "steps.parquet").to_pydict()["step"]
    assert steps == list(range(1500))
    assert "rank 1" in (out.folder / "run.log").read_text()


def _steps(platform: Platform) -> bool:
    """Whether the run has made steps: its first checkpoint is in its events."""
    job = platform.client.get_job("killed-rank")
    return any(run.run.last_sequence > 20 for run in job.runs)
