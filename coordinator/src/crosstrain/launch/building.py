"""Runs what fills an environment: the file lock, child processes with a log, and pip.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from crosstrain.launch.interpreters import clean_environment

Progress = Callable[[str], None]

_NETWORK_FAILURE = re.compile(
    r"ConnectionError|NewConnectionError|ConnectTimeout|ReadTimeout|Read timed out|Connection reset"
    r"|Connection refused|Connection broken|Temporary failure in name resolution|Name or service not known"
    r"|IncompleteRead|ProtocolError|Remote end closed|Network is unreachable|SSLError|50[0234] Server Error",
    re.IGNORECASE,
)
_BUILD_STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ", re.MULTILINE)
_BUILD_PERCENT = re.compile(r"^\s*\[ *(\d+)%\] ", re.MULTILINE)
_PROGRESS_SECONDS = 20.0
_STEP_SECONDS = 3600
_RETRY_AFTER_SECONDS = 3.0
_LOG_TAIL_CHARACTERS = 20_000
_REASON_CHARACTERS = 300


class BuildError(Exception):
    """A step failed. ``remedy`` is the command or action that would change it.

    ``lacking`` tells that the machine lacks something that no build can bring (an interpreter, a system
    package), from a build that went wrong.
    """

    def __init__(self, reason: str, remedy: str, *, lacking: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.lacking = lacking


@contextlib.contextmanager
def exclusive(folder: Path, say: Progress) -> Iterator[int]:
    """Holds the file lock beside ``folder``; yields its descriptor for child processes to inherit.

    The lock belongs to the open file, not to the process: a child that inherited the descriptor
    keeps it when the parent is killed, so nobody removes a folder that pip still writes to.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{folder.name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{folder.name}: waiting for another process that builds it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def create_venv(interpreter: Path, folder: Path, lock: int, environ: Mapping[str, str] | None) -> None:
    """Creates a virtual environment with pip. Raises BuildError."""
    command = [str(interpreter), "-m", "venv", str(folder)]
    _run(command, folder, lock, environ, f"check that this works: {' '.join(command)}")


def pip_install(
    name: str,
    lock_file: Path,
    options: Sequence[str],
    folder: Path,
    lock: int,
    environ: Mapping[str, str] | None,
    say: Progress,
) -> None:
    """Installs a lock file; a network failure is tried once more. Raises BuildError."""
    say(f"{name}: installing {lock_file.name}")
    command = [*_pip(folder, "install"), *options, "-r", str(lock_file)]
    _with_a_second_try(name, command, folder, lock, environ, say)


def pip_install_wheel(wheel: Path, folder: Path, lock: int, environ: Mapping[str, str] | None) -> None:
    """Installs one wheel file whose dependencies are there. Raises BuildError."""
    # Also over one of the same version that was built in another way.
    command = [*_pip(folder, "install"), "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    _run(command, folder, lock, environ, f"see {log_of(folder)}")


def pip_wheel(
    name: str,
    project: Path,
    destination: Path,
    folder: Path,
    lock: int,
    environ: Mapping[str, str] | None,
    say: Progress,
) -> None:
    """Builds a project's wheel into ``destination`` with the environment in ``folder``. Raises BuildError."""
    # The log holds the compiler's steps, from which the progress is read.
    command = [*_pip(folder, "wheel"), "--verbose", "--no-deps", "-w", str(destination), str(project)]
    variables = dict(os.environ if environ is None else environ)
    variables.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    with _shown_progress(name, folder, say):
        _with_a_second_try(name, command, folder, lock, variables, say)


def pip_install_aside(requirements: Path, target: Path, folder: Path, lock: int,
                      environ: Mapping[str, str] | None) -> None:  # fmt: skip
    """Installs pinned packages into ``target``, outside the environment in ``folder``. Raises BuildError."""
    options = ["--no-deps", "--only-binary", ":all:", "--target", str(target), "-r", str(requirements)]
    _with_a_second_try(folder.name, [*_pip(folder, "install"), *options], folder, lock, environ, _unsaid)


def pip_wheel_of_pin(
    name: str,
    pin: Path,
    destination: Path,
    tools: Path,
    folder: Path,
    lock: int,
    environ: Mapping[str, str],
    say: Progress,
) -> None:
    """Builds the wheel of the source distribution that ``pin`` names with its hash. Raises BuildError.

    The build sees the packages of the environment in ``folder`` and those in ``tools``.
    """
    command = [*_pip(folder, "wheel"), "--verbose", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    command += ["--no-binary", ":all:", "--require-hashes", "-w", str(destination), "-r", str(pin)]
    programs = [str(tools / "bin"), str(folder / "bin"), environ.get("PATH", os.defpath)]
    variables = {
        "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
        **environ,
        "PATH": os.pathsep.join(programs),
    }
    with _shown_progress(name, folder, say):
        _with_a_second_try(name, command, folder, lock, variables, say, {"PYTHONPATH": str(tools)})


def _unsaid(_line: str) -> None:
    return


def _pip(folder: Path, action: str) -> list[str]:
    python = str(folder / "bin" / "python")
    return [
        *(python, "-m", "pip", action),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
    ]


def _with_a_second_try(
    name: str,
    command: Sequence[str],
    folder: Path,
    lock: int,
    environ: Mapping[str, str] | None,
    say: Progress,
    python_variables: Mapping[str, str] | None = None,
) -> None:
    for attempt in (1, 2):
        try:
            _run(command, folder, lock, environ, f"see {log_of(folder)}", python_variables)
            return
        except BuildError as failure:
            if not _NETWORK_FAILURE.search(_tail(folder)):
                raise
            if attempt == 2:
                raise BuildError(
                    f"the package index could not be reached ({failure.reason})",
                    "check the network and pip's index settings, then run the command again",
                ) from failure
            say(f"{name}: the network failed, trying once more")
            time.sleep(_RETRY_AFTER_SECONDS)


@contextlib.contextmanager
def _shown_progress(name: str, folder: Path, say: Progress) -> Iterator[None]:
    """Reports now and then how far the build is whose steps, ``[12/110]`` or ``[11%]``, are in the log."""
    stop = threading.Event()
    started = time.monotonic()

    def watch() -> None:
        while not stop.wait(_PROGRESS_SECONDS):
            steps = _BUILD_STEP.findall(_tail(folder))
            percent = _BUILD_PERCENT.findall(_tail(folder))
            if steps or percent:
                done = f"{steps[-1][0]} of {steps[-1][1]} files" if steps else f"{percent[-1]} %"
                say(f"{name}: compiling, {done}, {time.monotonic() - started:.0f} s")

    watcher = threading.Thread(target=watch, name="build progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def log_of(folder: Path) -> Path:
    """Where the output of an environment's last build step is kept."""
    return folder.parent / f"{folder.name}.log"


def _run(
    command: Sequence[str],
    folder: Path,
    lock: int,
    environ: Mapping[str, str] | None,
    remedy: str,
    python_variables: Mapping[str, str] | None = None,
) -> None:
    with log_of(folder).open("w", encoding="utf-8") as output:
        try:
            finished = subprocess.run(
                command,
                env={**clean_environment(environ), **(python_variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                timeout=_STEP_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(f"a step took longer than {_STEP_SECONDS} s", remedy) from None
    if finished.returncode != 0:
        raise BuildError(_last_error(_tail(folder)), remedy)


def _tail(folder: Path) -> str:
    try:
        return log_of(folder).read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARACTERS:]
    except OSError:
        return ""


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    chosen = errors[-1] if errors else (lines[-1] if lines else "no output")
    return chosen[:_REASON_CHARACTERS]
