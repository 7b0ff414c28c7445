"""Clean runs: engines, versions, threads, layouts, compilers, precisions, batch sizes and seeds without a fault.

Any two runs of one case are a pair. A pair raises a false alarm if the verdict finds a mismatch in either.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from crosstrain.compare.certificate import NotComparable, certify
from crosstrain.compare.verdict import EngineEvidence
from crosstrain_service import testing, weights
from crosstrain_service.model import Dense, Flatten, Relu
from crosstrain_service.training import Execution, Rule, Training
from tests.conformance.cases.builder import SGD, Case, case, conv, pool
from tests.conformance.suite import Outcome
from tests.support.jobs import digits

from . import nets
from .verdicts import MISMATCH, document, evidence

SEEDS = 500
_PLAIN = Execution(intra_threads=1)


@dataclass(frozen=True)
class Variation:
    """One way to run an engine: settings of the execution, the environment, and a harmless plant."""

    title: str
    execution: Execution = _PLAIN
    variables: tuple[tuple[str, str], ...] = ()
    plant: str = ""
    needs: tuple[str, ...] = ()


_TWO = dataclasses.replace(_PLAIN, intra_threads=2)
_DOUBLE = dataclasses.replace(_PLAIN, precision="float64")

#: Variations of every engine.
COMMON = (Variation("1 thread"), Variation("repeated"), Variation("2 threads", _TWO))
DOUBLE = Variation("float64", _DOUBLE)
#: Further variations by engine's name.
FURTHER = {
    "torch": (
        Variation("channels last", plant="layout.channels_last"),
        Variation("without oneDNN", plant="layout.plain_kernels"),
        Variation("nondeterministic", dataclasses.replace(_PLAIN, deterministic=False)),
    ),
    "tensorflow": (
        Variation("XLA", dataclasses.replace(_PLAIN, compiler="xla")),
        Variation("without oneDNN", variables=(("TF_ENABLE_ONEDNN_OPTS", "0"),)),
    ),
    "keras-tensorflow": (Variation("without oneDNN", variables=(("TF_ENABLE_ONEDNN_OPTS", "0"),)),),
}

#: Networks of the fault suite that clean runs use: those that every engine can run, and the short list.
EVERY = tuple(nets.names())
SHORT = ("plain", "momentum_drop", "adam", "dropout", "norm_evaluated")


def batch_case(size: int) -> Case:
    """A small cnn2 on real digits with one batch size: three steps."""
    model = testing.cnn2(channels=(8, 16), units=32)
    training = Training(
        epochs=1, batch_size=size, seed=size, rule=nets.MOMENTUM, learning_rates=np.full(3, 0.05), max_steps=3
    )  # fmt: skip
    return Case(f"batch{size}", "", model, training, _digits(), weights.initial_parameters(model, size))


def _digits():  # type: ignore[no-untyped-def]
    data = digits()
    return data._replace(pixels=data.pixels[:300], labels=data.labels[:300])


def fortran_case() -> Case:
    """The plain network on pixels stored in Fortran order."""
    found = nets.net("plain")
    data = found.data._replace(pixels=np.asfortranarray(found.data.pixels))
    return dataclasses.replace(found, name="fortran", data=data)


def seed_case(seed: int) -> Case:
    """One small network; data, weights, order and labels all follow from the seed."""
    layers = [conv("conv", 3, 3, begin=1), Relu("relu"), pool("pool", "max", 2, 2), Flatten("flatten"), Dense("out", 3)]
    return case(f"seed{seed}", "", (1, 6, 6), layers, samples=6, batch=4, steps=2, biases=seed % 2 == 0,
                rule=Rule("sgd", momentum=0.9, nesterov=False) if seed % 3 else SGD)  # fmt: skip


@dataclass
class CleanRun:
    """The outcome of one case in one way of running an engine; ``error``: why it could not be judged."""

    engine: str
    variation: str
    case: str
    precision: str
    evidence: EngineEvidence | None = None
    error: str = ""
    worst: Mapping[str, float] = field(default_factory=dict)


def judge(engine: str, variation: Variation, item: Case, outcome: Outcome) -> CleanRun:
    """Certifies one case."""
    precision = variation.execution.precision or "float32"
    run = CleanRun(engine, variation.title, item.name, precision)
    if outcome.error:
        run.error = outcome.error
        return run
    try:
        certificate = certify(item.problem(precision), outcome.records)
    except NotComparable as reason:
        run.error = f"not comparable: {reason}"
        return run
    run.worst = {kind: check.ratio for kind, check in certificate.worst_by_kind().items()}
    label = f"{engine} ({variation.title})"
    run.evidence = evidence(label, engine, certificate, outcome.records, item.training.batch_size)
    return run


@dataclass(frozen=True)
class Pair:
    """Two runs of one case, and the verdict on them."""

    case: str
    precision: str
    first: CleanRun
    second: CleanRun
    verdict: str
    sentence: str

    @property
    def alarm(self) -> bool:
        """Whether it is a false alarm."""
        return self.verdict == MISMATCH

    def __str__(self) -> str:
        return f"{self.case}, {self.precision}: {self.verdict}: {self.sentence}"


def pairs(runs: Iterable[CleanRun]) -> list[Pair]:
    """All pairs of judged runs of one case in one precision."""
    grouped: dict[tuple[str, str], list[CleanRun]] = defaultdict(list)
    for run in runs:
        if run.evidence is not None:
            grouped[run.case, run.precision].append(run)
    found = []
    for (name, precision), members in grouped.items():
        known = [run.evidence for run in members if run.evidence is not None]
        rows = document(known)["pairs"]
        for (first, second), row in zip(itertools.combinations(members, 2), rows, strict=True):
            found.append(Pair(name, precision, first, second, row["verdict"], row["sentence"]))
    return found
