"""Discovery, with interpreters that are shell scripts of an invented version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crosstrain.launch.interpreters import clean_environment, find_interpreter

WANTED = "3.99"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake(path: Path, version: str, *, venv: bool = True, headers: bool = True) -> Path:
    report = {"version": version, "executable": str(path), "venv": venv, "headers": headers}
    return script(path, f"echo '{json.dumps(report)}'")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {
        "PATH": str(tmp_path / "bin"),
        "HOME": str(tmp_path / "home"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
    }


def test_finds_the_versioned_name_on_path(tmp_path: Path, environ: dict[str, str]) -> None:
    expected = fake(tmp_path / "bin" / "python3.99", "3.99.4")
    found = find_interpreter(WANTED, environ).found
    assert found is not None
    assert (found.path, found.version, found.minor_version) == (expected, "3.99.4", WANTED)


def test_accepts_a_plain_name_only_of_the_wanted_version(tmp_path: Path, environ: dict[str, str]) -> None:
    plain = fake(tmp_path / "bin" / "python3", "3.98.0")
    assert find_interpreter(WANTED, environ).found is None
    fake(plain, "3.99.0")
    assert find_interpreter(WANTED, environ).found is not None


def test_looks_in_later_folders_of_path(tmp_path: Path, environ: dict[str, str]) -> None:
    fake(tmp_path / "bin" / "python3", "3.98.0")
    expected = fake(tmp_path / "other" / "python3", "3.99.0")
    environ["PATH"] = os.pathsep.join([str(tmp_path / "bin"), str(tmp_path / "other")])
    found = find_interpreter(WANTED, environ).found
    assert found is not None and found.path == expected


def test_pyenv_gives_its_newest_patch_release(tmp_path: Path, environ: dict[str, str]) -> None:
    for version in ("3.99.2", "3.99.10", "3.98.30"):
        fake(tmp_path / "pyenv" / "versions" / version / "bin" / "python3.99", version)
    found = find_interpreter(WANTED, environ).found
    assert found is not None and found.version == "3.99.10"


def test_a_pyenv_shim_that_refuses_does_not_hide_the_real_one(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    script(tmp_path / "bin" / "python3.99", "echo 'pyenv: python3.99: command not found' >&2; exit 127")
    fake(tmp_path / "pyenv" / "versions" / "3.99.1" / "bin" / "python3.99", "3.99.1")
    found = find_interpreter(WANTED, environ).found
    assert found is not None and "versions" in str(found.path)


@pytest.mark.parametrize("body", ["exit 1", "echo nonsense", "echo '[]'", "echo '{\"version\": null}'"])
def test_ignores_candidates_that_answer_badly(tmp_path: Path, environ: dict[str, str], body: str) -> None:
    script(tmp_path / "bin" / "python3.99", body)
    search = find_interpreter(WANTED, environ)
    assert search.found is None and search.rejected == ()


def test_asks_uv(tmp_path: Path, environ: dict[str, str]) -> None:
    expected = fake(tmp_path / "uv-pythons" / "python3.99", "3.99.7")
    script(tmp_path / "bin" / "uv", f'[ "$1 $2 $4" = "python find 3.99" ] && echo {expected}')
    found = find_interpreter(WANTED, environ).found
    assert found is not None and found.path == expected


def test_uv_installs_only_when_asked_to(tmp_path: Path, environ: dict[str, str]) -> None:
    prepared = fake(tmp_path / "prepared", "3.99.8")
    target = tmp_path / "uv-pythons" / "python3.99"
    body = f'[ "$2" = install ] && {{ /bin/mkdir -p {target.parent}; /bin/cp {prepared} {target}; exit; }}\n'
    script(tmp_path / "bin" / "uv", body + f"[ -x {target} ] && echo {target}")
    assert find_interpreter(WANTED, environ).found is None
    lines: list[str] = []
    found = find_interpreter(WANTED, environ, install=True, progress=lines.append).found
    assert found is not None and found.version == "3.99.8"
    assert lines == ["uv: installing Python 3.99"]


def test_rejects_a_python_without_venv_and_says_so(tmp_path: Path, environ: dict[str, str]) -> None:
    fake(tmp_path / "bin" / "python3.99", "3.99.0", venv=False)
    search = find_interpreter(WANTED, environ)
    assert search.found is None
    assert [rejected.reason for rejected in search.rejected] == [
        f"Python 3.99.0 at {tmp_path / 'bin' / 'python3.99'} lacks the modules venv and ensurepip"
    ]


def test_rejects_a_python_without_headers_only_when_they_matter(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    fake(tmp_path / "bin" / "python3.99", "3.99.0", headers=False)
    assert find_interpreter(WANTED, environ).found is not None
    search = find_interpreter(WANTED, environ, headers=True)
    assert search.found is None and "Python.h" in search.rejected[0].reason


def test_finds_the_running_version_even_with_an_empty_path(environ: dict[str, str]) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = find_interpreter(version, environ).found
    assert found is not None
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    assert subprocess.check_output([found.path, "-I", "-c", code], text=True).strip() == found.version


def test_a_foreign_interpreter_does_not_see_our_import_path() -> None:
    cleaned = clean_environment({"PYTHONPATH": "a", "PYTHONHOME": "b", "VIRTUAL_ENV": "c", "PATH": "d"})
    assert cleaned == {"PATH": "d"}
