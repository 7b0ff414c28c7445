"""Wheels that are built here, by a build backend of a few lines inside the test."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from crosstrain.launch import building
from crosstrain.launch.environments import (
    Environment,
    Recipe,
    Unavailable,
    build_environment,
    find_environment,
)
from crosstrain.launch.system import SystemPackage, installed_versions, is_present
from crosstrain.launch.wheels import project_key

BACKEND = """
import pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open(pathlib.Path(__file__).with_name("builds.md"), "a") as file:
        file.write("built\\n")
    for step in (1, 2):
        print("[%d/2] Building part %d" % (step, step), flush=True)
        time.sleep(SECONDS)
    name = "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
        archive.writestr("made.py", "VALUE = %r" % VALUE)
        archive.writestr("made-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: made\\nVersion: 1.0\\n")
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr("made-1.0.dist-info/WHEEL", tags)
        archive.writestr("made-1.0.dist-info/RECORD", "")
    return name
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "made" / "build"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "made"\nversion = "1.0"\n'
    )
    write(folder, "first")
    return folder


def write(project: Path, value: str, seconds: float = 0) -> None:
    settings = f"VALUE, SECONDS = {value!r}, {seconds}\n"
    (project / "backend.py").write_text(settings + BACKEND)


def builds(project: Path) -> int:
    return len((project / "builds.md").read_text().splitlines())


def build(recipe: Recipe, environ: dict[str, str]) -> tuple[Environment, list[str]]:
    lines: list[str] = []
    built = build_environment(recipe, environ=environ, progress=lines.append)
    assert isinstance(built, Environment), built
    return built, lines


def value_in(environment: Environment) -> str:
    code = "import made; print(made.VALUE)"
    return subprocess.check_output([environment.python, "-I", "-c", code], text=True).strip()


def test_a_wheel_is_built_once_and_again_when_its_project_changes(
    recipe: Recipe, project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    plain = find_environment(recipe, environ)
    recipe = dataclasses.replace(recipe, build=project)
    first, lines = build(recipe, environ)
    assert plain is None and value_in(first) == "first" and builds(project) == 1
    assert any("from source" in line for line in lines) and any("made-1.0" in line for line in lines)
    again, lines = build(recipe, environ)
    assert again == first and lines == [] and builds(project) == 1, "builds.md must not count as an input"

    lock = tmp_path / "other.txt"
    lock.write_text("tiny==2.0\n", encoding="utf-8")
    other, lines = build(
        dataclasses.replace(recipe, base=dataclasses.replace(recipe.base, lock=lock)), environ
    )
    assert other.folder != first.folder and value_in(other) == "first"
    assert builds(project) == 1, "another environment takes the wheel from the cache"

    write(project, "second")
    changed, _ = build(recipe, environ)
    assert value_in(changed) == "second" and value_in(first) == "first" and builds(project) == 2
    assert len(list((Path(environ["CROSSTRAIN_CACHE"]) / "wheels").glob("*/made-1.0-*.whl"))) == 2


def test_progress_is_shown(
    recipe: Recipe, project: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_PROGRESS_SECONDS", 0.2)
    write(project, "slow", 1.0)
    _, lines = build(dataclasses.replace(recipe, build=project), environ)
    assert any("of 2 files" in line for line in lines), lines


def test_a_failed_build_is_reported_and_leaves_nothing(
    recipe: Recipe, project: Path, environ: dict[str, str]
) -> None:
    (project / "backend.py").write_text(
        "def build_wheel(*_, **__):\n    raise SystemExit('error: no compiler')\n"
    )
    recipe = dataclasses.replace(recipe, build=project)
    found = build_environment(recipe, environ=environ)
    assert isinstance(found, Unavailable) and ".log" in found.remedy
    assert find_environment(recipe, environ) is None
    store = Path(environ["CROSSTRAIN_CACHE"]) / "wheels"
    assert not [path for path in store.iterdir() if path.is_dir()]
    write(project, "repaired")
    assert value_in(build(recipe, environ)[0]) == "repaired"


def test_the_key_covers_versions_of_system_packages(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text("Package: libone\nStatus: installed\nVersion: 1-2\n\nPackage: libtwo\nVersion: 5\n")
    assert installed_versions(["libone", "libthree"], status) == {"libone": "1-2"}
    assert installed_versions(["libone"], tmp_path / "absent") == {}
    package = SystemPackage("libone", "header", "one.h", "tests")
    keys = set()
    for version in ("1", "2"):
        found = {"libone": version}
        monkeypatch.setattr("crosstrain.launch.wheels.installed_versions", lambda _names, found=found: found)
        keys.add(project_key(project, "3.11", [package]))
    keys.add(project_key(project, "3.12", [package]))
    assert len(keys) == 3


def test_libraries_to_link_with_are_looked_for(tmp_path: Path) -> None:
    package = SystemPackage("libabsent-dev", "link", "absent-from-every-machine", "tests")
    assert not is_present(package)
    (tmp_path / "libabsent-from-every-machine.so").touch()
    assert is_present(package, {"LIBRARY_PATH": str(tmp_path)})
