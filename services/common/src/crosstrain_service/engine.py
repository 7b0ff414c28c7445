"""The interface between the common layer and a framework.

An engine is one way to train. Everything outside an adapter speaks canonical form:
activations NCHW (or NCL), convolution weights OIHW (or OIL) applied as cross-correlation,
dense weights (out, in), flatten in C-H-W order, labels 0..K-1, mean loss over the batch.
Adapters translate at this boundary and nowhere else.
"""

import abc
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

import numpy as np

from .capabilities import Feature
from .model import Model
from .training import Execution, Training

Arrays = Dict[str, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """One batch: ``x`` float32 (B, C, H, W) or (B, C, L) C-contiguous, ``labels`` int64 (B,).

    ``masks`` holds, per dropout layer, the float32 mask already divided by 1 - rate, in the
    canonical shape of that layer's input (B, ...). In float64 runs ``x`` and masks are float64.
    ``learning_rate`` is the step's; ``step`` counts from 0 over the whole run.

    With several processes it is this process's share of the batch: ``samples`` of its rows count (all of them,
    or none in a share that is empty: one row stands in for it then, whose loss and gradient must weigh 0), and
    ``total`` is the number of samples in the whole batch, whose mean loss is what all processes minimise.
    """

    step: int
    x: np.ndarray
    labels: np.ndarray
    learning_rate: float
    masks: Arrays = field(default_factory=dict)
    samples: int = -1
    total: int = -1

    def __post_init__(self) -> None:
        if self.samples < 0:
            object.__setattr__(self, "samples", len(self.labels))
        if self.total < 0:
            object.__setattr__(self, "total", self.samples)

    @property
    def part(self) -> float:
        """This share's part in the whole batch, 0 to 1: the factor of its mean loss in the mean over the batch."""
        return self.samples / self.total


@dataclass(frozen=True)
class Rows:
    """Batches that are nothing but rows of arrays, for a framework that gathers them without Python.

    Batch k of the epoch is ``order[k * batch_size:(k + 1) * batch_size]``, row numbers int64; the last may be smaller.
    ``pixels`` (N, C, H, W) or (N, C, L) uint8 or float32 and ``labels`` (N,) int64 hold the whole data set,
    memory-mapped read-only, in C or Fortran order, and stay the same objects for a whole run. ``Batch.x`` is
    float32(pixels) / ``divisor`` in one correctly rounded float32 division, then cast in float64 runs.
    With several processes ``order`` holds this process's shares, none of them empty, and ``totals`` the samples
    of each whole batch (int64, one a batch); without, ``totals`` is None.
    """

    pixels: np.ndarray
    labels: np.ndarray
    divisor: np.float32
    order: np.ndarray
    batch_size: int
    totals: Optional[np.ndarray] = None


class Epoch(abc.ABC):
    """The steps of one epoch that are still to be executed."""

    #: Number of the epoch, from 0.
    index = 0
    #: Number of steps that :meth:`batches` gives.
    steps = 0

    @abc.abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The batches in order. May be pulled from another thread and one batch ahead of the step."""

    def rows(self) -> Optional[Rows]:
        """The same batches as rows of the data set, or None where they are more than that (dropout masks).

        An engine uses these or :meth:`batches`, which always works. Waiting for data is then recorded as 0: the
        framework fetches it inside the step. The single step of a probe offers them like an epoch of training.
        """
        return None


class Loop(abc.ABC):
    """Drives training: hands out batches and is told when each step is done.

    Written once in the common layer; an engine only iterates::

        for epoch in loop.epochs():
            for batch in epoch.batches():
                loss = ...one real training step with batch.learning_rate...
                loop.step_done(loss)

    Everything at the end of an epoch (evaluation, checkpoint, early stopping) happens inside
    ``epochs()`` between two of its items, through the engine's other methods.
    """

    @abc.abstractmethod
    def epochs(self) -> Iterator[Epoch]:
        """The epochs to execute, in order; ends early when training is to stop."""

    @abc.abstractmethod
    def step_done(self, loss: Any, correct: Optional[Any] = None, sync_seconds: float = 0.0,
                  copy_seconds: float = 0.0) -> None:
        """Reports the next step in order: mean loss of its batch before the update, without penalties.

        ``loss`` is anything ``float()`` takes; in mode "speed" it may be converted later, so it must
        not be overwritten by later steps. ``correct`` counts right predictions if known for free.
        With several processes each reports the mean loss over its own rows (None if another process of its
        share knows it), and in ``sync_seconds`` the time it waited for the others while it had nothing else to do.
        """

    #: Number of the step that is executed next (for frameworks that drive callbacks).
    step = 0

    @abc.abstractmethod
    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""


@dataclass
class Intermediates:
    """Values inside one training step at the present parameters, canonical layout, run's dtype.

    ``outputs`` and ``output_gradients`` (dL/d output) by layer name; a layer that the framework
    fuses away may be missing. ``gradients`` by parameter name: of the data loss alone, before
    clipping and decay. ``loss``: the mean loss.

    With several processes: outputs and mean loss of this process's rows, while the gradients are those of the mean
    loss over the whole batch (local mean times ``Batch.part``); ``gradients`` is this process's addend, whose
    sum over the shares is the gradient.
    """

    loss: float
    outputs: Arrays
    output_gradients: Arrays
    gradients: Arrays


@dataclass(frozen=True)
class EngineInfo:
    """What an engine is and can do; ``features`` by name from ``capabilities.FEATURES``."""

    name: str
    version: str
    features: Dict[str, Feature]
    libraries: Dict[str, str]


class Engine(abc.ABC):
    """One network in one framework, built for one run.

    A package offers engines by two names in its ``__init__`` (which must not import the
    framework): ``ENGINES``, a dict from engine name to "module:Class", and
    ``environment(engine, execution, run_dir)``, which returns the environment variables (str to
    str) that must be set before the framework is imported; ``execution.ranks`` is this process's place.
    Optional is ``processes(engine, execution, ranks)``: how many processes the ``ranks`` ranks of one host take
    (not given: one each).

    With several processes every one builds its own engine from the same arguments but for ``execution.ranks``,
    and all of them call the same methods in the same order, so each may communicate. ``train`` trains on this
    process's shares; ``parameters``, ``optimizer_state``, ``state`` and ``statistics`` give the whole, at
    least in process 0; what ``state`` gave loads at any number of ranks; ``predict`` gets this process's rows
    (the same rows in all processes of a share).
    """

    #: Name of the engine; set by each class.
    name = ""
    #: Precision of a run that names none.
    default_precision = "float32"

    @classmethod
    @abc.abstractmethod
    def info(cls) -> EngineInfo:
        """Version and capabilities of this engine in this environment."""

    @abc.abstractmethod
    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        """Builds the network, the update rule and the compiled step, with any parameters."""

    @abc.abstractmethod
    def train(self, loop: Loop) -> None:
        """Trains through the framework's real training path until the loop ends.

        May be called again with another loop (even of a single step); parameters and
        optimizer state go on from where they are.
        """

    @abc.abstractmethod
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Logits (B, K) in evaluation mode (no dropout, batch norm by statistics) for x like ``Batch.x``."""

    @abc.abstractmethod
    def intermediates(self, batch: Batch) -> Intermediates:
        """Values inside the training step on ``batch``; changes nothing (no update, no statistics).

        From the same model object by the framework's own differentiation.
        """

    @abc.abstractmethod
    def parameters(self) -> Arrays:
        """Copies of all trained parameters, canonical names and layout, run's dtype."""

    @abc.abstractmethod
    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Sets all trained parameters from canonical form; names and shapes were checked."""

    @abc.abstractmethod
    def optimizer_state(self) -> Arrays:
        """Copies of the update rule's state in canonical form (see ``training.Rule``); zeros before the first step."""

    @abc.abstractmethod
    def state(self) -> Arrays:
        """Everything needed to go on bit-exactly, in any layout and names of the engine's own (checkpoint)."""

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what :meth:`state` gave."""

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        """Mean and biased variance, each (C,), that each batch norm layer sees for the batch ``x``.

        All batch norm layers normalise with the statistics of this ``x`` alone, dropout is off, nothing
        changes. The common layer averages these over the training set for evaluation
        (canonical semantics). Only for models with batch norm.
        """
        raise NotImplementedError("engine %s declares no batch normalisation" % self.name)

    def statistics(self) -> Arrays:
        """The evaluation statistics in use: "<layer>.running_mean" and "<layer>.running_var" (without epsilon)."""
        return {}

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Sets the evaluation statistics; nothing to do without batch norm."""

    def fingerprint(self) -> Dict[str, str]:
        """Facts about the maths in use, as configured: threads, determinism, TF32, compiler, BLAS, ..."""
        return {}

    def reduced_bytes(self) -> Optional[int]:
        """Bytes that this process has handed to collective operations of training steps so far; None if unknown."""
        return None

    def skipped_updates(self) -> int:
        """Updates left out since the beginning of the run, checkpoints included, because a gradient overflowed
        float16; 0 where none ever is.
        """
        return 0

    def synchronize(self) -> None:  # noqa: B027
        """Waits until the device has finished all work; nothing to do on a CPU."""

    def allocator_peak_bytes(self) -> Optional[int]:
        """Peak memory by the framework's own device allocator, or None."""
        return None

    def close(self) -> None:  # noqa: B027
        """Frees what the engine holds; called once at the end."""
