"""Wheels that this project builds itself, once per machine, in a cache that checkouts share.

Standard library only. A wheel lives in ``<cache>/wheels/<name>-<key>``; the key covers the files of
the build project, the Python version, the platform, the distribution and the versions of the system
packages it is built with. The wheel is built aside and renamed, so the folder never holds half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from crosstrain.launch.building import BuildError, Progress, exclusive, log_of
from crosstrain.launch.system import SystemPackage, installed_versions

# Raise this when the way of building changes so that existing wheels must not be used.
_KEY_FORMAT = "1"
_BUILDS_NOTHING = (".md",)
_ASIDE = ".incoming"


def project_key(project: Path, python: str, packages: Sequence[SystemPackage]) -> str:
    """Twelve hex digits that change with anything the wheel is built from. Raises OSError."""
    files = [
        (str(path.relative_to(project)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(project.rglob("*"))
        if path.is_file() and path.suffix not in _BUILDS_NOTHING
    ]
    where = [sys.platform, platform.machine(), *platform.libc_ver(), _distribution()]
    versions = sorted(installed_versions(package.name for package in packages).items())
    text = json.dumps([_KEY_FORMAT, python, where, files, versions])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def cached_wheel(
    name: str, project: Path, store: Path, folder: Path, build: Callable[[Path], None], say: Progress
) -> Path:
    """The project's wheel in ``store``; if need be ``build`` puts it into the folder that it is given.

    ``folder`` is the environment whose log holds the build's output. Raises BuildError.
    """
    with exclusive(store, say):
        for left in store.parent.glob(f"{store.name}.*{_ASIDE}"):
            shutil.rmtree(left, ignore_errors=True)
        found = _wheel_in(store)
        if found is not None:
            return found
        say(f"{name}: building {project.parent.name}/{project.name} from source, this takes minutes")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(_ASIDE, f"{store.name}.", store.parent) as aside:
            build(Path(aside))
            built = _wheel_in(Path(aside))
            if built is None:
                raise BuildError("the build gave no wheel", f"see {log_of(folder)}")
            store.mkdir(exist_ok=True)
            os.replace(built, store / built.name)
        say(f"{name}: built {built.name} in {time.monotonic() - started:.0f} s")
        return store / built.name


def _wheel_in(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.whl"))), None)


def _distribution() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return f"{release.get('ID', '')} {release.get('VERSION_ID', '')}"
