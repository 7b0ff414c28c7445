"""Training and execution settings as plain data."""

from dataclasses import dataclass, field
from typing import Optional, Tuple

import numpy as np

#: Time after which ranks that do not go on are given up, unless the job says another.
STALL_SECONDS = 300


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
class Parallel:
    """How training is spread: ``data`` x ``tensor`` x ``pipeline`` ranks, which compute what one would.

    ``backend`` is "native", "horovod" or "mpi"; ``micro_batches`` of a pipeline, 0 for as many as stages;
    ``bucket_mib`` 0 for the framework's default; ``on_rank_loss`` "restart", "shrink" or "fail".
    ``stall_seconds`` after which ranks that all live but do not go on are given up, 0 for never.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    backend: str = "native"
    micro_batches: int = 0
    bucket_mib: int = 0
    local_batch_norm: bool = False
    on_rank_loss: str = "restart"
    min_data: int = 1
    stall_seconds: int = STALL_SECONDS

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor * self.pipeline


@dataclass(frozen=True)
class Ranks:
    """This process among the processes that train together.

    Usually every rank is a process; an engine whose framework drives several devices from one process
    has fewer (``processes`` in its package). ``rank`` of ``size`` processes, ``local_rank`` of ``local_size``
    on this host, ``member`` of ``members`` services. ``hosts`` and ``ports`` hold, for each process, an
    address at which the others reach it and a port that was free there just before the start.
    ``rendezvous``: where all of them reach a port at which process 0 alone listens, if it does: an address of
    this host's loopback interface, wherever process 0 is.
    ``folder``: a private folder that the processes of this host share, new for every start.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    member: int = 0
    members: int = 1
    hosts: Tuple[str, ...] = ()
    ports: Tuple[int, ...] = ()
    rendezvous: Tuple[str, int] = ("", 0)
    folder: str = ""


@dataclass(frozen=True)
class Execution:
    """Settings of the execution; zero or empty means the default named in the proto.

    ``semantics`` is "canonical" or "native", ``mode`` "parity" or "speed", ``precision`` "float32",
    "float64", "mixed_float16" or "mixed_bfloat16" (empty: the engine's default), ``device`` "cpu" or "cuda"
    with ``device_index``, which is this process's own. ``intra_threads`` is always at least 1 here.
    ``accumulation_steps``: parts of a rank's share of a batch, computed one after the other before the update.
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
    accumulation_steps: int = 1
    parallel: Parallel = Parallel()
    ranks: Ranks = Ranks()

    @property
    def native(self) -> bool:
        """Whether the framework keeps its own conventions."""
        return self.semantics == "native"

    @property
    def data_shares(self) -> int:
        """Shares into which a batch is split among processes."""
        return max(1, self.parallel.data * self.ranks.size // self.parallel.ranks)

    @property
    def data_share(self) -> int:
        """Number of this process's share, from 0. Ranks count tensor first, then pipeline, then data."""
        return self.ranks.rank * self.data_shares // self.ranks.size
