"""Additions to a service's environment that a service runs without: Horovod, MPI.

Standard library only. An addition is installed on demand, into an environment that is complete already: its lock
file and, where there is no wheel, a wheel that is built here against the packages of the environment. A failure
leaves the service as it was. Its engines then declare what is missing as unsupported.

What is built is kept in ``<cache>/wheels/<addition>-<service>-<key>``; the key covers the files of the build project,
the Python version, the platform, the versions of the system packages it needs and those of the packages it is compiled
against. The project is a folder with ``source.txt`` (one pinned source distribution with its hash), ``tools.txt``
(pinned build tools, which are not left in the environment) and ``build.toml`` (environment variables, and for each
service ``against``, the packages whose versions count).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from crosstrain.launch.building import (
    BuildError,
    Progress,
    exclusive,
    pip_install,
    pip_install_aside,
    pip_install_wheel,
    pip_wheel_of_pin,
)
from crosstrain.launch.catalogue import Catalogue, Extra, Service
from crosstrain.launch.environments import (
    Environment,
    Layer,
    Unavailable,
    cache_root,
    environment_key,
    marker_key,
    service_environment,
    write_marker,
)
from crosstrain.launch.system import missing_packages, remedy_for
from crosstrain.launch.wheels import cached_wheel, project_key

# Raise this when the way of building changes so that what was built must not be used.
_KEY_FORMAT = "1"
_OPTIONS = ("--only-binary", ":all:", "--no-deps")


def equipped_environment(
    service: Service,
    catalogue: Catalogue,
    names: Iterable[str] | None = None,
    *,
    tests: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Environment | Unavailable:
    """The environment of a service with those additions of that ``names`` (None: all) that can be had."""
    built = service_environment(service, catalogue, tests=tests, environ=environ, progress=progress)
    if isinstance(built, Environment):
        add_extras(built, catalogue.extras_of(service, names), environ=environ, progress=progress)
    return built


def has_extra(environment: Environment, extra: Extra) -> bool:
    """Whether the addition, as the catalogue has it now, is installed. Raises OSError."""
    return marker_key(_marker(environment, extra)) == _key(environment, extra)


def add_extras(
    environment: Environment,
    extras: Iterable[Extra],
    *,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Unavailable]:
    """Installs what is not there yet and returns what cannot be had, with the reason and the remedy."""
    say: Progress = progress if progress is not None else lambda _line: None
    failures = []
    for extra in extras:
        failure = _add(environment, extra, os.environ if environ is None else environ, say)
        if failure is not None:
            say(f"{environment.name}: without {extra.name}: {failure.reason} (to fix it: {failure.remedy})")
            failures.append(failure)
    return failures


def _add(
    environment: Environment, extra: Extra, environ: Mapping[str, str], say: Progress
) -> Unavailable | None:
    subject = f"{environment.name}: {extra.name}"
    try:
        if has_extra(environment, extra):
            return None
        missing = missing_packages(extra.system, environ)
        if missing:
            reason = "; ".join(f"{package.name} is missing: {package.reason}" for package in missing)
            return Unavailable(subject, reason, remedy_for(missing, environ), lacking=True)
        with exclusive(environment.folder, say) as lock:
            if not has_extra(environment, extra):
                _install(environment, extra, lock, environ, say)
        return None
    except BuildError as failure:
        return Unavailable(subject, failure.reason, failure.remedy, failure.lacking)
    except (OSError, ValueError) as failure:
        return Unavailable(subject, str(failure), "repair this file, or point CROSSTRAIN_CACHE to another folder")


def _install(
    environment: Environment, extra: Extra, lock: int, environ: Mapping[str, str], say: Progress
) -> None:
    name, folder = f"{environment.name}: {extra.name}", environment.folder
    pip_install(name, extra.lock, _OPTIONS, folder, lock, environ, say)
    if extra.build is not None:
        # Only now are all packages there that it may be compiled against.
        store = cache_root(environ) / "wheels" / f"{extra.name}-{environment.name}-{_built(environment, extra)}"
        build = partial(_build, environment, extra, lock, environ, say)
        wheel = cached_wheel(name, extra.build, store, folder, build, say)
        pip_install_wheel(wheel, folder, lock, environ)
    write_marker(_marker(environment, extra), _key(environment, extra))


def _build(
    environment: Environment,
    extra: Extra,
    lock: int,
    environ: Mapping[str, str],
    say: Progress,
    destination: Path,
) -> None:
    assert extra.build is not None
    folder = environment.folder
    variables = {**environ, **_variables(extra.build, environment.name)}
    with tempfile.TemporaryDirectory(prefix="crosstrain-tools-") as tools:
        pip_install_aside(extra.build / "tools.txt", Path(tools), folder, lock, environ)
        pip_wheel_of_pin(
            f"{environment.name}: {extra.name}",
            extra.build / "source.txt",
            destination,
            Path(tools),
            folder,
            lock,
            variables,
            say,
        )


def _variables(project: Path, service: str) -> dict[str, str]:
    """Environment variables of the build. Raises ValueError if the project does not know the service."""
    settings = _settings(project)
    found = {**settings.get("environment", {}), **_of_service(project, service).get("environment", {})}
    return {name: str(value).replace("{project}", str(project)) for name, value in found.items()}


def _of_service(project: Path, service: str) -> dict[str, Any]:
    found = _settings(project).get("service", {}).get(service)
    if not isinstance(found, dict):
        raise ValueError(f"{project / 'build.toml'}: no table for service {service!r}")
    return found


def _settings(project: Path) -> dict[str, Any]:
    path = project / "build.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _key(environment: Environment, extra: Extra) -> str:
    layer = Layer(extra.name, extra.lock, _OPTIONS)
    return environment_key(layer, environment.version, _built(environment, extra))


def _built(environment: Environment, extra: Extra) -> str:
    """Key of the wheel that is built, or an empty text. Raises OSError and ValueError."""
    if extra.build is None:
        return ""
    project = project_key(extra.build, environment.version, extra.system)
    against = _of_service(extra.build, environment.name).get("against", [])
    text = json.dumps([_KEY_FORMAT, project, _installed(environment, against)])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def _installed(environment: Environment, names: Iterable[str]) -> list[str]:
    """Name and version, with its local part ("+cpu"), of those packages that are installed."""
    wanted = {name.lower().replace("-", "_") for name in names}
    found = (path.stem for path in environment.folder.glob("lib/python*/site-packages/*.dist-info"))
    return sorted(item.lower() for item in found if item.split("-", 1)[0].lower().replace("-", "_") in wanted)


def _marker(environment: Environment, extra: Extra) -> Path:
    return environment.folder / f"crosstrain-extra-{extra.name}.json"
