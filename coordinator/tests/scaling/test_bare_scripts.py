"""Which bare script belongs to what, the command that starts it, and what becomes of its words and processes."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import psutil
import pytest

from crosstrain.launch.catalogue import load_catalogue
from crosstrain.scaling.bare import (
    SCRIPTS,
    BareScript,
    BareScriptFailed,
    BareSettings,
    BareTimes,
    command,
    last_words,
    run_script,
    script_folder,
    variables,
)

PYTHON = Path("/env/bin/python")
SETTINGS = BareSettings(
    steps=20, threads=2, batch_size=32, learning_rate=0.01, momentum=0.5, classes=3, deterministic=True,
    canonical_ops=True,
)  # fmt: skip


def script(folder: Path, text: str) -> list[str]:
    """The command of a small script."""
    path = folder / "script.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_every_script_of_the_checkout_has_its_place_and_takes_what_it_is_given() -> None:
    folder = script_folder(load_catalogue().root)
    assert {path.name for path in folder.glob("*.py")} == {item.file for item in SCRIPTS.values()}
    for item in SCRIPTS.values():
        known = set(re.findall(r'add_argument\("(--[a-z-]+)"', (folder / item.file).read_text()))
        wanted = {word for word in SETTINGS.options(item, 2) if word.startswith("--")}
        assert wanted <= known, item.file
        # What a script has must be asked for: the function and its kernels are those of the job.
        assert item.canonical_ops == ("--canonical-ops" in known), item.file
        assert item.deterministic == ("--deterministic" in known), item.file
        assert item.ranks == ("--ranks" in known), item.file


@pytest.mark.parametrize(
    ("engine", "backend", "begin"),
    [
        ("torch", "native", "/env/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 "),
        ("torch", "horovod", "/env/bin/python /env/bin/horovodrun -np 2 --gloo --network-interfaces lo "),
        ("caffe", "mpi", "/env/bin/mpiexec.gforker -n 2 /env/bin/python "),
        ("tensorflow", "native", "/env/bin/python "),
        ("lasagne", "", "/env/bin/python "),
    ],
)
def test_commands(engine: str, backend: str, begin: str) -> None:
    item = SCRIPTS[engine, backend]
    words = command(item, Path("/bare"), PYTHON, 2, Path("/data.npz"), SETTINGS)
    text = " ".join(words)
    assert text.startswith(begin)
    assert "/env/bin/python -m torch.distributed.run" in text or f"/env/bin/python /bare/{item.file}" in text
    assert f" /bare/{item.file} /data.npz --steps" in text
    assert "--steps 20 --threads 2 --batch-size 32 --learning-rate 0.01 --momentum 0.5 --classes 3" in text
    assert ("--ranks 2" in text) == (engine == "tensorflow")
    assert ("--deterministic" in text) == (engine in ("torch", "tensorflow"))
    assert ("--canonical-ops" in text) == (engine == "lasagne")


def test_scripts_get_what_their_users_have() -> None:
    found = variables(PYTHON, 3, {"PATH": "/usr/bin", "PYTHONPATH": "/sources", "HOME": "/home"})
    assert found["PATH"] == "/env/bin:/usr/bin"
    assert found["OMP_NUM_THREADS"] == "3"
    assert "PYTHONPATH" not in found and found["HOME"] == "/home"


def test_a_checkout_without_scripts(tmp_path: Path) -> None:
    with pytest.raises(BareScriptFailed, match=r"benchmarks/bare is missing"):
        script_folder(tmp_path)


def test_throughput_leaves_out_the_first_step() -> None:
    assert BareTimes(9.0, [100.0, 1.0, 0.5], [8, 8, 4]).throughput == pytest.approx(8.0)
    assert BareTimes(9.0, [2.0], [8]).throughput == pytest.approx(4.0)
    assert BareTimes(9.0, [], []).throughput is None


def test_a_script_tells_its_times(tmp_path: Path) -> None:
    told = {"first_step_seconds": 1.5, "step_seconds": [0.5, 0.25], "step_samples": [8, 4]}
    words = script(tmp_path, f"print('[1,0]<stdout>:' + {json.dumps(json.dumps(told))})")
    assert run_script(words) == BareTimes(1.5, [0.5, 0.25], [8, 4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("print('{\"step_seconds\": 1}')", "printed no times"),
        ("print('hello')", "hello"),
        ("import sys; sys.exit(7)", "exit code 7"),
    ],
)
def test_a_script_that_fails_is_told_by_its_last_words(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BareScriptFailed, match=re.escape(message)):
        run_script(script(tmp_path, text))


def test_what_cannot_be_started() -> None:
    with pytest.raises(BareScriptFailed, match="/nowhere/mpiexec cannot be started: No such file"):
        run_script(["/nowhere/mpiexec", "-n", "2"])


def test_a_script_that_hangs_is_stopped_with_its_ranks(tmp_path: Path) -> None:
    rank = "import os, time; open('rank', 'w').write(str(os.getpid())); time.sleep(60)"
    text = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
subprocess.Popen([sys.executable, "-c", {rank!r}], cwd={str(tmp_path)!r}, start_new_session=True)
time.sleep(60)
"""
    began = time.monotonic()
    with pytest.raises(BareScriptFailed, match="not ended after 3 s"):
        run_script(script(tmp_path, text), limit=3.0)
    assert time.monotonic() - began < 20
    pid = int((tmp_path / "rank").read_text())
    deadline = time.monotonic() + 10  # it was killed; a busy machine takes its time
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the rank is left"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: too few rows\n"
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n========\nRoot Cause",
            "ValueError: too few rows",
        ),
        ("[1,0]<stderr>:ImportError: hvd\nHorovod detected that one or more processes exited", "ImportError: hvd"),
        ("horovod.common.exceptions.HorovodInternalError: x\n", "horovod.common.exceptions.HorovodInternalError: x"),
        ("a warning\nKilled\n", "Killed"),
        ("", ""),
    ],
)
def test_last_words(text: str, words: str) -> None:
    assert last_words(text) == words


def test_names_for_people() -> None:
    assert str(SCRIPTS["torch", "native"]) == "torchrun torch_ddp_cnn2.py"
    assert str(BareScript("x.py")) == "x.py"
