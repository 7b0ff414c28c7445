"""crosstrain scale --bare against a coordinator with fake services, with a fake in place of the bare scripts."""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from crosstrain.cli import scaling_bare
from crosstrain.launch.environments import Environment
from crosstrain.scaling import BareRuns, BareScriptFailed
from crosstrain.scaling.bare import BareTimes
from doubles.world import World

Cli = Callable[..., Any]


class Scripts:
    """Stands for the scripts; keeps what was started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.failing = ""

    def __call__(self, words: Sequence[str], variables: dict[str, str], limit: float) -> BareTimes:
        name = next(Path(word).name for word in words if word.endswith("_cnn2.py"))
        self.started.append(name)
        if name == self.failing:
            raise BareScriptFailed("RuntimeError: no luck")
        if self.failing == "Ctrl-C":
            raise KeyboardInterrupt
        return BareTimes(1.0, [1.0, 0.5, 0.5], [8, 8, 8])


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    found = Scripts()
    python = Path("/env/bin/python")
    monkeypatch.setattr(scaling_bare, "BareRuns", functools.partial(BareRuns, runner=found))
    monkeypatch.setattr(
        scaling_bare, "equipped_environment", lambda *_, **__: Environment("torch", Path("/env"), python, "3.11")
    )
    return found


@pytest.fixture
def world_of_torch(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    world.service("fake", engines=(("torch", "2.13.0"), ("reference", "1")))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    return world


@pytest.mark.usefixtures("world_of_torch")
def test_scripts_run_in_turn_with_the_repeats(cli: Cli, job: Path, tmp_path: Path, scripts: Scripts) -> None:
    ran = cli("scale", job, "--ranks", "1,2", "--repeats", "3", "--bare", "--results", tmp_path / "out", "--json")
    assert ran.code == 0, ran.err
    assert scripts.started == ["torch_cnn2.py", "torch_ddp_cnn2.py"] * 3
    one, two = ran.json["scaling"]
    assert (one["launcher"], two["launcher"]) == ("torch_cnn2.py", "torchrun torch_ddp_cnn2.py")
    assert one["bare"]["mean"] == pytest.approx(16.0)
    assert two["ratio"]["low"] <= two["ratio"]["mean"] <= two["ratio"]["high"]
    assert two["repeats"] == 3
    # Only the first repeat is judged: nothing else is probed or perturbed.
    assert two["verdict"] in ("ROUNDING", "IDENTICAL")
    assert not (tmp_path / "out" / "repeat-1" / "verdict.json").exists()
    assert (tmp_path / "out" / "repeat-2" / "steps.parquet").exists()
    # In turn: after the first repeat, before the second, after the third.
    notes = [line for line in ran.err.splitlines() if line.startswith("bare: ") or line.endswith(" runs")]
    assert [line.split(":")[0].split(" ")[0] for line in notes] == [
        "job", "bare", "bare", "bare", "bare", "job", "job", "bare", "bare",
    ]  # fmt: skip


@pytest.mark.usefixtures("world_of_torch")
def test_the_table_and_the_file(cli: Cli, job: Path, tmp_path: Path, scripts: Scripts) -> None:
    scripts.failing = "torch_ddp_cnn2.py"
    ran = cli("scale", job, "--ranks", "1,2", "--repeats", "2", "--bare", "--results", tmp_path / "out")
    assert ran.code == 0, ran.err + ran.out
    assert "service/bare" in ran.out
    assert "bare script of torch@2.13.0[data=2] (torchrun torch_ddp_cnn2.py): RuntimeError: no luck" in ran.out
    with (tmp_path / "out" / "scale.csv").open() as stream:
        one, two = csv.DictReader(stream)
    assert float(one["bare_samples_per_second"]) == pytest.approx(16.0)
    assert float(one["ratio_low"]) <= float(one["ratio"]) <= float(one["ratio_high"])
    assert two["bare_samples_per_second"] == two["ratio"] == ""
    assert float(two["speed_up"]) > 0
    assert "Against bare" in (tmp_path / "out" / "scale.html").read_text()


@pytest.mark.usefixtures("world_of_torch")
def test_ctrl_c_while_a_script_runs_shows_what_there_is(cli: Cli, job: Path, scripts: Scripts) -> None:
    scripts.failing = "Ctrl-C"
    ran = cli("scale", job, "--ranks", "1,2", "--repeats", "3", "--bare")
    assert ran.code == 130
    assert scripts.started == ["torch_cnn2.py"]
    assert "Fastest: torch@2.13.0" in ran.out


@pytest.mark.usefixtures("world_of_torch")
def test_a_job_that_no_script_does(cli: Cli, job: Path, scripts: Scripts) -> None:
    job.write_text(job.read_text().replace("{sgd: {learning_rate: 0.1}}", "{adam: {learning_rate: 0.1}}"))
    ran = cli("scale", job, "--ranks", "1,2", "--repeats", "2", "--bare")
    assert ran.code == 0, ran.err + ran.out
    assert "No bare figures: there is no bare script for this optimizer: only for cnn2 with SGD." in ran.out
    assert not scripts.started


def test_scripts_need_the_services_here(cli: Cli, job: Path) -> None:
    ran = cli("scale", job, "--ranks", "1,2", "--bare", "--coordinator", "training.example:7440")
    assert ran.code == 64
    assert "not here but at training.example:7440" in ran.err


def test_scripts_need_a_checkout(cli: Cli, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_root: Path) -> Path:
        raise BareScriptFailed("there are no bare scripts")

    monkeypatch.setattr(scaling_bare, "script_folder", missing)
    ran = cli("scale", job, "--ranks", "1,2", "--bare")
    assert ran.code == 64
    assert "--bare: there are no bare scripts" in ran.err
