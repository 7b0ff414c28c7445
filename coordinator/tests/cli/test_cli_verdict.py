"""check, run with a verdict, compare and verdict, against a coordinator with fake services."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crosstrain.cli.migration import changes
from crosstrain.compare.verdict import read_verdict
from doubles.world import World

Cli = Callable[..., Any]


@pytest.fixture
def address(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    world.service("fake", engines=(("torch", "2.13.0"), ("reference", "1")))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    return world.server.address


@pytest.mark.usefixtures("address")
def test_check_trains_nothing_and_writes_the_verdict(cli: Cli, job: Path, tmp_path: Path, world: World) -> None:
    ran = cli("check", job, "--results", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "probe: checked" in ran.err
    assert "report.html" in ran.out
    found = read_verdict(tmp_path / "out" / "verdict.json")
    assert found["task"] == "check"
    assert found["sentence"] in ran.out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"verdict.junit.xml", "report.html", "summary.json"} <= files
    assert "results.csv" not in files
    assert all(name.endswith(".probe") for name in world.services[0].order)


@pytest.mark.usefixtures("address")
def test_run_compare_and_verdict(cli: Cli, job: Path, tmp_path: Path, world: World) -> None:
    job.write_text(job.read_text().replace("{judge: false}", "{steps: [0], envelope: 1}"))
    ran = cli("run", job, "--job-id", "one", "--json", "--results", tmp_path / "one")
    assert ran.code == ran.json["exit_code"] == ran.json["verdict_document"]["exit_code"]
    assert len((tmp_path / "one" / "results.csv").read_text().splitlines()) == 3
    assert [run["kind"] for run in ran.json["runs"]].count("envelope") == 1
    again = cli("verdict", "one", "--json")
    assert again.json == ran.json["verdict_document"]
    assert again.code == ran.code
    compared = cli("compare", "one/torch", "one/reference", "--json")
    assert compared.json["task"] == "compare"
    assert compared.code == compared.json["exit_code"]
    ambiguous = cli("compare", "one", "one/torch@2.13.0")
    assert ambiguous.code == 3
    world.client.register_service("fake", world.services[0].address)  # which fake services do not by themselves
    unjudged = cli("run", job, "--no-verdict", "--job-id", "two", "--results", tmp_path / "two")
    assert unjudged.code == 0
    assert not (tmp_path / "two" / "verdict.json").exists()
    assert cli("verdict", "two").code == 3
    # The engine that both jobs have in common.
    assert cli("compare", "one/torch", "two", "--json").json["task"] == "compare"


@pytest.mark.usefixtures("address")
def test_an_engine_that_cannot_be_probed_gives_exit_code_3(cli: Cli, job: Path, world: World) -> None:
    world.services[0].probes_failing.add("torch")
    ran = cli("check", job)
    assert ran.code == 3
    assert "could not compare: the probe of torch@2.13.0: failed on purpose" in ran.out


@pytest.mark.usefixtures("address")
def test_usage(cli: Cli, job: Path) -> None:
    assert cli("check", job, "--semantics", "mine").code == 64
    assert cli("migrate", job, "--from", "torch", "--to", "torch").code == 64
    assert cli("compare", "nothing", "nowhere").code == 3


@pytest.mark.parametrize("command", ["check", "run", "compare", "migrate", "verdict"])
def test_help_teaches(cli: Cli, command: str) -> None:
    ran = cli(command, "--help")
    assert ran.code == 0
    assert f"crosstrain {command}" in ran.out
    assert "xample" in ran.out


def test_changes_between_two_engines() -> None:
    def cause(*ids: str, where: str = "backward pool1", unknown: bool = False) -> dict[str, Any]:
        return {"ids": list(ids), "title": "t", "says": "s", "restore": "r", "where": [where], "case": "start",
                "unknown": unknown}  # fmt: skip

    origin = {"label": "a", "causes": [cause("x"), cause("y"), cause("x", where="backward pool2")]}
    target = {"label": "b", "causes": [cause("y"), cause("z"), cause(unknown=True)]}
    found = changes(origin, target)
    assert [item["ids"] for item in found["lost"]] == [["x"]]
    assert found["lost"][0]["where"] == ["backward pool1", "backward pool2"]
    assert [item["ids"] for item in found["gained"]] == [["z"]]
    assert [item["ids"] for item in found["shared"]] == [["y"]]
    assert [item["engine"] for item in found["unknown"]] == ["b"]
    json.dumps(found)
