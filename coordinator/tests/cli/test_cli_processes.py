"""The command line as a process: start-up, signals, 'up' and 'down', and a real run with the reference engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.environments import reference_cache

COMMAND = [sys.executable, "-m", "crosstrain"]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {**reference_cache(tmp_path / "built"), "CROSSTRAIN_STATE_DIR": str(tmp_path / "up")}


def run(variables: dict[str, str], *arguments: object, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *(str(argument) for argument in arguments)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture
def up(variables: dict[str, str]) -> Iterator[dict[str, object]]:
    """'crosstrain up --background' with the reference service."""
    listen = ["--listen", "127.0.0.1:0"]
    started = run(variables, "up", "--background", "--service", "reference", *listen, "--json")
    assert started.returncode == 0, started.stderr
    yield json.loads(started.stdout)
    run(variables, "down")


def reference_only(job: Path, steps: int = 3) -> None:
    text = job.read_text().replace("[torch, reference]", "[reference]")
    job.write_text(text.replace("epochs: 1", f"epochs: 1\n  max_steps: {steps}"))


def test_help_imports_nothing_heavy(variables: dict[str, str]) -> None:
    code = (
        "import sys; from crosstrain.cli import main; main(['--help']); "
        "print([name for name in ('grpc', 'numpy', 'pydantic', 'pyarrow', 'ruamel') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error(variables: dict[str, str]) -> None:
    pipe = f"{sys.executable} -m crosstrain doctor --json | head -n 1"
    done = subprocess.run(["bash", "-c", pipe], env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_exit_codes_of_a_process(variables: dict[str, str], tmp_path: Path) -> None:
    assert run(variables, "--help").returncode == 0
    assert run(variables, "nonsense").returncode == 64
    assert run(variables, "run", tmp_path / "nothing.yaml").returncode == 3
    assert run(variables).returncode == 64


def test_up_run_down(variables: dict[str, str], up: dict[str, object], job: Path, tmp_path: Path) -> None:
    assert [item["state"] for item in up["services"]] == ["ready"]  # type: ignore[attr-defined]
    again = run(variables, "up")
    assert again.returncode == 3
    assert "another crosstrain up uses this state folder" in again.stderr
    assert "crosstrain down" in again.stderr
    engines = json.loads(run(variables, "engines", "--json").stdout)
    assert [item["engine"] for item in engines] == ["reference"]
    reference_only(job)
    done = run(variables, "run", job, "--results", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["runs"][0]["steps"] == 3
    assert values["runs"][0]["final_loss"] > 0
    assert (tmp_path / "out" / "steps.parquet").exists()
    same = run(variables, "data", "consistency", job, "--samples", 20, "--json")
    assert same.returncode == 0, same.stdout + same.stderr
    seen = json.loads(same.stdout)
    assert seen["identical"]
    assert len(seen["expected"]) == len(set(seen["expected"])) == 20
    assert seen["engines"][0]["handed"] == seen["engines"][0]["computed"] == seen["expected"]
    assert run(variables, "down").stdout.startswith("stopped")
    assert run(variables, "down").stdout == "nothing runs here\n"


def test_run_starts_and_stops_what_it_needs(variables: dict[str, str], job: Path, tmp_path: Path) -> None:
    reference_only(job)
    done = run(variables, "run", job, "--results", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "reference@1" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "no colours outside of a terminal"
    assert not (tmp_path / "up" / "up.json").exists()
    assert not _processes_of(tmp_path)


def test_a_second_run_waits_for_the_first(variables: dict[str, str], job: Path, tmp_path: Path) -> None:
    reference_only(job)
    command = [*COMMAND, "run", str(job), "--results"]
    both = [
        subprocess.Popen(
            [*command, str(tmp_path / name)], env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    ends = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert sum("waiting for it" in err for _, err in ends) == 1
    assert (tmp_path / "one" / "results.csv").exists()
    assert (tmp_path / "two" / "results.csv").exists()


def test_ctrl_c_ends_a_run_and_all_its_processes(variables: dict[str, str], job: Path, tmp_path: Path) -> None:
    reference_only(job, 0)
    job.write_text(job.read_text().replace("epochs: 1", "epochs: 100000"))
    command = [*COMMAND, "run", str(job), "--results", str(tmp_path / "out")]
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "running, step" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert "cancelled" in out
    assert not _processes_of(tmp_path)


def test_sigterm_ends_up(variables: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--service", "reference", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ready"):
            break
    began = time.monotonic()
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert time.monotonic() - began < 20
    assert not _processes_of(tmp_path)


def test_more_signals_leave_no_process_behind(variables: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--service", "reference", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ready"):
            break
    process.terminate()
    for line in process.stderr:
        if line.startswith("stopping"):
            break
    for _ in range(3):
        process.terminate()
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert not _processes_of(tmp_path)


def _processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were started with something in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in line:
                found.append(line)
    return found
