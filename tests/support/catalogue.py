"""The engines of the catalogue, and the environments that their services run in."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import NamedTuple

from crosstrain.launch.catalogue import Catalogue, CatalogueError, load_catalogue
from crosstrain.launch.environments import Environment, Unavailable
from crosstrain.launch.extras import equipped_environment

ROOT = Path(__file__).resolve().parents[2]


class EngineId(NamedTuple):
    """One engine of one service."""

    name: str
    version: str
    service: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


@functools.cache
def catalogue() -> Catalogue:
    """The catalogue of this checkout."""
    return load_catalogue(ROOT / "services" / "services.toml")


def engines() -> list[EngineId]:
    """All engines in the catalogue's order."""
    return [
        EngineId(name, version, service.name)
        for service in catalogue().services
        for name, version in service.engines.items()
    ]


def choose(text: str) -> list[EngineId]:
    """Engines named in ``text``: names or name@version separated by commas; a bare name means all versions.

    Raises :class:`CatalogueError` for a name that is not in the catalogue.
    """
    if not text:
        return engines()
    chosen: list[EngineId] = []
    for item in text.split(","):
        name, _, version = item.strip().partition("@")
        found = [
            engine
            for engine in engines()
            if engine.name == name and (not version or f"{engine.version}.".startswith(f"{version}."))
        ]
        if not found:
            raise CatalogueError(f"no engine {item.strip()!r}; known are {', '.join(map(str, engines()))}")
        chosen += found
    return chosen


@functools.cache
def environment(service: str) -> Environment | Unavailable:
    """The environment of a service with all additions that can be had, built where it does not exist yet."""
    return equipped_environment(catalogue().service(service), catalogue(), progress=_progress)


def _progress(line: str) -> None:
    print(f"[environment] {line}", file=sys.stderr, flush=True)
