"""The catalogue of this checkout, and what is said about a broken one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from crosstrain.launch.catalogue import CatalogueError, load_catalogue
from crosstrain.launch.environments import service_pythonpath, service_recipe
from crosstrain.launch.system import SystemPackage, is_present

GOOD = """
[coordinator]
lock = "lock.txt"
data_lock = "lock.txt"
test_lock = "lock.txt"
python = ["3.11"]
[tests]
lock = "lock.txt"
[[service]]
name = "one"
folder = "."
package = "crosstrain_one"
lock = "lock.txt"
python = ["3.11"]
engines = { alpha = "2.12.1", beta = "1" }
default_for = ["alpha", "beta"]
[[service]]
name = "two"
folder = "."
package = "crosstrain_one"
lock = "lock.txt"
python = ["3.7"]
engines = { alpha = "2.1.0" }
index_variable = "ONE_INDEX"
source_packages = ["old"]
[[service.system]]
name = "g++"
kind = "executable"
probe = "g++"
reason = "compiles"
"""


def write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "lock.txt").write_text("", encoding="utf-8")
    path = tmp_path / "services.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_this_checkout() -> None:
    catalogue = load_catalogue()
    assert {"reference", "torch", "tensorflow-2.12", "tensorflow-2.21", "keras_theano"} <= {
        service.name for service in catalogue.services
    }
    for service in catalogue.services:
        pins = service.lock.read_text(encoding="utf-8")
        if service.build is not None:
            # A framework that is built here: its version is that of the wheel.
            project = tomllib.loads((service.build / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            pins += f"{project['name']}=={project['version']}\n"
        for engine, version in service.engines.items():
            if engine != "reference":
                assert f"=={version}\n" in pins, f"{service.name}: {engine} {version} is not pinned"


def test_every_line_of_every_lock_is_an_exact_pin() -> None:
    root = load_catalogue().root
    locks = sorted(root.glob("services/*/locks/*.txt")) + sorted(root.glob("coordinator/locks/*.txt"))
    assert len(locks) >= 9
    for lock in locks:
        for line in lock.read_text(encoding="utf-8").splitlines():
            assert re.fullmatch(r"[a-z0-9.-]+==([0-9]+!)?[A-Za-z0-9.]+( ; .+)?", line), f"{lock.name}: {line}"


def test_engine_versions_are_found(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, GOOD))
    assert catalogue.service_for("alpha").name == "one"
    assert catalogue.service_for("alpha@2.12").name == "one"
    assert catalogue.service_for("alpha@2.1").name == "two", "2.1 must not mean 2.12"
    assert catalogue.service_for("alpha@2.1.0").name == "two"
    for engine, words in {"alpha@3": "2.12.1, 2.1.0", "alpha@2": "ambiguous", "gamma": "alpha, beta"}.items():
        with pytest.raises(CatalogueError, match=re.escape(words)):
            catalogue.service_for(engine)
    with pytest.raises(CatalogueError, match="known are one, two"):
        catalogue.service("three")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "two"', 'name = "one"', "service 'one' appears twice"),
        ('name = "two"', 'name = "../two"', "name must match"),
        ('python = ["3.7"]', 'python = ["three"]', "service 'two': python must list versions"),
        ('python = ["3.7"]', "python = []", "service 'two': python must list versions"),
        ('kind = "executable"', 'kind = "magic"', "kind 'magic' must be one of executable, header, library"),
        ('index_variable = "ONE_INDEX"', 'indx = "x"', "service 'two': unknown field indx"),
        ('default_for = ["alpha", "beta"]', 'default_for = ["alpha"]', "engine 'beta': exactly one default"),
        ('default_for = ["alpha", "beta"]', 'default_for = ["gamma"]', "does not host: gamma"),
        ('engines = { alpha = "2.1.0" }', 'engines = { alpha = "2.12.1" }', "two services host the same"),
        ('engines = { alpha = "2.1.0" }', "engines = { alpha = 2.1 }", "must map each engine to a version"),
        ('folder = "."', 'folder = "absent"', "folder: .*absent does not exist"),
        ("[tests]", "[test]", "unknown field test"),
        ("[tests]", "[tests", "services.toml: "),
    ],
)
def test_errors_name_entry_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogueError, match=message):
        load_catalogue(write(tmp_path, GOOD.replace(old, new)))


def test_a_missing_catalogue_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="absent.toml: No such file"):
        load_catalogue(tmp_path / "absent.toml")


def test_recipe_takes_pip_options_from_the_entry(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, GOOD))
    two = catalogue.service("two")
    options = ("--only-binary", ":all:", "--no-binary", "old")
    assert service_recipe(two, {}).base.options == options
    chosen = service_recipe(two, {"ONE_INDEX": "file:///wheels"}).base.options
    assert chosen == (*options, "--extra-index-url", "file:///wheels")
    paths = service_pythonpath(two, catalogue)
    assert [str(path.relative_to(catalogue.root)) for path in paths] == [
        "protos/python",
        "services/common/src",
        f"{tmp_path.name}/src",
    ]


def test_system_probes(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "header.h").write_text("", encoding="utf-8")
    environ = {"PATH": "/bin:/usr/bin", "CPATH": str(tmp_path)}
    assert is_present(SystemPackage("x", "executable", "sh", ""), environ)
    assert not is_present(SystemPackage("x", "executable", "no-such-program", ""), environ)
    assert is_present(SystemPackage("x", "header", "some/header.h", ""), environ)
    assert not is_present(SystemPackage("x", "header", "other/header.h", ""), environ)
    assert is_present(SystemPackage("x", "library", "c", ""), environ)
    assert not is_present(SystemPackage("x", "library", "no-such-library", ""), environ)
