from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosstrain.cli import main
from doubles.world import World

# A shell without job control starts background commands with Ctrl-C ignored, which children inherit;
# the commands under test must be interruptible wherever the tests run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A real coordinator; its services are fake, see doubles.fake_service."""
    opened = World(tmp_path / "world")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the caches and state of whoever runs it, or meets a coordinator of theirs."""
    monkeypatch.setenv("CROSSTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CROSSTRAIN_STATE_DIR", str(tmp_path / "up"))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", "127.0.0.1:9")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


JOB = """name: small
model: cnn2
data: {train: train.csv, test: test.csv}
training:
  epochs: 1
  batch_size: 8
  optimizer: {sgd: {learning_rate: 0.1}}
engines: [torch, reference]
cross_evaluate: false
verdict: {judge: false}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job file with data of 40 and 10 images 1x8x8 in 3 classes."""
    random = np.random.RandomState(0)
    for name, count in (("train", 40), ("test", 10)):
        header = ",".join(["label", *(f"pixel{index}" for index in range(64))])
        lines = [header]
        for index in range(count):
            lines.append(",".join(map(str, [index % 3, *random.randint(0, 256, 64)])))
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path
