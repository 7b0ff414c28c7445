"""Building for real, from a package index inside the test."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crosstrain.launch import building
from crosstrain.launch.environments import (
    Environment,
    Layer,
    Recipe,
    Unavailable,
    build_environment,
    cache_root,
    environment_key,
    find_environment,
)
from crosstrain.launch.system import SystemPackage

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

BUILDER = """
import json, sys
from pathlib import Path
from crosstrain.launch.environments import Layer, Recipe, build_environment
lock, url, python = sys.argv[1:]
recipe = Recipe("tiny", (python,), Layer("base", Path(lock), ("--no-index", "--find-links", url)))
print(build_environment(recipe, progress=lambda line: print(line, flush=True)))
"""


def start_builder(recipe: Recipe, index: Any, environ: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(recipe.base.lock), index.url, PYTHON]
    source = str(Path(building.__file__).parents[2])
    return subprocess.Popen(command, env={**environ, "PYTHONPATH": source}, stdout=subprocess.PIPE, text=True)


def version_of_tiny(environment: Environment) -> str:
    code = "import tiny; print(tiny.VERSION)"
    return subprocess.check_output([environment.python, "-I", "-c", code], text=True).strip()


def build(recipe: Recipe, environ: dict[str, str], *layers: Layer) -> tuple[Environment, list[str]]:
    lines: list[str] = []
    built = build_environment(recipe, layers, environ=environ, progress=lines.append)
    assert isinstance(built, Environment), built
    return built, lines


def test_builds_once_and_again_when_the_lock_changes(recipe: Recipe, environ: dict[str, str]) -> None:
    recipe = dataclasses.replace(recipe, pythons=("3.99", PYTHON))
    assert find_environment(recipe, environ) is None
    first, lines = build(recipe, environ)
    assert version_of_tiny(first) == "1.0" and first.version == PYTHON
    assert any("creating" in line for line in lines) and any("ready" in line for line in lines)
    assert first.folder.parent == Path(environ["CROSSTRAIN_CACHE"]) / "envs"

    again, lines = build(recipe, environ)
    assert again == first and lines == []

    recipe.base.lock.write_text("tiny==2.0\n", encoding="utf-8")
    changed, _ = build(recipe, environ)
    assert version_of_tiny(changed) == "2.0"
    assert version_of_tiny(first) == "1.0", "the older checkout's environment must stay"


def test_a_layer_is_installed_once_and_leaves_the_base_alone(
    recipe: Recipe, environ: dict[str, str], tmp_path: Path
) -> None:
    extra = tmp_path / "extra.txt"
    extra.write_text("tiny==2.0\n", encoding="utf-8")
    layer = Layer("extra", extra, recipe.base.options)
    built, lines = build(recipe, environ, layer)
    assert version_of_tiny(built) == "2.0" and "tiny: installing extra.txt" in lines
    again, lines = build(recipe, environ, layer)
    assert again == built and lines == []

    # An environment whose interpreter was removed since does not count.
    built.python.unlink()
    built.python.symlink_to("/nonexistent/python")
    assert find_environment(recipe, environ) is None


def test_a_folder_without_marker_is_rebuilt(recipe: Recipe, environ: dict[str, str]) -> None:
    folder = cache_root(environ) / "envs" / f"tiny-{environment_key(recipe.base, PYTHON)}"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "leftover").write_text("half", encoding="utf-8")
    built, lines = build(recipe, environ)
    assert "tiny: removing an incomplete build" in lines
    assert built.folder == folder and not (folder / "leftover").exists()


def test_a_killed_build_is_recovered_after_its_pip_ended(
    recipe: Recipe, index: Any, environ: dict[str, str]
) -> None:
    index.released.clear()
    builder = start_builder(recipe, index, environ)
    assert index.asked.wait(60), "pip never asked the index"
    builder.send_signal(signal.SIGKILL)
    builder.wait(10)
    folder = cache_root(environ) / "envs" / f"tiny-{environment_key(recipe.base, PYTHON)}"
    assert folder.is_dir() and find_environment(recipe, environ) is None

    # The orphaned pip still writes into the folder, so it must still hold the lock.
    with open(f"{folder}.lock", "rb") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    index.released.set()
    built, lines = build(recipe, environ)
    assert "tiny: removing an incomplete build" in lines
    assert version_of_tiny(built) == "1.0"


def test_two_builders_build_once(recipe: Recipe, index: Any, environ: dict[str, str]) -> None:
    index.released.clear()
    first = start_builder(recipe, index, environ)
    assert index.asked.wait(60)
    second = start_builder(recipe, index, environ)
    assert second.stdout is not None
    waiting = second.stdout.readline()
    index.released.set()
    outputs = [first.communicate(timeout=60)[0], waiting + second.communicate(timeout=60)[0]]
    assert "waiting for another process" in outputs[1]
    assert sum(output.count("creating an environment") for output in outputs) == 1
    assert all(output.splitlines()[-1].startswith("Environment(") for output in outputs)


def test_missing_interpreter_has_reason_and_remedy(recipe: Recipe, environ: dict[str, str]) -> None:
    answer = build_environment(dataclasses.replace(recipe, pythons=("3.99", "3.98")), environ=environ)
    assert answer == Unavailable(
        "tiny",
        "no Python 3.99 or 3.98 on PATH, in pyenv or known to uv",
        "uv python install 3.99, or pyenv install 3.99",
        lacking=True,
    )


def test_missing_system_package_has_reason_and_remedy(
    recipe: Recipe, environ: dict[str, str], tmp_path: Path
) -> None:
    package = SystemPackage("g++", "executable", "no-such-compiler", "the framework compiles graphs")
    tools = tmp_path / "bin"
    tools.mkdir()
    environ["PATH"] = str(tools)
    needy = dataclasses.replace(recipe, system=(package,))
    answer = build_environment(needy, environ=environ)
    assert isinstance(answer, Unavailable)
    assert answer.reason == "g++ is missing: the framework compiles graphs"
    assert answer.remedy == "install with the system's package manager (Debian names): g++"
    (tools / "apt-get").write_text("#!/bin/sh\n", encoding="utf-8")
    (tools / "apt-get").chmod(0o755)
    answer = build_environment(needy, environ=environ)
    assert isinstance(answer, Unavailable) and answer.remedy == "apt-get install g++"
    assert not (Path(environ["CROSSTRAIN_CACHE"]) / "envs").exists(), "nothing may be built before the check"


def test_a_pin_that_does_not_exist_is_named(recipe: Recipe, environ: dict[str, str]) -> None:
    recipe.base.lock.write_text("tiny==9.9\n", encoding="utf-8")
    answer = build_environment(recipe, environ=environ)
    assert isinstance(answer, Unavailable)
    assert "No matching distribution found for tiny==9.9" in answer.reason
    log = Path(answer.remedy.removeprefix("see "))
    assert "tiny==9.9" in log.read_text(encoding="utf-8")


def test_a_network_failure_is_tried_twice(
    recipe: Recipe, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_RETRY_AFTER_SECONDS", 0.0)
    # pip mentions the cause only when it retries. Nothing listens on port 9 (discard) here.
    environ["PIP_RETRIES"] = "1"
    base = dataclasses.replace(recipe.base, options=("--index-url", "http://127.0.0.1:9/"))
    lines: list[str] = []
    answer = build_environment(dataclasses.replace(recipe, base=base), environ=environ, progress=lines.append)
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith("the package index could not be reached")
    assert "check the network" in answer.remedy
    assert lines.count("tiny: the network failed, trying once more") == 1


def test_a_missing_lock_is_unavailable(recipe: Recipe, environ: dict[str, str], tmp_path: Path) -> None:
    base = dataclasses.replace(recipe.base, lock=tmp_path / "absent.txt")
    answer = build_environment(dataclasses.replace(recipe, base=base), environ=environ)
    assert isinstance(answer, Unavailable) and "absent.txt: No such file" in answer.reason


def test_a_cache_that_is_a_file_is_unavailable(recipe: Recipe, environ: dict[str, str]) -> None:
    Path(environ["CROSSTRAIN_CACHE"]).write_text("", encoding="utf-8")
    answer = build_environment(recipe, environ=environ)
    assert isinstance(answer, Unavailable) and "CROSSTRAIN_CACHE" in answer.remedy


def test_key_follows_pins_python_and_options_but_not_comments(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"

    def key(text: str, python: str = "3.11", *options: str) -> str:
        lock.write_text(text, encoding="utf-8")
        return environment_key(Layer("base", lock, options), python)

    plain = key("a==1\nb==2\n")
    assert key("# comment\nb==2  # why\n\na==1\n") == plain
    others = {
        key("a==1\nb==3\n"),
        key("a==1\n"),
        key("a==1\nb==2\n", "3.12"),
        key("a==1\nb==2\n", "3.11", "-x"),
    }
    assert len(others) == 4 and plain not in others


def test_cache_root_order(tmp_path: Path) -> None:
    assert cache_root({"CROSSTRAIN_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/crosstrain")
    assert cache_root({}) == Path.home() / ".cache" / "crosstrain"


def test_standard_library_is_enough() -> None:
    """The bootstrap runs these modules before anything is installed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import crosstrain.launch.bootstrap, crosstrain.launch.environments, json\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print(json.dumps(sorted(names - sys.stdlib_module_names - {'crosstrain', '__main__'})))"
    )
    source = str(Path(building.__file__).parents[2])
    answer = subprocess.check_output(
        [sys.executable, "-I", "-S", "-c", code, source], text=True, env=os.environ
    )
    assert json.loads(answer) == []
