"""The whole stack in containers, used from outside through the one port that it publishes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crosstrain.data.digits import write_digits
from tests.e2e import inputs

from .docker import docker, inspect
from .images import ROOT
from .stack import SERVICES, Stack

Report = Callable[[str], None]
#: Engines of the main job, as a column of its results.
MAIN = 9


def test_all_containers_are_healthy_and_have_least_rights(stack: Stack) -> None:
    for name in ("coordinator", *SERVICES.values()):
        found = inspect(stack.container(name))
        assert found["State"]["Health"]["Status"] == "healthy", name
        assert found["RestartCount"] == 0, stack.logs(name)
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"] is True and host["CapDrop"] == ["ALL"] and not host["Privileged"]


@pytest.mark.parametrize("service", ["coordinator", *SERVICES.values()])
def test_processes_inside(stack: Stack, service: str) -> None:
    rows = docker("top", stack.container(service), "-eo", "pid,args").splitlines()[1:]
    commands = [row.split(None, 1)[1] for row in rows]
    assert commands[0].startswith("/usr/bin/tini -- python -m crosstrain")
    # A health check that just begins is still the container runtime.
    own = [command for command in commands[1:] if not command.startswith(("runc ", "/proc/self/"))]
    assert own and all(Path(command.split()[0]).name.startswith("python") for command in own), commands
    status = json.loads(stack.python(service, (
        "import json, os; lines = dict(line.split(':', 1) for line in open('/proc/self/status'));"
        "print(json.dumps({'ids': [os.getuid(), os.getgid()], 'groups': os.getgroups(),"
        "'effective': lines['CapEff'].strip(), 'bounding': lines['CapBnd'].strip(),"
        "'no_new': lines['NoNewPrivs'].strip(), 'root': os.access('/', os.W_OK),"
        "'code': os.access('/opt/crosstrain', os.W_OK), 'data': os.access('/data', os.W_OK)}))"
    )))  # fmt: skip
    none = "0" * 16
    assert status == {
        "ids": [65532, 65532], "groups": [65532], "effective": none, "bounding": none, "no_new": "1", "root": False,
        "code": False, "data": True,
    }  # fmt: skip


def test_engines_are_listed_with_two_versions_of_tensorflow(stack: Stack) -> None:
    ran = stack.crosstrain("engines", "--json")
    assert ran.code == 0, ran.err
    found = {(item["engine"], item["version"]): item for item in ran.json}
    assert set(found) == {
        ("reference", "1"), ("torch", "2.13.0+cpu"), ("tensorflow", "2.12.1"), ("tensorflow", "2.21.0"),
        ("keras-tensorflow", "2.12.0"), ("keras-tensorflow", "3.15.1"), ("keras-theano", "2.3.1"), ("lasagne", "0.1"),
        ("caffe", "1.0.0"),
    }  # fmt: skip
    assert {item["unavailable_reason"] for item in found.values()} == {""}
    assert found["tensorflow", "2.21.0"]["preferred"] and not found["tensorflow", "2.12.1"]["preferred"]
    table = stack.crosstrain("engines").out
    assert "tensorflow@2.12.1" in table and "tensorflow@2.21.0" in table


def test_the_main_job_runs_in_all_engines(stack: Stack, tmp_path: Path, report: Report) -> None:
    example = (ROOT / "examples" / "mnist-cnn2.yaml").read_text(encoding="utf-8")
    (tmp_path / "job.yaml").write_text(example)
    write_digits(tmp_path)
    out = tmp_path / "results"
    ran = stack.crosstrain("run", tmp_path / "job.yaml", "--results", out, "--job-id", "main", "--json")
    assert ran.code == 0, ran.out[-3000:] + ran.err[-3000:]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["state"] == "succeeded" and summary["verdict"]["verdict"] == "ROUNDING"
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert len(rows) == len({row["framework"] for row in rows}) == MAIN
    assert any(row["framework"].startswith("caffe@") for row in rows)
    for row in rows:
        assert float(row["accuracy_pct"]) > 85
    verdict = json.loads((out / "verdict.json").read_text())
    assert {engine["verdict"] for engine in verdict["engines"]} == {"ROUNDING"}
    assert (out / "report.html").stat().st_size > 100_000
    attempts = {run["attempts"] for run in summary["runs"]}
    report(f"main job: {verdict['sentence']} {len(summary['runs'])} runs, {ran.seconds:.0f} s, attempts {attempts}")
    for row in rows:
        report(f"  {row['framework']:<26}{float(row['train_time_sec']):>8.2f} s{float(row['accuracy_pct']):>8.2f} %"
               f"{float(row['memory_peak_mb']):>8.0f} MB")  # fmt: skip


def test_a_job_names_files_of_the_mounted_folder(stack: Stack, tmp_path: Path) -> None:
    values = json.loads(inputs.document(["torch", "caffe"], training={"max_steps": 3}))
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps({**values, "data": {"train": "train.csv", "test": "test.csv"}}))
    ran = stack.crosstrain("run", job, "--remote-data", "--results", tmp_path / "out", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert [run["steps"] for run in ran.json["runs"]] == [3, 3]
    job.write_text(json.dumps({**values, "data": {"train": "../etc/passwd"}}))
    ran = stack.crosstrain("run", job, "--remote-data", "--results", tmp_path / "bad", "--json")
    assert ran.code != 0 and "Traceback" not in ran.err


def test_two_versions_compared(stack: Stack, tmp_path: Path, report: Report) -> None:
    write_digits(tmp_path)
    (tmp_path / "job.yaml").write_text(
        "name: tensorflow-swap\n"
        "model: cnn2\n"
        "data: {train: train.csv, test: test.csv}\n"
        "training: {epochs: 1, batch_size: 64, optimizer: {sgd: {learning_rate: 0.05, momentum: 0.9}}, seed: 7}\n"
        "repeats: 3\n"
        "engines: [tensorflow@2.12, tensorflow@2.21]\n"
    )
    out = tmp_path / "results"
    ran = stack.crosstrain("run", tmp_path / "job.yaml", "--results", out, "--job-id", "swap", "--json")
    assert ran.code == 0, ran.out[-3000:] + ran.err[-3000:]
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert sorted(row["framework"] for row in rows) == ["tensorflow@2.12.1"] * 3 + ["tensorflow@2.21.0"] * 3
    summary = json.loads((out / "summary.json").read_text())
    services = {run["version"]: run["service"] for run in summary["runs"] if run["kind"] == "train"}
    assert services == {"2.12.1": "tensorflow-2.12", "2.21.0": "tensorflow-2.21"}
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["verdict"] == "ROUNDING"
    page = (out / "report.html").read_text()
    assert "tensorflow@2.12.1" in page and "tensorflow@2.21.0" in page
    report(f"A/B: {verdict['sentence']} {ran.seconds:.0f} s")
    for version in ("2.12.1", "2.21.0"):
        own = [row for row in rows if row["framework"].endswith(version)]
        seconds = ", ".join(f"{float(row['train_time_sec']):.1f}" for row in own)
        report(f"  tensorflow@{version}: {seconds} s")
