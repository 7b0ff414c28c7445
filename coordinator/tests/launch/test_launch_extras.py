"""Additions to environments, from a package index inside the test."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from crosstrain.launch import extras
from crosstrain.launch.catalogue import Extra, load_catalogue
from crosstrain.launch.environments import Environment, Recipe, build_environment
from crosstrain.launch.extras import add_extras, has_extra
from crosstrain.launch.system import SystemPackage

BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    if not os.environ.get("ADDED"):
        raise SystemExit("error: no variable")
    import tiny  # of the environment
    name = "added-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
        archive.writestr("added.py", "VALUE = %r" % (os.environ["ADDED"] + tiny.VERSION))
        archive.writestr("added-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: added\\nVersion: 1.0\\n")
        tags = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr("added-1.0.dist-info/WHEEL", tags)
        archive.writestr("added-1.0.dist-info/RECORD", "")
    return name
"""


def sdist() -> bytes:
    content = io.BytesIO()
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "added"\nversion = "1.0"\n',
        "backend.py": BACKEND,
        "PKG-INFO": "Metadata-Version: 2.1\nName: added\nVersion: 1.0\n",
    }
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"added-1.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


@pytest.fixture
def extra(tmp_path: Path) -> Extra:
    """An addition that is built against the environment's package, from an archive on this machine."""
    build = tmp_path / "project"
    build.mkdir()
    archive = tmp_path / "added-1.0.tar.gz"
    archive.write_bytes(sdist())
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (build / "source.txt").write_text(f"added @ {archive.as_uri()} --hash=sha256:{digest}\n")
    (build / "tools.txt").write_text("# none\n")
    (build / "build.toml").write_text(
        '[environment]\nADDED = "one "\n[service.tiny]\nagainst = ["tiny"]\nenvironment = { OTHER = "{project}" }\n'
    )
    lock = tmp_path / "extra.txt"
    lock.write_text("# nothing\n")
    return Extra("added", frozenset({"tiny"}), lock, build)


def base(recipe: Recipe, environ: dict[str, str]) -> Environment:
    built = build_environment(recipe, environ=environ)
    assert isinstance(built, Environment), built
    return built


def value_in(environment: Environment) -> str:
    (module,) = environment.folder.glob("lib/python*/site-packages/added.py")
    return module.read_text().split("'")[1]


def test_an_addition_is_built_once_against_the_environment(
    recipe: Recipe, extra: Extra, environ: dict[str, str]
) -> None:
    environment = base(recipe, environ)
    lines: list[str] = []
    assert not has_extra(environment, extra)
    assert add_extras(environment, [extra], environ=environ, progress=lines.append) == []
    assert has_extra(environment, extra) and value_in(environment) == "one 1.0"
    assert any("from source" in line for line in lines)

    lines.clear()
    assert add_extras(environment, [extra], environ=environ, progress=lines.append) == [] and lines == []

    # What counts: its own files and the version of what it is compiled against.
    assert extra.build is not None
    settings = extra.build / "build.toml"
    settings.write_text(settings.read_text().replace("one", "two"))
    assert not has_extra(environment, extra)
    assert add_extras(environment, [extra], environ=environ) == [] and value_in(environment) == "two 1.0"
    recipe.base.lock.write_text("tiny==2.0\n", encoding="utf-8")
    other = base(recipe, environ)
    assert add_extras(other, [extra], environ=environ) == [] and value_in(other) == "two 2.0"
    wheels = list((Path(environ["CROSSTRAIN_CACHE"]) / "wheels").glob("added-tiny-*/*.whl"))
    assert len(wheels) == 3


def test_a_failed_build_leaves_the_environment_as_it_is(
    recipe: Recipe, extra: Extra, environ: dict[str, str]
) -> None:
    environment = base(recipe, environ)
    assert extra.build is not None
    settings = extra.build / "build.toml"
    text = settings.read_text()
    settings.write_text(text.replace("ADDED", "NOTHING"))
    lines: list[str] = []
    (failure,) = add_extras(environment, [extra], environ=environ, progress=lines.append)
    assert not failure.lacking and ".log" in failure.remedy and not has_extra(environment, extra)
    assert "without added" in lines[-1] and failure.reason in lines[-1]
    assert base(recipe, environ) == environment
    settings.write_text(text)
    assert add_extras(environment, [extra], environ=environ) == []


def test_a_missing_system_package_is_named(
    recipe: Recipe, extra: Extra, environ: dict[str, str]
) -> None:
    package = SystemPackage("gpp", "executable", "absent-from-every-machine", "it is compiled")
    extra = dataclasses.replace(extra, system=(package,))
    (failure,) = add_extras(base(recipe, environ), [extra], environ=environ)
    assert failure.lacking and "gpp is missing: it is compiled" in failure.reason and "gpp" in failure.remedy


def test_an_unknown_service_is_an_error_of_the_project(
    recipe: Recipe, extra: Extra, environ: dict[str, str]
) -> None:
    assert extra.build is not None
    (extra.build / "build.toml").write_text("[environment]\n")
    (failure,) = add_extras(base(recipe, environ), [extra], environ=environ)
    assert "no table for service 'tiny'" in failure.reason


def test_every_build_project_of_the_catalogue_knows_its_services() -> None:
    catalogue = load_catalogue()
    assert {extra.name for extra in catalogue.extras} == {"horovod", "mpi"}
    for extra in catalogue.extras:
        if extra.build is not None:
            for name in ("source.txt", "tools.txt"):
                assert (extra.build / name).is_file()
            for service in extra.services:
                assert extras._variables(extra.build, service)
    horovod = catalogue.extras_of(catalogue.service("torch"), ["horovod"])
    assert [extra.name for extra in horovod] == ["horovod"]
    assert catalogue.extras_of(catalogue.service("torch"), []) == ()
    assert catalogue.extras_of(catalogue.service("reference")) == ()
