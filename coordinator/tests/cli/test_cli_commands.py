"""Commands against a coordinator with fake services: results, JSON, exit codes, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from crosstrain.cli import main as cli_main
from crosstrain.cli.main import app
from doubles.world import World

Cli = Callable[..., Any]


@pytest.fixture
def address(world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """A coordinator with two engines, which commands find by the environment variable."""
    world.service("fake", engines=(("torch", "2.13.0"), ("reference", "1")))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    return world.server.address


@pytest.mark.usefixtures("address")
def test_run_writes_results_and_prints_the_comparison(cli: Cli, job: Path, tmp_path: Path) -> None:
    ran = cli("run", job, "--results", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "torch@2.13.0" in ran.out
    assert "|loss - reference|" in ran.out
    assert f"Results are in {tmp_path / 'out'}" in ran.out
    assert "torch@2.13.0 #0: succeeded" in ran.err
    assert (tmp_path / "out" / "results.csv").read_text().count("\n") == 3


@pytest.mark.usefixtures("address")
def test_run_with_json_prints_one_document(cli: Cli, job: Path) -> None:
    ran = cli("run", job, "--json", "--job-id", "one")
    assert ran.code == 0
    assert ran.json["job_id"] == "one"
    assert ran.json["exit_code"] == 0
    assert [run["state"] for run in ran.json["runs"]] == ["succeeded", "succeeded"]
    assert [item["engine"] for item in ran.json["comparison"]] == ["torch"]
    assert Path(ran.json["results"]) == Path("crosstrain-results/one")


def test_a_failed_engine_gives_exit_code_3_and_still_results(
    cli: Cli, job: Path, world: World, address: str, tmp_path: Path
) -> None:
    world.services[0].failing.add("reference")
    ran = cli("run", job, "--job-id", "broken", "--results", tmp_path / "out")
    assert ran.code == 3
    assert "reference@1: failed: " in ran.out
    assert (tmp_path / "out" / "results.csv").read_text().count("\n") == 2


@pytest.mark.usefixtures("address")
def test_an_engine_that_is_not_there_refuses_the_job(cli: Cli, job: Path) -> None:
    job.write_text(job.read_text().replace("reference", "lasagne"))
    ran = cli("run", job)
    assert ran.code == 3
    assert "cannot run here: lasagne: no registered service offers it" in ran.err
    assert "--skip-unavailable" in ran.err
    assert ran.out == ""
    skipped = cli("run", job, "--skip-unavailable", "--json")
    assert skipped.code == 0
    assert [run["engine"] for run in skipped.json["runs"]] == ["torch"]
    assert skipped.json["left_out"] == {"lasagne": "no registered service offers it"}


def test_something_unsupported_is_refused_by_name(
    cli: Cli, job: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.service("fake", engines=(("torch", "2.13.0"), ("reference", "1")), lacking=("optimizer.sgd",))
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    ran = cli("run", job)
    assert ran.code == 3
    assert "optimizer.sgd" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.usefixtures("address")
def test_submit_watch_show_jobs_cancel_export(cli: Cli, job: Path, tmp_path: Path) -> None:
    assert cli("submit", job, "--job-id", "mine").out == "mine\n"
    assert cli("submit", job, "--job-id", "mine", "--json").json["job_id"] == "mine"
    watched = cli("watch", "mine")
    assert watched.code == 0
    assert watched.out == "job mine: succeeded\n"
    lines = [json.loads(line) for line in cli("watch", "mine", "--json").out.splitlines()]
    assert [int(line["sequence"]) for line in lines] == list(range(1, len(lines) + 1))
    shown = cli("show", "mine", "--json").json
    assert shown["state"] == "succeeded"
    assert shown["document"].startswith("name: small")
    assert "job mine (small): succeeded" in cli("show", "mine").out
    assert [item["job_id"] for item in cli("jobs", "--json").json] == ["mine"]
    assert "mine" in cli("jobs").out
    assert cli("cancel", "mine", "--json").json["state"] == "succeeded"
    exported = cli("export-results", "mine", tmp_path / "out")
    assert exported.code == 0
    assert (tmp_path / "out" / "steps.parquet").exists()


@pytest.mark.usefixtures("address")
def test_the_same_job_id_with_another_document_is_refused(cli: Cli, job: Path) -> None:
    assert cli("submit", job, "--job-id", "mine").code == 0
    job.write_text(job.read_text().replace("0.1", "0.2"))
    ran = cli("submit", job, "--job-id", "mine", "--json")
    assert ran.code == 3
    assert ran.json["error"]["reason"] == "ID_REUSED"


@pytest.mark.usefixtures("address")
def test_evaluate(cli: Cli, job: Path, tmp_path: Path) -> None:
    from crosstrain_service import weights
    from crosstrain_service.testing import cnn2

    path = tmp_path / "w.safetensors"
    path.write_bytes(weights.to_bytes(weights.initial_parameters(cnn2((1, 8, 8), 3), 0)))
    ran = cli("evaluate", job, "--weights", path, "--results", tmp_path / "out")
    assert ran.code == 0, ran.err
    assert (tmp_path / "out" / "evaluation.csv").read_text().count("\n") == 3


@pytest.mark.usefixtures("address")
def test_engines(cli: Cli) -> None:
    listed = {item["engine"]: item for item in cli("engines", "--json").json}
    assert set(listed) == {"torch", "reference"}
    assert listed["torch"]["state"] == "ready"
    assert listed["torch"]["features"]["layer.dense"]["support"] == "exact"
    text = cli("engines", "--features").out
    assert "torch@2.13.0" in text
    assert "layer.convolution2d" in text


def test_ctrl_c_cancels_the_job(
    cli: Cli, job: Path, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.service("slow", engines=(("torch", "2.13.0"), ("reference", "1")), steps=1000, delay=0.05)
    monkeypatch.setenv("CROSSTRAIN_COORDINATOR", world.server.address)
    seen: list[object] = []

    def interrupt(self: object, record: object, event: Any) -> None:
        seen.append(event)
        if event.WhichOneof("event") == "run_event" and event.run_event.WhichOneof("event") == "steps":
            raise KeyboardInterrupt

    monkeypatch.setattr("crosstrain.cli.progress.PlainLines.update", interrupt)
    ran = cli("run", job, "--job-id", "stopped", "--results", tmp_path / "out")
    assert ran.code == 130
    assert cli("show", "stopped", "--json").json["state"] == "cancelled"
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["state"] == "cancelled"


def test_errors_in_the_document_name_file_and_line_before_anything_starts(cli: Cli, job: Path) -> None:
    job.write_text(job.read_text().replace("epochs: 1", "epoch: 1").replace("0.1", "fast"))
    ran = cli("run", job)
    assert ran.code == 3
    assert ran.err.splitlines() == [
        f"crosstrain: {job}:5: training.epoch: unknown field; did you mean epochs?",
        f"crosstrain: {job}:7: training.optimizer.sgd.learning_rate: must be a number, not 'fast'",
    ]
    as_json = cli("run", job, "--json").json
    assert as_json["exit_code"] == 3
    assert [item["field"] for item in as_json["error"]["violations"]] == [
        "training.epoch",
        "training.optimizer.sgd.learning_rate",
    ]


def test_a_network_that_does_not_fit_the_data_is_found_before_anything_starts(cli: Cli, job: Path) -> None:
    layers = "{layers: [flatten, {dense: {units: 4}}]}"
    job.write_text(job.read_text().replace("cnn2", layers))
    ran = cli("run", job)
    assert ran.code == 3
    assert ran.err.startswith(f"crosstrain: {job}:2: model: the last layer 'dense1' gives 4 values")


def test_a_model_file_is_read_and_its_errors_name_it(cli: Cli, job: Path, tmp_path: Path) -> None:
    job.write_text(job.read_text().replace("cnn2", "net.yaml"))
    ran = cli("data", "check", job)
    assert "the model file cannot be read" in ran.err
    (tmp_path / "net.yaml").write_text("name: own\nlayers:\n- flatten\n- dense: {unit: classes}\n")
    ran = cli("data", "check", job)
    assert f"{tmp_path / 'net.yaml'}:4: model.layers[1].dense.unit: unknown field; did you mean units?" in ran.err
    (tmp_path / "net.yaml").write_text("name: own\nlayers:\n- flatten\n- dense: {units: classes}\n")
    assert cli("data", "check", job).code == 0


def test_data_check(cli: Cli, job: Path, tmp_path: Path) -> None:
    ran = cli("data", "check", job, "--json")
    assert ran.code == 0
    assert ran.json["datasets"]["train"]["samples"] == 40
    assert ran.json["steps"] == 5
    assert "1x8x8" in cli("data", "check", job).out
    lines = (tmp_path / "train.csv").read_text().splitlines()
    lines[4] = lines[4].replace(",", ",?", 1)
    (tmp_path / "train.csv").write_text("\n".join(lines))
    ran = cli("data", "check", job)
    assert ran.code == 3
    assert "row 5" in ran.err
    assert "Traceback" not in ran.err


def test_data_import(cli: Cli, job: Path, tmp_path: Path) -> None:
    info = cli("data", "import", tmp_path / "train.csv", "--json").json
    assert info["input_shape"] == [1, 8, 8]
    assert cli("data", "import", tmp_path / "train.csv", "--shape", "2,32", "--json").json["input_shape"] == [2, 32]
    assert cli("data", "import", tmp_path / "train.csv", "--shape", "a,b").code == 64
    assert cli("data", "import", tmp_path / "nothing.csv").code == 3


def test_no_coordinator(cli: Cli, job: Path) -> None:
    for arguments in (["jobs"], ["engines"], ["show", "x"], ["submit", job], ["run", job]):
        ran = cli(*arguments, "--coordinator", "127.0.0.1:9")
        assert ran.code == 3, arguments
        assert "no coordinator answers at 127.0.0.1:9" in ran.err
        assert "crosstrain up" in ran.err


@pytest.mark.usefixtures("address")
def test_an_unknown_job(cli: Cli) -> None:
    ran = cli("show", "nobody", "--json")
    assert ran.code == 3
    assert ran.json["error"]["reason"] == "JOB_NOT_FOUND"
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["run", "a.yaml", "--nonsense"], ["jobs", "--limit", "0"], ["jobs", "--limit", "x"]],
)
def test_wrong_usage(cli: Cli, arguments: list[str]) -> None:
    ran = cli(*arguments)
    assert ran.code == 64
    assert ran.err.startswith("crosstrain: ")
    assert ran.err.count("\n") == 1


def test_a_missing_file(cli: Cli) -> None:
    ran = cli("run", "nothing.yaml")
    assert (ran.code, ran.err) == (3, "crosstrain: nothing.yaml: No such file or directory\n")


def test_a_results_folder_of_something_else_is_refused_before_anything_starts(
    cli: Cli, job: Path, tmp_path: Path
) -> None:
    ran = cli("run", job, "--results", tmp_path)
    assert ran.code == 3
    assert "holds other files" in ran.err


def test_down_without_up(cli: Cli) -> None:
    assert cli("down").out == "nothing runs here\n"
    assert cli("down", "--json").json == {"stopped": False}


def test_doctor(cli: Cli) -> None:
    found = cli("doctor", "--json").json
    assert {service["service"] for service in found["services"]} >= {"reference", "torch"}
    for service in found["services"]:
        assert service["state"] in ("ready", "can be built", "unavailable")
        assert service["reason"]


@pytest.mark.parametrize(
    "command",
    ["up", "down", "run", "submit", "watch", "jobs", "show", "cancel", "engines", "evaluate", "export-results",
     "doctor", "demo", "data check", "data import", "data consistency"],
)  # fmt: skip
def test_every_command_has_help_and_json(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "--json" in result.output
    assert len(result.output.splitlines()) > 6


def test_the_help_names_the_exit_codes() -> None:
    result = CliRunner().invoke(app, ["--help"])
    text = " ".join(result.output.split())
    assert "Exit codes: 0 ok" in text
    assert "1 MISMATCH; 2 INCONCLUSIVE; 3 something could not run" in text
    assert "64 wrong usage" in text


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr("crosstrain.cli.local.state_folder", lambda given: 1 // 0)
    ran = cli("down")
    assert ran.code == 3
    assert "Traceback" in ran.err
    assert "a defect in crosstrain: ZeroDivisionError" in ran.err
    assert cli_main(["--help"]) == 0


@pytest.mark.usefixtures("address")
def test_remarks_about_the_data_reach_the_user_and_the_results(cli: Cli, job: Path, tmp_path: Path) -> None:
    train = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join([train[0], *train[1:3]]) + "\n")
    ran = cli("run", job, "--results", tmp_path / "out", "--json", "--job-id", "remarked")
    assert ran.code == 0, ran.err
    overlap = "2 of 2 test samples repeat the pixels of a training sample; all are kept"
    absent = "test has no sample of 1 classes: 2 (13 in the other split)"
    for text in (overlap, absent):
        assert ran.err.count(f"warning: {text}") == 1
        assert {"severity": "warning", "text": text} in ran.json["remarks"]
        assert f"data warning: {text}" in (tmp_path / "out" / "run.log").read_text()
        assert f"warning: {text}" in cli("show", "remarked").out


def test_a_large_document_is_refused_as_such(cli: Cli, job: Path) -> None:
    # The limit falls inside of a character of two bytes.
    job.write_text("name: a\n#" + "\u00e9" * (1 << 20), encoding="utf-8")
    ran = cli("data", "check", job)
    assert ran.code == 3
    assert "the document is larger than 1048576 bytes" in ran.err
