"""Faults planted between ranks: what is planted, on which network, and what must be named."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

from crosstrain.compare import causes as conventions
from crosstrain.compare.certificate import NotComparable, certify
from crosstrain_service.model import BatchNorm, Dense, Dropout, Flatten, Relu
from crosstrain_service.training import Execution, WeightDecay
from tests.conformance.cases.builder import SGD, Case, case, conv
from tests.conformance.suite import Outcome
from tests.fault_suite.scoring import UNKNOWN
from tests.fault_suite.verdicts import MISMATCH, document, evidence

from .nets import BATCH, MOMENTUM, layers

#: Ends a run whose ranks hold different parameters, before anything is recorded that a convention could explain.
DIVERGED = "RANK_DIVERGED"


@dataclass(frozen=True)
class Fault:
    """One fault. ``plant``: what the test engine does, "" for a fault of the job (``job`` makes what is sent) or of
    the execution (``spread`` makes it); ``packages``: those that it can be planted in, none for all; ``inside``: how
    the names of engines begin in which it can also be planted in replicas of one process; ``short``: one of those
    that are planted in every engine.
    """

    title: str
    network: str
    name: str
    says: str
    plant: str = ""
    packages: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    short: bool = False
    job: Callable[[Case], Case] | None = None
    spread: Callable[[Execution], Execution] | None = None

    @property
    def claimed(self) -> Case:
        """What the engine is said to compute."""
        return networks()[self.network]

    def execution(self, execution: Execution) -> Execution:
        """How the ranks are asked to work."""
        return self.spread(execution) if self.spread else execution

    def fits(self, package: str, engine: str, processes: int) -> bool:
        """Whether it can be planted in an engine, name@version, whose ranks take so many processes."""
        return package in (self.packages or (package,)) and (processes > 1 or engine.startswith(self.inside))

    @property
    def sent(self) -> Case:
        """What the engine is asked for."""
        sent = self.job(self.claimed) if self.job else self.claimed
        name = f"fault.{self.plant}" if self.plant else "plain"
        return dataclasses.replace(sent, name=self.title, model=dataclasses.replace(sent.model, name=name))


@functools.cache
def networks() -> dict[str, Case]:
    """The networks, each with shares of 7 and 6 samples on two ranks."""
    common = {"samples": 3 * BATCH, "batch": BATCH, "steps": 4, "classes": 4, "rule": MOMENTUM,
              "rates": (0.1, 0.1, 0.02, 0.02)}  # fmt: skip
    norm = [conv("conv1", 4, 3), BatchNorm("norm1", 1e-3), Relu("relu1")]
    dropout = [Flatten("flatten"), Dense("dense1", 24), Relu("relu1"), Dropout("drop1", 0.5), Dense("dense2", 4)]
    return {
        # The decay tells gradients of another size from another learning rate.
        "plain": case("plain", "", (2, 8, 8), layers(), weight_decay=WeightDecay(0.1), **common),
        "norm": case("norm", "", (2, 5, 5), norm, **common),
        "dropout": case("dropout", "", (1, 4, 4), dropout, **common),
        # In native semantics frameworks differ in momentum, and in decay.
        "drawn": case("drawn", "", (1, 4, 4), dropout, **{**common, "rule": SGD}),
    }


def _in_order(item: Case) -> Case:
    return dataclasses.replace(item, training=dataclasses.replace(item.training, keep_order=True))


def _local(execution: Execution) -> Execution:
    parallel = dataclasses.replace(execution.parallel, local_batch_norm=True)
    return dataclasses.replace(execution, semantics="native", parallel=parallel)


def _plant(plant: str, network: str, name: str, says: str, short: bool = False, **where: tuple[str, ...]) -> Fault:
    return Fault(plant, network, name, says, plant, short=short, **where)


TORCH, TENSORFLOW = "crosstrain_torch", "crosstrain_tensorflow"
THEANO, CAFFE = "crosstrain_keras_theano", "crosstrain_caffe"
_REPLICAS = ("tensorflow@", "keras-tensorflow@")


FAULTS = (
    _plant("ranks.summed", "plain", "gradient.summed_over_ranks", "gradients summed instead of averaged", True),
    _plant("ranks.summed.step", "plain", "gradient.summed_over_ranks", "the same in the training step alone"),
    _plant("ranks.divided", "plain", "gradient.divided_twice", "gradients divided by the number of ranks twice", True),
    _plant("ranks.divided.step", "plain", "gradient.divided_twice", "the same in the training step alone"),
    _plant("ranks.mean_of_means", "plain", "loss.mean_of_means", "mean of the means of 7 and 6 samples", True),
    _plant("ranks.mean_of_means.step", "plain", "loss.mean_of_means", "the same in the training step alone"),
    _plant("ranks.skipped", "plain", "parallel.skipped_rank", "the last rank adds nothing to one step", True),
    _plant("ranks.skipped.step", "plain", "parallel.skipped_rank", "the same in the training step alone"),
    _plant("ranks.repeated", "plain", "parallel.repeated_shards", "all ranks work on the first rank's rows", True),
    Fault("ranks.unshuffled", "plain", "input.other_rows", "shards in the file's order", short=True, job=_in_order),
    _plant("ranks.masks_of_first", "dropout", "parallel.masks_of_one_rank", "all ranks use the same dropout masks",
           True),
    _plant("ranks.same_dropout", "drawn", "parallel.masks_of_one_rank",
           "native dropout drawn by ranks that are seeded alike", True, inside=("tensorflow@", "keras-tensorflow@3")),
    _plant("ranks.own_dropout", "drawn", "dropout.own_mask", "no fault of ranks: native dropout drawn by each rank",
           True, inside=_REPLICAS),
    _plant("ranks.local_norm", "norm", "parallel.local_batch_norm", "batch normalisation over each rank's rows", True,
           packages=(TORCH, TENSORFLOW, THEANO), inside=_REPLICAS),
    Fault("ranks.local_norm_native", "norm", "parallel.local_batch_norm", "the same as Caffe's layer does it",
          packages=(CAFFE,), short=True, spread=_local),
    _plant("ranks.other_start", "plain", DIVERGED, "the last rank starts from other initial values"),
    _plant("ranks.own_rate", "plain", DIVERGED, "the last rank has another learning rate"),
    _plant("ranks.no_update", "plain", DIVERGED, "the last rank leaves an update out", True),
    _plant("ranks.alone", "plain", DIVERGED, "ranks do not exchange gradients", packages=(TORCH,)),
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """One fault in one engine and strategy: ``found`` are the ids named; ``error``: why it could not be judged."""

    fault: Fault
    engine: str
    strategy: str
    caught: bool = False
    found: tuple[str, ...] = ()
    error: str = ""
    details: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether it is caught and nothing else is named."""
        return self.caught and set(self.found) == {self.fault.name}


def judge(fault: Fault, engine: str, strategy: str, outcome: Outcome) -> Score:
    """Compares the records with what the ranks are said to compute."""
    if DIVERGED in outcome.error:
        return Score(fault, engine, strategy, True, (DIVERGED,), details=(outcome.error,))
    if outcome.error:
        return Score(fault, engine, strategy, error=outcome.error)
    problem = fault.claimed.problem()
    try:
        certificate = certify(problem, outcome.records)
    except NotComparable as reason:
        return Score(fault, engine, strategy, error=f"not comparable: {reason}")
    known = evidence(engine, engine, certificate, outcome.records, fault.claimed.training.batch_size)
    caught = document([known])["engines"][0]["verdict"] == MISMATCH
    found: dict[str, None] = {}
    details = []
    for cause in conventions.explain(problem, outcome.records, certificate) if caught else ():
        for name in (UNKNOWN,) if cause.unknown else cause.ids:
            found[name] = None
        also = f" (as well: {', '.join(cause.also)})" if cause.also else ""
        details.append(f"{', '.join(cause.ids) or UNKNOWN}{also}: {cause.ratio:.3g} of the bound in "
                       f"{'; '.join(cause.where)[:300]}")  # fmt: skip
    return Score(fault, engine, strategy, caught, tuple(found), details=tuple(details))
