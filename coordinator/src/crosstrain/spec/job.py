"""The job document: everything a job can say, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from crosstrain.data import DataError, ImportOptions

from .base import MAX_RANKS, MAX_SEED, MAX_STEPS, Digest, Name, NotNegative, Part, Positive, Size, wrong
from .document import Path
from .layers import LayerSpec
from .optimizers import AdamW, OptimizerSpec
from .parallel import EngineChoice, ParallelSpec, parse_entry
from .schedule import ScheduleSpec
from .verdict import VerdictSpec

BUILT_IN = ("cnn2", "cnn3")
MAX_REPEATS = 100
MAX_ENGINES = 64
MAX_LAYERS = 1000

Repeats = Annotated[int, Field(ge=1, le=MAX_REPEATS)]
Core = Annotated[int, Field(ge=0, le=4095)]


class InlineModel(Part):
    """A network of layers in order of execution; the last one gives one value per class."""

    name: Name = "model"
    layers: Annotated[list[LayerSpec], Field(min_length=1, max_length=MAX_LAYERS)]


def _built_in(value: str) -> str:
    if value in BUILT_IN:
        return value
    if value.endswith((".yaml", ".yml", ".json")):
        raise ValueError(
            f"the model file {value!r} is read by the command line only; here the layers must be written out"
        )
    raise ValueError(
        f"no built-in network {value!r}; known are {', '.join(BUILT_IN)}, or write {{layers: [...]}}, "
        "or name a file that ends in .yaml"
    )


ModelSpec = Annotated[
    Annotated[str, AfterValidator(_built_in), Tag("built-in")] | Annotated[InlineModel, Tag("layers")],
    Discriminator(lambda value: "built-in" if isinstance(value, str) else "layers"),
]


class DataSpec(Part):
    """Sources of samples and what is known about them; see ``crosstrain.data.ImportOptions``.

    The validation split of early stopping is part of ``training.early_stopping``.
    """

    train: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    test: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    format: Literal["csv", "npz", "idx", "images"] | None = None
    shape: Annotated[list[Size], Field(min_length=2, max_length=3)] | None = None
    layout: Literal["nchw", "nhwc"] | None = None
    header: bool | None = None
    label: str | Annotated[int, Field(ge=1)] | None = None
    labels: Literal["index", "map", "onehot"] = "index"
    classes: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    label_values: list[int] | None = None
    class_names: list[str] | None = None
    divisor: Positive | None = None

    @model_validator(mode="after")
    def _options(self) -> DataSpec:
        try:
            self.import_options()
        except DataError as error:
            raise wrong(tuple(error.field.split(".")), error.message) from None
        return self

    def import_options(self) -> ImportOptions:
        """The options for importing either source."""
        values = self.model_dump(exclude={"train", "test"}, exclude_none=True)
        return ImportOptions.from_json(values)


class WeightDecaySpec(Part):
    """``l2`` adds rate * w to the gradient; ``decoupled`` shrinks weights by lr * rate beside the rule."""

    rate: NotNegative
    coupling: Literal["l2", "decoupled"] = "l2"
    include_biases: bool = False


class EarlyStoppingSpec(Part):
    """Stops after ``patience`` epochs without a validation loss lower by more than ``min_delta``."""

    validation_share: Annotated[float, Field(gt=0, lt=1)]
    patience: Size = 1
    min_delta: NotNegative = 0.0


class TrainingSpec(Part):
    """What defines the function that all engines compute."""

    epochs: Size = 1
    max_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    batch_size: Size = 64
    drop_last: bool = False
    keep_order: bool = False
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    optimizer: OptimizerSpec | None = None
    schedule: ScheduleSpec = ScheduleSpec()
    weight_decay: WeightDecaySpec | None = None
    clip_norm: NotNegative = 0.0
    early_stopping: EarlyStoppingSpec | None = None

    @model_validator(mode="after")
    def _one_decay(self) -> TrainingSpec:
        if self.weight_decay and self.optimizer and isinstance(self.optimizer.rule, AdamW):
            path = ("training", "weight_decay")
            raise wrong(path, "adamw has its own weight_decay; remove this one, or write adam")
        return self


class DevicesSpec(Part):
    """``auto``: a GPU where a service has one, else the CPU. ``count`` is short for ``parallel: {data: count}``.

    ``shared`` lets a run start while another run uses the same device; times are then worth little.
    """

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    count: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 1
    index: Annotated[int, Field(ge=0, le=1023)] = 0
    shared: bool = False


class ExecutionSpec(Part):
    """How the work is done: speed and rounding may depend on it, the function may not.

    Zero threads mean all cores (``threads``) or the framework's default (``inter_threads``).
    ``deterministic`` is true in parity mode and false in speed mode unless given. ``precision`` is
    float32, but float64 in the reference engine, unless given; the mixed ones keep parameters and update in
    float32. ``compiler`` is one for all engines, or a mapping from engines to compilers, since most compilers
    belong to one framework. ``accumulation_steps`` are parts in which a rank computes its share of a batch.
    """

    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    inter_threads: Annotated[int, Field(ge=0, le=4096)] = 0
    cpu_affinity: list[Core] = Field(default_factory=list, max_length=4096)
    prefetch: Annotated[int, Field(ge=0, le=1024)] = 0
    deterministic: bool | None = None
    compiler: str | dict[EngineChoice, str] = ""
    gpu_memory_growth: bool = False
    allow_tf32: bool = False
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] | None = None
    checkpoint_every_steps: Annotated[int, Field(ge=0, le=MAX_STEPS)] = 0
    accumulation_steps: Annotated[int, Field(ge=1, le=4096)] = 1


class JobSpec(Part):
    """A job: one network, one training, several engines."""

    name: Name
    task: Literal["train", "evaluate", "check"] = "train"
    model: ModelSpec
    data: DataSpec = DataSpec()
    training: TrainingSpec = TrainingSpec()
    semantics: Literal["canonical", "native"] = "canonical"
    mode: Literal["parity", "speed"] = "parity"
    repeats: Repeats = 1
    runs_of: dict[EngineChoice, Repeats] = Field(default_factory=dict)
    engines: Annotated[list[EngineChoice], Field(min_length=1, max_length=MAX_ENGINES)]
    devices: DevicesSpec = DevicesSpec()
    parallel: ParallelSpec = ParallelSpec()
    execution: ExecutionSpec = ExecutionSpec()
    cross_evaluate: bool = True
    verdict: VerdictSpec = VerdictSpec()
    weights: list[Digest] = Field(default_factory=list, max_length=1000)
    initial_weights: Digest | None = None

    _lines: dict[Path, int] = PrivateAttr(default_factory=dict)

    def __init__(self, lines: Mapping[Path, int] | None = None, /, **values: Any) -> None:
        super().__init__(**values)
        self._lines = dict(lines or {})

    @property
    def lines(self) -> dict[Path, int]:
        """1-based line of every value in the document; empty if the spec was not read from one."""
        return self._lines

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        if self.task != "evaluate" and self.training.optimizer is None:
            raise wrong(("training", "optimizer"), "is missing, for example {sgd: {learning_rate: 0.05}}")
        if self.task != "evaluate" and self.weights:
            raise wrong(("weights",), "belong to the task evaluate; to train on, write initial_weights")
        if self.task == "check" and not (self.verdict.probe and self.verdict.judge is not False):
            name = "judge" if self.verdict.probe else "probe"
            raise wrong(("verdict", name), "must be true: the task check does nothing else")
        if self.task == "evaluate" and not self.weights:
            raise wrong(("weights",), "are missing: the task evaluate needs a list of SHA-256 digests")
        for index, engine in enumerate(self.engines):
            if engine in self.engines[:index]:
                raise wrong(("engines", index), f"{engine!r} is listed twice; repeats: N runs each N times")
        self._check_ranks()
        for engine, count in self.runs_of.items():
            self._is_listed(engine, ("runs_of", engine))
            if count > self.repeats:
                raise wrong(("runs_of", engine), f"{count} is more than repeats, which is {self.repeats}")
        compilers = self.execution.compiler
        for engine in compilers if isinstance(compilers, dict) else ():
            self._is_listed(engine, ("execution", "compiler", engine))
        return self

    def _check_ranks(self) -> None:
        """What each engine's ranks need of the rest of the document, before anything is known of data and engines."""
        count, given = self.devices.count, self.parallel.data
        if count > 1 and "data" in self.parallel.model_fields_set and given != count:
            text = f"{count} is short for parallel: {{data: {count}}}, which gives {given}; remove one of the two"
            raise wrong(("devices", "count"), text)
        for index, engine in enumerate(self.engines):
            own = parse_entry(engine).settings

            def path(name: str, index: int = index, own: Mapping[str, Any] = own) -> Path:
                return ("engines", index) if name in own else ("parallel", name)

            try:
                parallel = self.parallel_of(engine)
            except ValueError as error:
                raise wrong(("engines", index) if own else ("parallel",), str(error)) from None
            if parallel.min_data > parallel.data:
                text = f"min_data {parallel.min_data} is more than the {parallel.data} data ranks of {engine}"
                raise wrong(path("min_data"), text)
            if parallel.hosts > parallel.ranks:
                ranks = f"{parallel.ranks} rank{'s' if parallel.ranks > 1 else ''}"
                text = f"{engine}: {ranks} cannot be spread over {parallel.hosts} hosts; every host needs one at least"
                raise wrong(path("hosts"), text)
            if parallel.local_batch_norm and not self.native:
                text = "local_batch_norm changes the function with the number of ranks; it needs semantics: native"
                raise wrong(path("local_batch_norm"), text)
            if self.task != "evaluate" and parallel.data > self.training.batch_size:
                batch = self.training.batch_size
                text = (
                    f"{engine}: a batch of {batch} {'sample' if batch == 1 else 'samples'} cannot be split over "
                    f"{parallel.data} data ranks; batch_size is that of all ranks together and must be at least "
                    f"{parallel.data}"
                )
                raise wrong(("training", "batch_size"), text)
            self._check_parts(engine, parallel)

    def _check_parts(self, engine: str, parallel: ParallelSpec) -> None:
        """A rank's share of a batch must have a sample for every part in which it is computed."""
        micro = (parallel.micro_batches or parallel.pipeline) if parallel.pipeline > 1 else 1
        parts = self.execution.accumulation_steps * micro
        share = self.training.batch_size // parallel.data
        if self.task == "evaluate" or parts == 1 or share >= parts:
            return
        name = ("execution", "accumulation_steps") if micro == 1 else ("parallel", "micro_batches")
        text = (
            f"{engine}: a rank's share of {share} of the {self.training.batch_size} samples of a batch cannot be "
            f"computed in {parts} parts"
        )
        raise wrong(name, text)

    def _is_listed(self, engine: str, path: Path) -> None:
        if engine not in self.engines and engine not in {parse_entry(entry).base for entry in self.engines}:
            raise wrong(path, f"{engine!r} is not one of the engines: {', '.join(self.engines)}")

    @property
    def native(self) -> bool:
        """Whether every framework keeps its own conventions."""
        return self.semantics == "native"

    @property
    def deterministic(self) -> bool:
        """Whether deterministic kernels are demanded."""
        given = self.execution.deterministic
        return self.mode == "parity" if given is None else given

    @property
    def judged(self) -> bool:
        """Whether the job ends with a verdict."""
        if self.task != "train":
            return self.task == "check"
        return self.mode == "parity" if self.verdict.judge is None else self.verdict.judge

    def parallel_of(self, engine: str) -> ParallelSpec:
        """How training is spread in an engine (as written in ``engines``)."""
        parallel = self.parallel
        if self.devices.count > 1:
            parallel = parallel.with_settings(
                {"data": self.devices.count, "min_data": parallel.min_data, "hosts": parallel.hosts}
            )
        settings = parse_entry(engine).settings
        return parallel.with_settings(settings) if settings else parallel

    def same_ranks(self, one: str, other: str) -> bool:
        """Whether two engines (as written in ``engines``) spread training in the same way."""
        a, b = self.parallel_of(one), self.parallel_of(other)
        return a == b or a.ranks == b.ranks == 1

    def repeats_of(self, engine: str) -> int:
        """How many times an engine (as written in ``engines``) runs."""
        return self.runs_of.get(engine, self.runs_of.get(parse_entry(engine).base, self.repeats))

    def compiler_of(self, engine: str) -> str:
        """The compiler of an engine (as written in ``engines``)."""
        compilers = self.execution.compiler
        if isinstance(compilers, str):
            return compilers
        return compilers.get(engine, compilers.get(parse_entry(engine).base, ""))
