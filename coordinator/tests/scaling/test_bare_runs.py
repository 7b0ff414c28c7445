"""Bare scripts beside the runs of a job, with a fake in place of the scripts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.data import DataCache, DatasetInfo, ImportOptions, import_sources
from crosstrain.launch.catalogue import load_catalogue
from crosstrain.launch.environments import Environment, Unavailable
from crosstrain.results.records import RunRecord
from crosstrain.scaling import (
    BareFigures,
    BareRuns,
    BareScriptFailed,
    Interval,
    measure,
    scale_csv,
    scale_page,
    settings_of,
)
from crosstrain.scaling.bare import BareSettings, BareTimes
from crosstrain.scaling.bare_runs import write_data
from crosstrain.spec import JobSpec, parse_document
from crosstrain_protos.v1 import run_pb2, training_pb2

JOB = """
name: small
model: cnn2
training: {epochs: 2, batch_size: 8, optimizer: {sgd: {learning_rate: 0.1, momentum: 0.5}}}
engines: [torch]
"""
PYTHON = Path("/env/bin/python")


@pytest.fixture
def cache(tmp_path: Path) -> DataCache:
    return DataCache(tmp_path / "cache")


@pytest.fixture
def info(tmp_path: Path, cache: DataCache) -> DatasetInfo:
    """20 images 1x8x8 in 3 classes."""
    random = np.random.RandomState(0)
    np.savez(tmp_path / "given.npz", x=random.randint(0, 256, (20, 1, 8, 8)).astype(np.uint8), y=np.arange(20) % 3)
    found = import_sources(tmp_path / "given.npz", None, ImportOptions(), cache).train
    assert found is not None
    return found


def job(old: str = "", new: str = "") -> JobSpec:
    assert old in JOB
    return parse_document(JOB.replace(old, new) if old else JOB)


def run_of(engine: str = "torch", data: int = 1, seconds: float = 1.0, repeat: int = 0, **parallel: Any) -> RunRecord:
    """A run of three steps of 8 samples through a service; the first is slow and must not count."""
    run = RunRecord(f"{engine}-{data}-{repeat}", engine, "2.13.0+cpu" if engine == "torch" else "", f"data={data}")
    run.repeat, run.state = repeat, run_pb2.RUN_STATE_SUCCEEDED
    if data > 1 or parallel:
        run.parallel = training_pb2.Parallel(data=data, **parallel)
    run.add(run_pb2.RunEvent(steps=run_pb2.StepRecords(
        loss=[1.0] * 3, samples=[8] * 3, step_seconds=[50.0, seconds, seconds]
    )))  # fmt: skip
    return run


def environment(_service: str) -> Environment:
    return Environment("torch", PYTHON.parents[1], PYTHON, "3.11")


class Scripts:
    """Stands for the scripts: twice as fast as the service on one rank, as fast on two."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.failing = ""

    def __call__(self, words: Sequence[str], variables: dict[str, str], limit: float) -> BareTimes:
        text = " ".join(words)
        assert variables["OMP_NUM_THREADS"] == "2"
        assert limit > 600
        self.commands.append(text)
        if self.failing and self.failing in text:
            raise BareScriptFailed("ValueError: broken")
        with np.load(next(word for word in words if word.endswith(".npz"))) as data:
            assert data["x_train"].shape == (20, 1, 8, 8)
        seconds = 1.0 if "torch_ddp" in text else 0.5
        return BareTimes(3.0, [70.0, seconds, seconds], [8, 8, 8])


@pytest.fixture
def scripts() -> Scripts:
    return Scripts()


@pytest.fixture
def bare(scripts: Scripts, info: DatasetInfo, cache: DataCache, tmp_path: Path) -> BareRuns:
    settings = settings_of(job(), info, 2)
    return BareRuns(settings, info, cache, tmp_path, load_catalogue(), environment, lambda line: None, scripts)


def test_scripts_are_told_what_the_job_says(info: DatasetInfo) -> None:
    # 20 samples in batches of 8 are 3 steps an epoch.
    assert settings_of(job(), info, 2) == BareSettings(6, 2, 8, 0.1, 0.5, 3, True, True)
    native = job("model: cnn2", "model: cnn2\nsemantics: native\nexecution: {threads: 1, deterministic: false}")
    assert settings_of(native, info, 2) == BareSettings(6, 1, 8, 0.1, 0.5, 3, False, False)
    scaled = job("training: {", "training: {schedule: {scale_with_batch: true, base_batch_size: 4}, ")
    assert settings_of(scaled, info, 2).learning_rate == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cnn2", "cnn3", "no bare script for this network: only for cnn2"),
        ("{sgd: {learning_rate: 0.1, momentum: 0.5}}", "{adam: {learning_rate: 0.1}}", "this optimizer"),
        ("momentum: 0.5", "momentum: 0.5, nesterov: true", "this optimizer"),
        ("epochs: 2", "epochs: 2, clip_norm: 1", "training.clip_norm"),
        ("epochs: 2", "epochs: 2, weight_decay: {rate: 0.1}", "training.weight_decay"),
        ("epochs: 2", "epochs: 2, early_stopping: {validation_share: 0.5}", "training.early_stopping"),
        ("epochs: 2", "epochs: 2, schedule: {warmup_steps: 3}", "a learning rate that changes"),
        ("model: cnn2", "model: cnn2\nexecution: {precision: mixed_bfloat16}", "execution.precision"),
        ("model: cnn2", "model: cnn2\nexecution: {accumulation_steps: 2}", "execution.accumulation_steps"),
        ("model: cnn2", "model: cnn2\nexecution: {compiler: xla}", "execution.compiler"),
        ("model: cnn2", "model: cnn2\nparallel: {data: 2, hosts: 2}", "parallel.hosts"),
    ],
)
def test_what_no_script_does(info: DatasetInfo, old: str, new: str, message: str) -> None:
    with pytest.raises(BareScriptFailed, match=message):
        settings_of(job(old, new), info, 2)


def test_odd_images_have_no_script(tmp_path: Path, cache: DataCache) -> None:
    np.savez(tmp_path / "odd.npz", x=np.zeros((9, 1, 9, 8), np.uint8), y=np.arange(9) % 3)
    odd = import_sources(tmp_path / "odd.npz", None, ImportOptions(), cache).train
    assert odd is not None
    with pytest.raises(BareScriptFailed, match="multiples of 4"):
        settings_of(job(), odd, 2)


def test_data_of_scripts_is_what_the_network_sees(tmp_path: Path, cache: DataCache, info: DatasetInfo) -> None:
    write_data(info, cache, tmp_path / "bytes.npz")
    with np.load(tmp_path / "bytes.npz") as data:
        assert data["x_train"].dtype == np.uint8
        assert data["y_train"].tolist() == (np.arange(20) % 3).tolist()
    np.savez(tmp_path / "half.npz", x=np.full((4, 1, 8, 8), 6, np.uint8), y=np.arange(4) % 2)
    half = import_sources(tmp_path / "half.npz", None, ImportOptions(divisor=12.0), cache).train
    assert half is not None
    write_data(half, cache, tmp_path / "floats.npz")
    with np.load(tmp_path / "floats.npz") as data:
        assert data["x_train"].dtype == np.float32
        assert (data["x_train"] == 0.5).all()


def test_figures_are_paired_by_repeat(bare: BareRuns, scripts: Scripts) -> None:
    runs = [run_of(data=data, seconds=1.0 / (1 + repeat), repeat=repeat) for repeat in (0, 1) for data in (1, 2)]
    bare.measure(runs[:2], 0)
    bare.measure(runs[:2], 1)
    assert [" ".join(text.split("/bare/")[1].split()[:1]) for text in scripts.commands] == [
        "torch_cnn2.py", "torch_ddp_cnn2.py", "torch_cnn2.py", "torch_ddp_cnn2.py",
    ]  # fmt: skip
    one, two = measure(runs, None, bare.figures)
    # The service: 8 samples/s, then 16. The script on one rank: always 16; on two: 8.
    assert one.bare == Interval(pytest.approx(16.0), pytest.approx(16.0), pytest.approx(16.0))
    assert one.ratio is not None and one.ratio.low is not None
    assert one.ratio.mean == pytest.approx(np.sqrt(0.5 * 1.0))
    assert one.ratio.low < one.ratio.mean
    assert two.ratio is not None and two.ratio.mean == pytest.approx(np.sqrt(1.0 * 2.0))
    assert two.bare_speed_up == Interval(pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))
    assert (one.launcher, two.launcher) == ("torch_cnn2.py", "torchrun torch_ddp_cnn2.py")
    told = list(csv.DictReader(scale_csv([one, two]).splitlines()))
    assert float(told[0]["bare_samples_per_second"]) == pytest.approx(16.0)
    assert float(told[1]["ratio"]) == pytest.approx(np.sqrt(2.0))
    assert float(told[1]["ratio_low"]) < float(told[1]["ratio_high"])
    page = scale_page([one, two], "x", "y")
    assert "Against bare" in page and "diamonds" in page


def test_without_bare_scripts_nothing_is_told_of_them() -> None:
    rows = measure([run_of(), run_of(data=2)], None)
    assert all(row.bare is row.ratio is row.bare_speed_up is None for row in rows)
    assert "bare" not in scale_page(rows, "x", "y").lower()
    told = list(csv.DictReader(scale_csv(rows).splitlines()))
    assert told[0]["bare_samples_per_second"] == told[0]["ratio"] == ""


def test_a_script_that_fails_stops_nothing(bare: BareRuns, scripts: Scripts) -> None:
    scripts.failing = "torch_cnn2.py"
    runs = [run_of(), run_of(data=2)]
    bare.measure(runs, 0)
    bare.measure(runs, 1)
    one, two = measure(runs, None, bare.figures)
    assert (one.bare, one.ratio, one.bare_notes) == (None, None, ("ValueError: broken",))
    assert two.ratio is not None and two.bare_speed_up is None
    page = scale_page([one, two], "x", "y")
    assert "ValueError: broken" in page


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (run_of("lasagne", 2, backend="horovod"), "no bare script for lasagne with horovod"),
        (run_of("reference"), "no bare script for reference"),
        (run_of(data=3), "its batch of 8 must be a multiple of the 3 ranks"),
        (run_of(data=2, tensor=2), "split the data only"),
    ],
)
def test_variants_without_a_script(bare: BareRuns, scripts: Scripts, run: RunRecord, note: str) -> None:
    bare.measure([run], 0)
    assert not scripts.commands
    assert note in " ".join(bare.figures[run.label].notes)


def test_scripts_are_for_processors(bare: BareRuns) -> None:
    run = run_of()
    run.facts = {"device.kind": "cuda"}
    bare.measure([run], 0)
    assert bare.figures[run.label].notes == ["it trains on cuda; bare scripts train on the CPU"]


def test_an_environment_that_cannot_be_had(info: DatasetInfo, cache: DataCache, tmp_path: Path) -> None:
    def unavailable(service: str) -> Unavailable:
        return Unavailable(service, "no Python 3.11", "install it")

    said: list[str] = []
    bare = BareRuns(
        settings_of(job(), info, 2), info, cache, tmp_path, load_catalogue(), unavailable, said.append, Scripts()
    )
    bare.measure([run_of()], 0)
    assert bare.figures["torch@2.13.0+cpu[data=1]"] == BareFigures(
        "torch_cnn2.py", {}, ["no Python 3.11; to fix it: install it"]
    )
    assert "install it" in said[0]
