"""One generated tree serves every supported combination of Python, protobuf and grpcio.

Each combination has a small environment of its own in the user cache, in which matrix/exercise.py
fills every field of every message, checks bytes written by hand, and calls every RPC of a
real server. Across combinations the bytes must be equal, and a server of the oldest must
understand a client of the newest and the reverse.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import protos_tool as protos
import pytest
from crosstrain.launch.environments import Layer, Recipe
from crosstrain.launch.interpreters import clean_environment, find_interpreter

LOCKS = protos.PROTOS / "locks" / "matrix"
EXERCISE = Path(__file__).with_name("matrix") / "exercise.py"
# Without these the suite proves too little; any other interpreter may be absent.
REQUIRED_PYTHONS = ("3.7", "3.11")
SECONDS = 60


@dataclass(frozen=True)
class Combination:
    """A Python and a protobuf release; the lock of the latter names the grpcio."""

    python: str
    protobuf: str

    def __str__(self) -> str:
        return f"python{self.python}-protobuf{self.protobuf}"


OLDEST = Combination("3.7", "3.20.3")
THEANO = Combination("3.7", "4.24.4")
NEWEST = Combination("3.11", "7.36.2")

COMBINATIONS = (
    OLDEST,
    THEANO,
    *(Combination("3.11", release) for release in ("3.20.3", "4.25.9", "5.29.6", "6.33.6")),
    NEWEST,
    *(Combination("3.13", release) for release in ("5.29.6", "6.33.6", "7.36.2")),
)


@functools.cache
def _python(combination: Combination) -> Path:
    """The environment's interpreter. Skips when no such Python exists and none is required."""
    if combination.python not in REQUIRED_PYTHONS:
        search = find_interpreter(combination.python)
        if search.found is None:
            reasons = (
                "; ".join(item.reason for item in search.rejected) or "none on PATH, in pyenv or known to uv"
            )
            pytest.skip(f"Python {combination.python} is missing: {reasons}")
    lock = LOCKS / f"protobuf-{combination.protobuf}.txt"
    recipe = Recipe(f"protos-{combination.protobuf}", (combination.python,), Layer("matrix", lock))
    return protos.environment(recipe).python


def _command(combination: Combination, *arguments: str) -> list[str]:
    # Warnings are errors: what makes a runtime warn on import would fill every user's log.
    return [str(_python(combination)), "-W", "error", str(EXERCISE), *arguments]


def _process_environment() -> dict[str, str]:
    return {
        **clean_environment(os.environ),
        "PYTHONPATH": str(protos.PACKAGE.parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _run(combination: Combination, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        _command(combination, *arguments),
        env=_process_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{combination}:\n{done.stdout}{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@functools.cache
def _report(combination: Combination) -> dict[str, Any]:
    return _run(combination, "self")


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_loads_serialises_and_calls(combination: Combination) -> None:
    report = _report(combination)
    assert (report["python"], report["protobuf"]) == (combination.python, combination.protobuf)
    assert report["missing"] == [], "fields that no sample message sets"
    assert len(report["wire"]) >= 15
    assert {name.split(".")[0] for name in report["called"]} == {
        "ArtifactService",
        "CoordinatorService",
        "TrainingService",
    }
    assert {"TrainingService.Train", "TrainingService.WatchRun", "ArtifactService.Write"} <= set(
        report["called"]
    )


@pytest.mark.parametrize("combination", COMBINATIONS[:-1], ids=str)
def test_bytes_equal_those_of_the_newest(combination: Combination) -> None:
    digests, expected = _report(combination)["digests"], _report(NEWEST)["digests"]
    assert len(expected) > 500
    assert {name for name in expected if digests.get(name) != expected[name]} == set()
    assert digests.keys() == expected.keys()


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_sign_of_zero(combination: Combination) -> None:
    """The one known difference: pure Python protobuf 3.20 drops -0.0 from a field without presence."""
    report = _report(combination)
    drops = report["implementation"] == "python" and combination.protobuf == "3.20.3"
    assert report["negative_zero"] == {"implicit": not drops, "optional": True, "packed": True}


@pytest.mark.parametrize(
    ("server", "client"), [(THEANO, NEWEST), (NEWEST, THEANO), (OLDEST, NEWEST)], ids=str
)
def test_server_and_client_of_different_combinations(server: Combination, client: Combination) -> None:
    process = subprocess.Popen(
        _command(server, "serve"),
        env=_process_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), f"{server} did not start"
        assert sorted(_run(client, "call", port)["called"]) == sorted(_report(client)["called"])
    finally:
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
