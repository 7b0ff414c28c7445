"""The shell entry ``bin/crosstrain``, up to the point where it would build something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from crosstrain.launch.catalogue import load_catalogue

COMMAND = load_catalogue().root / "bin" / "crosstrain"


def run(command: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **variables}
    return subprocess.run(
        [command, "--help"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_broken_catalogue_is_reported_also_through_symbolic_links(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.toml")
    (tmp_path / "first").symlink_to(COMMAND)
    (tmp_path / "second").symlink_to("first")
    finished = run(tmp_path / "second", CROSSTRAIN_CATALOGUE=absent, CROSSTRAIN_PYTHON=sys.executable)
    assert finished.returncode == 3
    assert finished.stderr == f"crosstrain: {absent}: No such file or directory\n"


def test_says_what_to_do_without_a_python(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "readlink", "cat"):
        path = shutil.which(tool)
        assert path is not None
        (tools / tool).symlink_to(path)
    finished = run(
        COMMAND, PATH=str(tools), HOME=str(tmp_path), PYENV_ROOT=str(tmp_path), CROSSTRAIN_PYTHON=""
    )
    assert finished.returncode == 3
    assert "no Python 3.11, 3.12 or 3.13" in finished.stderr and "To fix it:" in finished.stderr


def test_refuses_a_named_python_that_does_not_fit(tmp_path: Path) -> None:
    finished = run(COMMAND, CROSSTRAIN_PYTHON=str(tmp_path / "python"))
    assert finished.returncode == 3
    assert (
        f"CROSSTRAIN_PYTHON is not a Python 3.11 to 3.13 with venv: {tmp_path / 'python'}" in finished.stderr
    )
