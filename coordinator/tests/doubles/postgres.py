"""A real PostgreSQL server for tests, on a Unix socket in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def find_binaries() -> Path | None:
    """The folder with initdb and postgres; None if PostgreSQL is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = shutil.which("initdb")
    if found:
        folders.append(Path(os.path.realpath(found)).parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """A running server; gives the socket folder. Nobody needs a password, user is "crosstrain"."""
    binaries = find_binaries()
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="crosstrain-pg-", dir="/tmp"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        user = next(name for name in ("postgres", "nobody") if _exists(name))
        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    data = folder / "data"
    subprocess.run(
        [*prefix, str(binaries / "initdb"), "-D", str(data), "-U", "crosstrain", "-A", "trust", "-E", "UTF8", "-N"],
        check=True, capture_output=True, cwd=folder,
    )
    process = subprocess.Popen(
        [
            *prefix, str(binaries / "postgres"), "-D", str(data), "-k", str(folder),
            "-c", "listen_addresses=", "-c", "fsync=off",
        ],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        _wait(binaries, folder)
        yield str(folder)
    finally:
        # "Immediate" shutdown: the data is thrown away, so nothing need be written.
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(binaries: Path, folder: Path) -> None:
    for _ in range(150):
        ready = [str(binaries / "pg_isready"), "-h", str(folder), "-U", "crosstrain", "-q"]
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError("PostgreSQL did not start")


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
