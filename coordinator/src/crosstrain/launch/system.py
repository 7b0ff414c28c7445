"""Detects system packages that pip cannot bring: executables, headers and libraries."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_MULTIARCH = f"{platform.machine()}-linux-gnu"
_INCLUDE_FOLDERS = (
    "/usr/include",
    f"/usr/include/{_MULTIARCH}",
    "/usr/local/include",
    "/opt/homebrew/include",
)
_LIBRARY_FOLDERS = (f"/usr/lib/{_MULTIARCH}", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_DPKG_STATUS = Path("/var/lib/dpkg/status")


@dataclass(frozen=True)
class SystemPackage:
    """A package of the operating system, and how its presence shows.

    ``kind`` is ``executable`` (a program on PATH), ``header`` (a path below an include folder),
    ``library`` (a shared library by its short name, for example ``openblas``, to be loaded) or
    ``link`` (a library by its short name as the linker needs it); ``probe`` is what is looked
    for. ``name`` is the Debian package.
    """

    name: str
    kind: str
    probe: str
    reason: str


KINDS = ("executable", "header", "library", "link")


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
    if package.kind == "link":
        folders = [folder for folder in environment.get("LIBRARY_PATH", "").split(os.pathsep) if folder]
        names = (f"lib{package.probe}.so", f"lib{package.probe}.a")
        return any(
            (Path(folder) / name).is_file() for folder in (*folders, *_LIBRARY_FOLDERS) for name in names
        )
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


def installed_versions(names: Iterable[str], status: Path = _DPKG_STATUS) -> dict[str, str]:
    """Version by name of those Debian packages that dpkg lists; empty where there is no dpkg."""
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    wanted, found = set(names), {}
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Package") in wanted:
            found[fields["Package"]] = fields.get("Version", "")
    return found
