"""Finds a Python interpreter of a wanted version: on PATH, in pyenv, by uv.

Standard library only: the bootstrap runs this module before any environment exists.
A candidate counts only after it was run: it must report the wanted version and be able
to create a virtual environment (Debian, for one, ships ``venv`` apart).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROBE = """
import json, os, sys, sysconfig
answer = {
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": getattr(sys, "_base_executable", None) or sys.executable,
    "headers": os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
}
try:
    import venv, ensurepip
    answer["venv"] = True
except ImportError:
    answer["venv"] = False
print(json.dumps(answer))
"""

_PROBE_SECONDS = 30
_UV_FIND_SECONDS = 30
_UV_INSTALL_SECONDS = 600


@dataclass(frozen=True)
class Interpreter:
    """A Python that was run and can create virtual environments."""

    path: Path
    version: str

    @property
    def minor_version(self) -> str:
        """The version without its last part, for example ``3.11``."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True)
class Rejected:
    """A candidate of the wanted version that cannot be used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Search:
    """What a search found; ``rejected`` explains an empty ``found``."""

    found: Interpreter | None
    rejected: tuple[Rejected, ...] = ()


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a foreign interpreter: without what would bend its import path."""
    environment = dict(os.environ if environ is None else environ)
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__"):
        environment.pop(name, None)
    return environment


def find_interpreter(
    version: str,
    environ: Mapping[str, str] | None = None,
    *,
    headers: bool = False,
    install: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Search:
    """Looks for Python ``version`` (two parts, for example ``3.11``).

    Order: PATH, the running interpreter, pyenv's versions (newest first), what uv knows, and
    with ``install`` what uv can download. With ``headers`` a Python without its C headers is
    rejected. Never raises for a broken candidate.
    """
    environment = clean_environment(environ)
    rejected: list[Rejected] = []
    seen: set[Path] = set()
    for candidate in _candidates(version, environment):
        if candidate in seen:
            continue
        seen.add(candidate)
        verified = verify(candidate, version, environment, headers=headers)
        if isinstance(verified, Interpreter):
            return Search(verified, tuple(rejected))
        if verified is not None:
            rejected.append(verified)
    if install:
        installed = _uv_install(version, environment, progress)
        if installed is not None:
            verified = verify(installed, version, environment, headers=headers)
            if isinstance(verified, Interpreter):
                return Search(verified, tuple(rejected))
    return Search(None, tuple(rejected))


def verify(
    path: Path, version: str, environ: Mapping[str, str], *, headers: bool = False
) -> Interpreter | Rejected | None:
    """Runs a candidate. None when it does not run or is of another version."""
    try:
        answer = subprocess.run(
            [str(path), "-I", "-c", _PROBE],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    if answer.returncode != 0:
        # pyenv's shim of a version that is not selected ends here.
        return None
    try:
        report = json.loads(answer.stdout)
        found = str(report["version"])
        executable = Path(report["executable"])
        has_venv = bool(report["venv"])
        has_headers = bool(report["headers"])
    except (ValueError, KeyError, TypeError):
        return None
    if ".".join(found.split(".")[:2]) != version:
        return None
    if not has_venv:
        return Rejected(path, f"Python {found} at {path} lacks the modules venv and ensurepip")
    if headers and not has_headers:
        return Rejected(path, f"Python {found} at {path} lacks its C headers (Python.h)")
    return Interpreter(executable if executable.exists() else path, found)


def _candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    search_path = environ.get("PATH", os.defpath)
    for directory in search_path.split(os.pathsep):
        for name in (f"python{version}", "python3", "python"):
            candidate = Path(directory or ".") / name
            if candidate.is_file() and os.access(candidate, os.X_OK):
                yield candidate
    yield Path(getattr(sys, "_base_executable", sys.executable))
    yield from _pyenv_candidates(version, environ)
    found_by_uv = _uv(["python", "find", "--no-python-downloads", version], environ, _UV_FIND_SECONDS)
    if found_by_uv is not None:
        yield found_by_uv


def _pyenv_candidates(version: str, environ: Mapping[str, str]) -> list[Path]:
    root = environ.get("PYENV_ROOT")
    if root is None:
        pyenv = shutil.which("pyenv", path=environ.get("PATH", os.defpath))
        if pyenv is not None:
            try:
                command = [pyenv, "root"]
                answer = subprocess.run(
                    command, env=dict(environ), capture_output=True, text=True, timeout=10, check=False
                )
                root = answer.stdout.strip() or None
            except (OSError, subprocess.SubprocessError):
                root = None
    if root is None:
        root = os.path.join(environ.get("HOME", os.path.expanduser("~")), ".pyenv")
    versions = Path(root) / "versions"
    if not versions.is_dir():
        return []
    folders = [folder for folder in versions.iterdir() if folder.name.startswith(f"{version}.")]
    folders.sort(key=lambda folder: _patch_number(folder.name), reverse=True)
    return [folder / "bin" / f"python{version}" for folder in folders]


def _patch_number(name: str) -> int:
    last = name.rsplit(".", 1)[-1]
    return int(last) if last.isdigit() else -1


def _uv(arguments: list[str], environ: Mapping[str, str], seconds: float) -> Path | None:
    uv = shutil.which("uv", path=environ.get("PATH", os.defpath))
    if uv is None:
        return None
    try:
        answer = subprocess.run(
            [uv, *arguments], env=dict(environ), capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    line = answer.stdout.strip()
    return Path(line) if answer.returncode == 0 and line and "\n" not in line else None


def _uv_install(
    version: str, environ: Mapping[str, str], progress: Callable[[str], None] | None
) -> Path | None:
    uv = shutil.which("uv", path=environ.get("PATH", os.defpath))
    if uv is None:
        return None
    if progress is not None:
        progress(f"uv: installing Python {version}")
    try:
        subprocess.run(
            [uv, "python", "install", version],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_UV_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _uv(["python", "find", "--no-python-downloads", version], environ, _UV_FIND_SECONDS)
