"""Detects system packages that pip cannot bring: executables, headers and shared libraries."""

from __future__ import annotations

import ctypes.util
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include", "/opt/homebrew/include")


@dataclass(frozen=True)
class SystemPackage:
    """A package of the operating system, and how its presence shows.

    ``kind`` is ``executable`` (a program on PATH), ``header`` (a path below an include folder)
    or ``library`` (a shared library by its short name, for example ``openblas``); ``probe``
    is what is looked for. ``name`` is the Debian package.
    """

    name: str
    kind: str
    probe: str
    reason: str


KINDS = ("executable", "header", "library")


def is_present(package: SystemPackage, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the package's probe succeeds here."""
    environment = os.environ if environ is None else environ
    if package.kind == "executable":
        return shutil.which(package.probe, path=environment.get("PATH", os.defpath)) is not None
    if package.kind == "header":
        folders = [folder for folder in environment.get("CPATH", "").split(os.pathsep) if folder]
        return any((Path(folder) / package.probe).is_file() for folder in (*folders, *_INCLUDE_FOLDERS))
    if package.kind == "library":
        return ctypes.util.find_library(package.probe) is not None
    raise ValueError(f"unknown kind of system package: {package.kind!r}")


def missing_packages(
    packages: Iterable[SystemPackage], environ: Mapping[str, str] | None = None
) -> tuple[SystemPackage, ...]:
    """The packages whose probe fails, in the given order."""
    return tuple(package for package in packages if not is_present(package, environ))


def remedy_for(packages: Iterable[SystemPackage], environ: Mapping[str, str] | None = None) -> str:
    """The command that installs these packages, or a sentence where apt-get does not exist."""
    environment = os.environ if environ is None else environ
    names = " ".join(package.name for package in packages)
    if shutil.which("apt-get", path=environment.get("PATH", os.defpath)) is not None:
        return f"apt-get install {names}"
    return f"install with the system's package manager (Debian names): {names}"
