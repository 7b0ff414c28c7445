"""Plain training scripts of every framework, each started as its own users start it: the yardstick for Crosstrain.

The scripts are in the checkout, in ``benchmarks/bare``; they know the network cnn2 with SGD at a constant rate. On
several ranks a launcher starts them (torchrun, horovodrun, mpiexec), or the script alone where the framework drives all
ranks from one process. At their end they print one line of JSON with the times of their steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_FOLDER = Path("benchmarks") / "bare"
#: Seconds in which a launcher that is asked to stop ends its ranks.
_STOP_SECONDS = 5.0
#: A line that names what went wrong, behind what torchrun and horovodrun put in front of lines.
_ERROR = re.compile(r"^(?:\[[^\]]*\]:?\s*)*(?:<\w+>:?\s*)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)$")
#: What launchers say after the ranks have said what went wrong.
_LAUNCHERS_OWN = ("ChildFailedError", "CalledProcessError", "Horovod detected that one or more processes")


class BareScriptFailed(Exception):
    """A yardstick did not run; the message holds its last words."""


@dataclass(frozen=True)
class BareScript:
    """One script and what it takes.

    ``launcher`` is ``torchrun``, ``horovodrun``, ``mpiexec``, or empty for a script that is started by itself.
    ``deterministic`` and ``canonical_ops`` tell whether it has options of these names, ``ranks`` whether it drives
    several ranks by itself. ``equal_shares``: every rank takes the same number of samples, so that the batch must be
    a multiple of the ranks, and what does not fill a batch is left out.
    """

    file: str
    launcher: str = ""
    deterministic: bool = False
    canonical_ops: bool = False
    ranks: bool = False
    equal_shares: bool = False

    def __str__(self) -> str:
        return f"{self.launcher} {self.file}".strip()


#: By engine and backend; an empty backend is one rank.
SCRIPTS = {
    ("torch", ""): BareScript("torch_cnn2.py", deterministic=True),
    ("torch", "native"): BareScript("torch_ddp_cnn2.py", "torchrun", deterministic=True, equal_shares=True),
    ("torch", "horovod"): BareScript("torch_horovod_cnn2.py", "horovodrun", deterministic=True, equal_shares=True),
    ("tensorflow", ""): BareScript("tensorflow_cnn2.py", deterministic=True),
    ("tensorflow", "native"): BareScript("tensorflow_mirrored_cnn2.py", deterministic=True, ranks=True),
    ("tensorflow", "horovod"): BareScript(
        "tensorflow_horovod_cnn2.py", "horovodrun", deterministic=True, equal_shares=True
    ),
    ("keras-tensorflow", ""): BareScript("keras_tensorflow_cnn2.py", deterministic=True),
    ("keras-tensorflow", "native"): BareScript("keras_tensorflow_mirrored_cnn2.py", deterministic=True, ranks=True),
    ("keras-tensorflow", "horovod"): BareScript(
        "keras_tensorflow_horovod_cnn2.py", "horovodrun", deterministic=True, equal_shares=True
    ),
    ("keras-theano", ""): BareScript("keras_theano_cnn2.py", canonical_ops=True),
    ("keras-theano", "mpi"): BareScript("keras_theano_mpi_cnn2.py", "mpiexec", canonical_ops=True),
    ("lasagne", ""): BareScript("lasagne_cnn2.py", canonical_ops=True),
    ("lasagne", "mpi"): BareScript("lasagne_mpi_cnn2.py", "mpiexec", canonical_ops=True),
    ("caffe", ""): BareScript("caffe_cnn2.py"),
    ("caffe", "mpi"): BareScript("caffe_mpi_cnn2.py", "mpiexec"),
}


@dataclass(frozen=True)
class BareSettings:
    """What all scripts take, with the values that they have by themselves.

    ``threads`` are those of every rank. ``canonical_ops``: operations with the gradients of the other frameworks.
    """

    steps: int
    threads: int
    batch_size: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.9
    classes: int = 10
    deterministic: bool = True
    canonical_ops: bool = True

    def options(self, script: BareScript, ranks: int) -> list[str]:
        """The options of a script on so many ranks."""
        found = ["--steps", str(self.steps), "--threads", str(self.threads), "--batch-size", str(self.batch_size)]
        found += ["--learning-rate", repr(self.learning_rate), "--momentum", repr(self.momentum)]
        found += ["--classes", str(self.classes)]
        if script.deterministic and self.deterministic:
            found.append("--deterministic")
        if script.canonical_ops and self.canonical_ops:
            found.append("--canonical-ops")
        return found + (["--ranks", str(ranks)] if script.ranks else [])


@dataclass(frozen=True)
class BareTimes:
    """What a script printed: seconds from its start to the end of the first step, and each step's."""

    first: float
    steps: list[float]
    samples: list[int]

    @property
    def throughput(self) -> float | None:
        """Samples per second of the steps after the first, as of a run through a service."""
        return samples_per_second(self.steps, self.samples)


def samples_per_second(steps: Sequence[float], samples: Sequence[float]) -> float | None:
    """Throughput of the steps after the first, which holds what is only done once; None where nothing was measured.

    Args:
        steps: seconds of each step.
        samples: samples of each step.
    """
    first = 1 if len(steps) > 1 else 0
    seconds, count = float(sum(steps[first:])), float(sum(samples[first:]))
    return count / seconds if seconds > 0 and count > 0 else None


def script_folder(root: Path) -> Path:
    """The folder of the scripts in a checkout. Raises BareScriptFailed where it is missing."""
    folder = root / _FOLDER
    if not folder.is_dir():
        raise BareScriptFailed(f"there are no bare scripts: {folder} is missing; they are part of a checkout")
    return folder


def launcher(script: BareScript, python: Path, ranks: int) -> list[str]:
    """The command that starts a script, up to the script; ``python`` is that of the framework's environment."""
    if script.launcher == "mpiexec":
        return [str(python.parent / "mpiexec.gforker"), "-n", str(ranks), str(python)]
    if script.launcher == "horovodrun":
        options = ["-np", str(ranks), "--gloo", "--network-interfaces", "lo"]
        return [str(python), str(python.parent / "horovodrun"), *options, str(python)]
    if script.launcher == "torchrun":
        return [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [str(python)]


def command(
    script: BareScript, folder: Path, python: Path, ranks: int, data: Path, settings: BareSettings
) -> list[str]:
    """The whole command; ``data`` is an .npz file with x_train (N, [C,] H, W) and y_train (N,)."""
    path = str(folder / script.file)
    return [*launcher(script, python, ranks), path, str(data), *settings.options(script, ranks)]


def variables(python: Path, threads: int, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables of a script: what an activated environment has, without this project's sources.

    Launchers look for the interpreter and for their helpers on the PATH.
    """
    environment = dict(os.environ if environ is None else environ)
    for name in ("PYTHONPATH", "PYTHONHOME"):
        environment.pop(name, None)
    environment["PATH"] = os.pathsep.join([str(python.parent), environment.get("PATH", "")])
    environment["OMP_NUM_THREADS"] = str(threads)
    # Ranks of one host: UCX may listen nowhere.
    environment["UCX_TLS"] = "self,sm"
    return environment


def run_script(
    words: Sequence[str], environment: Mapping[str, str] | None = None, limit: float | None = None
) -> BareTimes:
    """Runs a script by its command, for ``limit`` seconds at most; raises BareScriptFailed.

    However this ends, no process of it is left.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise BareScriptFailed(f"{words[0]} cannot be started: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise BareScriptFailed(f"it had not ended after {limit:.0f} s and was stopped") from None
    finally:
        _end(process)
    lines = [line[line.index("{") :] for line in out.splitlines() if '"step_seconds"' in line and "{" in line]
    if process.returncode or not lines:
        raise BareScriptFailed(last_words(f"{out}\n{err}") or f"it ended with exit code {process.returncode}")
    try:
        found = json.loads(lines[-1])
        times = [float(value) for value in found["step_seconds"]]
        return BareTimes(float(found["first_step_seconds"]), times, [int(value) for value in found["step_samples"]])
    except (ValueError, KeyError, TypeError):
        raise BareScriptFailed(f"it printed no times of steps: {lines[-1][:200]}") from None


def last_words(text: str) -> str:
    """The last line that names an error and is not a launcher's own, else the last line at all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        match = _ERROR.match(line)
        if match and not any(word in line for word in _LAUNCHERS_OWN):
            return match[1][:500]
    return lines[-1][:500] if lines else ""


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a script: its launcher first, which takes its ranks along, then all the rest."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if process.returncode != 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
