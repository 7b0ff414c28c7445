"""The bare scripts beside the runs of a job: the same data, batch, steps, rate and threads, and the same network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crosstrain.data import DataCache, DatasetInfo
from crosstrain.launch.catalogue import Catalogue, CatalogueError
from crosstrain.launch.environments import Environment, Unavailable
from crosstrain.results.records import RunRecord
from crosstrain.spec import JobSpec, learning_rates, training_rows
from crosstrain.spec.optimizers import Sgd

from .bare import (
    SCRIPTS,
    BareScript,
    BareScriptFailed,
    BareSettings,
    BareTimes,
    command,
    run_script,
    script_folder,
    variables,
)

#: A script may take so many seconds, and so many times as long as the steps of the service's run took.
_LIMIT_SECONDS, _LIMIT_TIMES = 600.0, 20.0
#: Pooling twice by 2 leaves nothing over: frameworks round sizes of pooling in different directions.
_SIZES = 4

#: Gives the environment of a service, with the additions that ranks communicate by.
Environments = Callable[[str], Environment | Unavailable]
Runner = Callable[[Sequence[str], dict[str, str], float], BareTimes]


@dataclass
class BareFigures:
    """What was measured beside one variant: samples per second by repeat, and why some are missing.

    ``launcher`` is the launcher and the script's name; empty where there is no script.
    """

    launcher: str = ""
    throughputs: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        """Notes why a figure is missing, once."""
        if text not in self.notes:
            self.notes.append(text)


def settings_of(spec: JobSpec, info: DatasetInfo, cores: int) -> BareSettings:
    """What the scripts are told of a job; ``cores`` are the threads where it says 0.

    Raises BareScriptFailed, saying why, where the scripts cannot do what the job asks for.
    """
    rates = learning_rates(spec, training_rows(spec, info.samples))
    training, execution = spec.training, spec.execution
    rule = training.optimizer.rule if training.optimizer is not None else None
    if spec.model != "cnn2" or len(info.input_shape) != 3:
        raise BareScriptFailed("there is no bare script for this network: only for cnn2 on images, with SGD")
    if not isinstance(rule, Sgd) or rule.nesterov:
        raise BareScriptFailed("there is no bare script for this optimizer: only for cnn2 with SGD")
    if any(size % _SIZES for size in info.input_shape[1:]):
        raise BareScriptFailed(f"bare scripts take images whose height and width are multiples of {_SIZES}")
    unknown = {
        "a learning rate that changes": bool(len(rates)) and bool((rates != rates[0]).any()),
        "training.weight_decay": training.weight_decay is not None,
        "training.clip_norm": training.clip_norm > 0,
        "training.early_stopping": training.early_stopping is not None,
        "execution.precision": execution.precision not in (None, "float32"),
        "execution.accumulation_steps": execution.accumulation_steps > 1,
        "execution.compiler": bool(execution.compiler),
        "execution.inter_threads": execution.inter_threads > 0,
        "execution.cpu_affinity": bool(execution.cpu_affinity),
        "parallel.hosts": any(spec.parallel_of(engine).hosts > 1 for engine in spec.engines),
    }
    if any(unknown.values()):
        names = ", ".join(name for name, is_used in unknown.items() if is_used)
        raise BareScriptFailed(f"bare scripts do not know {names}: only cnn2 with SGD at a constant rate, in float32")
    return BareSettings(
        steps=len(rates),
        threads=execution.threads or cores,
        batch_size=training.batch_size,
        learning_rate=float(rates[0]),
        momentum=float(rule.momentum or 0.0),
        classes=info.classes,
        deterministic=spec.deterministic,
        canonical_ops=not spec.native,
    )


def write_data(info: DatasetInfo, cache: DataCache, path: Path) -> None:
    """Writes a data set as the .npz file that scripts read: bytes, which they divide by 255, or float32."""
    pixels: NDArray[np.generic] = cache.open(info.pixels_digest)
    if pixels.dtype != np.uint8 or info.divisor != 255:
        pixels = pixels.astype(np.float32) / np.float32(info.divisor)
    np.savez(path, x_train=pixels, y_train=cache.open(info.labels_digest))


class BareRuns:
    """Runs a bare script for every variant of a job, repeat by repeat.

    Args:
        settings: what scripts are told.
        info, cache: the training data; ``folder`` takes a copy of it.
        catalogue: where the scripts, and the environments of the engines, are found.
        environments: gives the environment of a service by its name.
        say: takes one line of progress.
        runner: runs a command.

    Raises:
        BareScriptFailed: the checkout has no bare scripts.
    """

    def __init__(
        self,
        settings: BareSettings,
        info: DatasetInfo,
        cache: DataCache,
        folder: Path,
        catalogue: Catalogue,
        environments: Environments,
        say: Callable[[str], None],
        runner: Runner = run_script,
    ) -> None:
        self._settings = settings
        self._info, self._cache = info, cache
        self._data = folder / "train.npz"
        self._catalogue = catalogue
        self._environments = environments
        self._say = say
        self._runner = runner
        self._scripts = script_folder(catalogue.root)
        self.figures: dict[str, BareFigures] = {}

    def measure(self, runs: Sequence[RunRecord], repeat: int) -> None:
        """One bare run for every training run, in their order; what fails is noted and stops nothing.

        Args:
            runs: the training runs of a repeat that is over, this one or an earlier one.
            repeat: the number that the bare runs get.
        """
        for run in runs:
            figures = self.figures.setdefault(run.label, BareFigures())
            try:
                script = self._script(run)
                figures.launcher = str(script)
                python = self._python(run)
                throughput = self._measured(script, python, run)
            except BareScriptFailed as reason:
                figures.remark(str(reason))
                self._say(f"bare: {run.label}: {figures.launcher or 'none'}: {reason}")
                continue
            figures.throughputs[repeat] = throughput
            self._say(f"bare: {run.label}: {script}: {throughput:.0f} samples/s")

    def _measured(self, script: BareScript, python: Path, run: RunRecord) -> float:
        if not self._data.exists():
            write_data(self._info, self._cache, self._data)
        words = command(script, self._scripts, python, run.ranks, self._data, self._settings)
        limit = _LIMIT_SECONDS + _LIMIT_TIMES * float(run.steps()["step_seconds"].sum())
        times = self._runner(words, variables(python, self._settings.threads), limit)
        if times.throughput is None:
            raise BareScriptFailed("it measured nothing")
        return times.throughput

    def _script(self, run: RunRecord) -> BareScript:
        """The script for a run. Raises BareScriptFailed, saying why there is none."""
        parallel = run.parallel
        if parallel is not None and max(parallel.tensor, parallel.pipeline) > 1:
            raise BareScriptFailed("bare scripts split the data only, neither layers (tensor) nor stages (pipeline)")
        device = run.facts.get("device.kind", "cpu")
        if device != "cpu":
            raise BareScriptFailed(f"it trains on {device}; bare scripts train on the CPU")
        backend = (parallel.backend or "native") if parallel is not None and run.ranks > 1 else ""
        script = SCRIPTS.get((run.engine, backend))
        if script is None or not (self._scripts / script.file).is_file():
            raise BareScriptFailed(f"there is no bare script for {run.engine}{f' with {backend}' if backend else ''}")
        batch = self._settings.batch_size
        if script.equal_shares and batch % run.ranks:
            raise BareScriptFailed(f"its batch of {batch} must be a multiple of the {run.ranks} ranks")
        if script.equal_shares and self._info.samples < batch:
            raise BareScriptFailed(f"it needs a whole batch of {batch}; there are {self._info.samples} samples")
        return script

    def _python(self, run: RunRecord) -> Path:
        """The interpreter of the engine's environment."""
        version = run.version.partition("+")[0]
        try:
            service = self._catalogue.service_for(f"{run.engine}@{version}" if version else run.engine)
        except CatalogueError as error:
            raise BareScriptFailed(str(error)) from None
        environment = self._environments(service.name)
        if isinstance(environment, Unavailable):
            raise BareScriptFailed(f"{environment.reason}; to fix it: {environment.remedy}")
        return environment.python


def available_cores() -> int:
    """Cores of this process, which are the threads where a job says 0."""
    return len(os.sched_getaffinity(0))
