"""Reads the catalogue of services, ``services/services.toml``.

Standard library only. Every error is a CatalogueError that names the entry and the field.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosstrain.launch.system import KINDS, SystemPackage

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_PYTHON = re.compile(r"\d+\.\d+")
_SERVICE_FIELDS = {
    "name",
    "folder",
    "package",
    "lock",
    "python",
    "engines",
    "default_for",
    "source_packages",
    "index_variable",
    "python_headers",
    "system",
    "build",
}


class CatalogueError(Exception):
    """The catalogue cannot be read or breaks a rule."""


@dataclass(frozen=True)
class Service:
    """One entry: the engines of one image and the environment they run in.

    ``engines`` maps an engine to its framework's version. ``default_for`` holds the engines
    that a bare name means this service for.
    """

    name: str
    folder: Path
    package: str
    lock: Path
    python: tuple[str, ...]
    engines: Mapping[str, str]
    default_for: frozenset[str]
    source_packages: tuple[str, ...] = ()
    index_variable: str | None = None
    python_headers: bool = False
    system: tuple[SystemPackage, ...] = ()
    build: Path | None = None


@dataclass(frozen=True)
class Extra:
    """An addition to the environments of some services, which run without it.

    ``build`` is a project whose wheel is built on this machine and installed as well.
    """

    name: str
    services: frozenset[str]
    lock: Path
    build: Path | None = None
    system: tuple[SystemPackage, ...] = ()


@dataclass(frozen=True)
class CoordinatorEntry:
    """The coordinator's own environment."""

    lock: Path
    data_lock: Path
    test_lock: Path
    python: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All services. ``root`` is the repository's top folder."""

    root: Path
    coordinator: CoordinatorEntry
    test_lock: Path
    services: tuple[Service, ...]
    extras: tuple[Extra, ...] = ()

    def extras_of(self, service: Service, names: Iterable[str] | None = None) -> tuple[Extra, ...]:
        """The additions for a service; with ``names``, those of them."""
        wanted = None if names is None else set(names)
        return tuple(
            extra
            for extra in self.extras
            if service.name in extra.services and (wanted is None or extra.name in wanted)
        )

    def service(self, name: str) -> Service:
        """The service of this name. Raises CatalogueError when there is none."""
        for service in self.services:
            if service.name == name:
                return service
        known = ", ".join(service.name for service in self.services)
        raise CatalogueError(f"no service named {name!r}; known are {known}")

    def service_for(self, engine: str) -> Service:
        """The service that hosts ``name`` or ``name@version``.

        A version may be shortened at a dot: ``tensorflow@2.12`` means 2.12.1. Raises
        CatalogueError for an unknown engine or version, or an ambiguous one.
        """
        name, separator, version = engine.partition("@")
        hosts = [service for service in self.services if name in service.engines]
        if not hosts:
            known = sorted({engine for service in self.services for engine in service.engines})
            raise CatalogueError(f"unknown engine {name!r}; known are {', '.join(known)}")
        if not separator:
            return next(service for service in hosts if name in service.default_for)
        matches = [service for service in hosts if f"{service.engines[name]}.".startswith(f"{version}.")]
        if len(matches) != 1:
            versions = ", ".join(service.engines[name] for service in hosts)
            problem = "is ambiguous" if matches else "is not in the catalogue"
            raise CatalogueError(f"{engine!r} {problem}; versions of {name} are {versions}")
        return matches[0]


def default_catalogue_path(environ: Mapping[str, str] | None = None) -> Path:
    """CROSSTRAIN_CATALOGUE, else the file in the checkout that this module belongs to."""
    environment = os.environ if environ is None else environ
    chosen = environment.get("CROSSTRAIN_CATALOGUE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(__file__).resolve().parents[4] / "services" / "services.toml"


def load_catalogue(path: Path | None = None) -> Catalogue:
    """Reads and checks a catalogue. Raises CatalogueError."""
    source = default_catalogue_path() if path is None else path
    try:
        document = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogueError(f"{source}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(f"{source}: {error}") from error
    try:
        return _catalogue(document, source.parent)
    except CatalogueError as error:
        raise CatalogueError(f"{source}: {error}") from None


def _catalogue(document: dict[str, Any], base: Path) -> Catalogue:
    _no_unknown(document, {"coordinator", "tests", "service", "extra"}, "top level")
    coordinator = _table(document.get("coordinator"), "coordinator")
    _no_unknown(coordinator, {"lock", "data_lock", "test_lock", "python"}, "coordinator")
    tests = _table(document.get("tests"), "tests")
    entries = document.get("service")
    if not isinstance(entries, list) or not entries:
        raise CatalogueError("service: at least one [[service]] is needed")
    services = tuple(_service(entry, number, base) for number, entry in enumerate(entries, 1))
    _check_names_and_defaults(services)
    extras = _extras(document.get("extra", []), {service.name for service in services}, base)
    return Catalogue(
        root=base.parent,
        coordinator=CoordinatorEntry(
            lock=_path(coordinator, "lock", "coordinator", base),
            data_lock=_path(coordinator, "data_lock", "coordinator", base),
            test_lock=_path(coordinator, "test_lock", "coordinator", base),
            python=_pythons(coordinator, "coordinator"),
        ),
        test_lock=_path(tests, "lock", "tests", base),
        services=services,
        extras=extras,
    )


def _service(entry: object, number: int, base: Path) -> Service:
    table = _table(entry, f"service {number}")
    name = _string(table, "name", f"service {number}")
    where = f"service {name!r}"
    if not _NAME.fullmatch(name):
        raise CatalogueError(f"{where}: name must match {_NAME.pattern}")
    _no_unknown(table, _SERVICE_FIELDS, where)
    engines = _table(table.get("engines"), f"{where}: engines")
    if not engines or not all(isinstance(version, str) and version for version in engines.values()):
        raise CatalogueError(f"{where}: engines must map each engine to a version string")
    default_for = frozenset(_strings(table, "default_for", where))
    foreign = sorted(default_for - set(engines))
    if foreign:
        raise CatalogueError(f"{where}: default_for names engines it does not host: {', '.join(foreign)}")
    headers = table.get("python_headers", False)
    if not isinstance(headers, bool):
        raise CatalogueError(f"{where}: python_headers must be true or false")
    return Service(
        name=name,
        folder=_path(table, "folder", where, base),
        package=_string(table, "package", where),
        lock=_path(table, "lock", where, base),
        python=_pythons(table, where),
        engines=dict(engines),
        default_for=default_for,
        source_packages=_strings(table, "source_packages", where),
        index_variable=_string(table, "index_variable", where) if "index_variable" in table else None,
        python_headers=headers,
        system=_system(table.get("system", []), where),
        build=_path(table, "build", where, base) if "build" in table else None,
    )


def _extras(entries: object, services: set[str], base: Path) -> tuple[Extra, ...]:
    if not isinstance(entries, list):
        raise CatalogueError("extra: must be a list of tables")
    found: list[Extra] = []
    for number, entry in enumerate(entries, 1):
        table = _table(entry, f"extra {number}")
        name = _string(table, "name", f"extra {number}")
        where = f"extra {name!r}"
        if not _NAME.fullmatch(name):
            raise CatalogueError(f"{where}: name must match {_NAME.pattern}")
        _no_unknown(table, {"name", "services", "lock", "build", "system"}, where)
        of = frozenset(_strings(table, "services", where))
        if not of or of - services:
            raise CatalogueError(f"{where}: services must name services of this file")
        if any(other.name == name and other.services & of for other in found):
            raise CatalogueError(f"{where}: appears twice for a service")
        lock = _path(table, "lock", where, base)
        build = _path(table, "build", where, base) if "build" in table else None
        found.append(Extra(name, of, lock, build, _system(table.get("system", []), where)))
    return tuple(found)


def _check_names_and_defaults(services: tuple[Service, ...]) -> None:
    names = [service.name for service in services]
    for name in names:
        if names.count(name) > 1:
            raise CatalogueError(f"service {name!r} appears twice")
    for engine in sorted({engine for service in services for engine in service.engines}):
        defaults = [service.name for service in services if engine in service.default_for]
        if len(defaults) != 1:
            count = "no service" if not defaults else " and ".join(defaults)
            raise CatalogueError(f"engine {engine!r}: exactly one default is needed, found {count}")
        versions = [service.engines[engine] for service in services if engine in service.engines]
        if len(set(versions)) != len(versions):
            raise CatalogueError(f"engine {engine!r}: two services host the same version")


def _system(entries: object, where: str) -> tuple[SystemPackage, ...]:
    if not isinstance(entries, list):
        raise CatalogueError(f"{where}: system must be a list of tables")
    packages = []
    for entry in entries:
        inner = f"{where}: system"
        table = _table(entry, inner)
        _no_unknown(table, {"name", "kind", "probe", "reason"}, inner)
        kind = _string(table, "kind", inner)
        if kind not in KINDS:
            raise CatalogueError(f"{inner}: kind {kind!r} must be one of {', '.join(KINDS)}")
        name, probe, reason = (_string(table, field, inner) for field in ("name", "probe", "reason"))
        packages.append(SystemPackage(name, kind, probe, reason))
    return tuple(packages)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CatalogueError(f"{where}: a table is needed")
    return value


def _string(table: Mapping[str, Any], field: str, where: str) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not value:
        raise CatalogueError(f"{where}: {field} must be a non-empty string")
    return value


def _strings(table: Mapping[str, Any], field: str, where: str) -> tuple[str, ...]:
    value = table.get(field, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise CatalogueError(f"{where}: {field} must be a list of strings")
    return tuple(value)


def _pythons(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    versions = _strings(table, "python", where)
    if not versions or not all(_PYTHON.fullmatch(version) for version in versions):
        raise CatalogueError(f'{where}: python must list versions such as "3.11"')
    return versions


def _path(table: Mapping[str, Any], field: str, where: str, base: Path) -> Path:
    path = Path(os.path.normpath(base / _string(table, field, where)))
    if not path.exists():
        raise CatalogueError(f"{where}: {field}: {path} does not exist")
    return path


def _no_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise CatalogueError(f"{where}: unknown field {', '.join(unknown)}")
