"""Training and execution settings as plain data."""

from dataclasses import dataclass, field
from typing import Optional, Tuple

import numpy as np


@dataclass(frozen=True)
class Rule:
    """The update rule; a constant that is ``None`` means the framework's default (native only).

    ``name`` is "sgd", "rmsprop", "adagrad", "adam" or "adadelta". With g the gradient after clipping
    and L2 decay, and t counting updates from 1:

    - sgd: v = momentum v + lr g; w -= v. Nesterov: w -= momentum v_new + lr g.
      The velocity holds the learning rate, also when it changes.
    - rmsprop: s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + epsilon).
    - adagrad: a += g^2; w -= lr g / (sqrt(a) + epsilon).
    - adam: m_hat = m / (1 - beta1^t), v_hat = v / (1 - beta2^t); w -= lr m_hat / (sqrt(v_hat) + epsilon).
    - adadelta: s = rho s + (1 - rho) g^2; d = g sqrt(u + epsilon) / sqrt(s + epsilon);
      u = rho u + (1 - rho) d^2; w -= lr d.

    Canonical names of the optimizer's state: "<parameter>.velocity" (sgd with momentum),
    ".mean_square" (rmsprop), ".accumulator" (adagrad), ".m" and ".v" (adam),
    ".mean_square" and ".mean_update" (adadelta); all have the parameter's canonical shape.
    """

    name: str
    momentum: Optional[float] = None
    nesterov: Optional[bool] = None
    rho: Optional[float] = None
    epsilon: Optional[float] = None
    initial_accumulator: Optional[float] = None
    beta1: Optional[float] = None
    beta2: Optional[float] = None


@dataclass(frozen=True)
class WeightDecay:
    """L2 (g += rate w after clipping) or, if ``decoupled``, w *= 1 - lr rate before the rule.

    Applies to parameters named "*.weight", and to all others too if ``include_biases``.
    """

    rate: float
    decoupled: bool = False
    include_biases: bool = False

    def applies_to(self, parameter: str) -> bool:
        """Whether the parameter of that canonical name is decayed."""
        return self.rate > 0 and (self.include_biases or parameter.endswith(".weight"))


@dataclass(frozen=True)
class EarlyStopping:
    """Stop after ``patience`` epochs whose validation loss is not lower by ``min_delta``."""

    validation_share: float
    patience: int
    min_delta: float = 0.0


@dataclass(frozen=True)
class Training:
    """Settings that define the function. ``learning_rates`` is float64, one per step."""

    epochs: int
    batch_size: int
    seed: int
    rule: Rule
    learning_rates: np.ndarray = field(compare=False)
    max_steps: int = 0
    drop_last: bool = False
    keep_order: bool = False
    weight_decay: Optional[WeightDecay] = None
    clip_norm: float = 0.0
    early_stopping: Optional[EarlyStopping] = None


@dataclass(frozen=True)
class Execution:
    """Settings of the execution; zero or empty means the default named in the proto.

    ``semantics`` is "canonical" or "native", ``mode`` "parity" or "speed", ``precision``
    "float32" or "float64" (empty: the engine's default), ``device`` "cpu" or "cuda" with
    ``device_index``. ``intra_threads`` is always at least 1 here.
    """

    semantics: str = "canonical"
    mode: str = "parity"
    precision: str = ""
    device: str = "cpu"
    device_index: int = 0
    intra_threads: int = 1
    inter_threads: int = 0
    cpu_affinity: Tuple[int, ...] = ()
    prefetch: int = 0
    deterministic: bool = True
    compiler: str = ""
    gpu_memory_growth: bool = False
    allow_tf32: bool = False
    checkpoint_every_steps: int = 0

    @property
    def native(self) -> bool:
        """Whether the framework keeps its own conventions."""
        return self.semantics == "native"
