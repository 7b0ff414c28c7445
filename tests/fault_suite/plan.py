"""Which cases run in which service processes."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from dataclasses import dataclass

from crosstrain_service.training import Execution
from tests.conformance.cases.builder import Case
from tests.support.catalogue import EngineId

from . import clean, nets
from .faults import CAFFE, FAULTS, KERAS, KERAS212, LASAGNE, TF, TF212, THEANO, TORCH, Fault
from .runs import engine_id

ENGINES = (TORCH, TF, TF212, KERAS, KERAS212, THEANO, LASAGNE, CAFFE)


@dataclass(frozen=True)
class Batch:
    """Cases of one engine with one execution: one probe. ``faults`` and ``clean`` go by the cases' names."""

    engine: EngineId
    execution: Execution
    cases: tuple[Case, ...]
    faults: tuple[Fault, ...] = ()
    variation: clean.Variation | None = None


@dataclass(frozen=True)
class Process:
    """The probes of one service process; ``faulty``: with the test engines."""

    service: str
    faulty: bool
    variables: tuple[tuple[str, str], ...]
    batches: tuple[Batch, ...]

    @property
    def title(self) -> str:
        """What progress calls it."""
        return f"{self.service}, {'faults' if self.faulty else 'clean'}"


def fault_processes(faults: tuple[Fault, ...] = FAULTS) -> list[Process]:
    """One process per service that has a fault."""
    chosen: dict[tuple[EngineId, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        for name in fault.engines:
            chosen[engine_id(name), fault.precision].append(fault)
    batches: dict[str, list[Batch]] = defaultdict(list)
    for (engine, precision), group in chosen.items():
        execution = Execution(intra_threads=1, precision=precision)
        batches[engine.service].append(
            Batch(engine, execution, tuple(fault.sent for fault in group), tuple(group)))  # fmt: skip
    return [Process(service, True, (), tuple(items)) for service, items in batches.items()]


def clean_processes(short: bool = False) -> list[Process]:
    """Clean runs of all engines; ``short``: a few networks in one way each."""
    grouped: dict[tuple[str, bool, tuple[tuple[str, str], ...]], list[Batch]] = defaultdict(list)
    for name in (TORCH, TF, CAFFE) if short else ENGINES:
        engine = engine_id(name)
        for variation, cases in _short_runs() if short else _runs(name):
            if variation.plant:
                cases = [dataclasses.replace(
                    case, model=dataclasses.replace(case.model, name=f"fault.{variation.plant}")) for case in cases]
            key = (engine.service, bool(variation.plant), variation.variables)
            grouped[key].append(Batch(engine, variation.execution, tuple(cases), variation=variation))
    return [Process(*key, tuple(items)) for key, items in grouped.items()]


def _nets(*names: str) -> list[Case]:
    return [nets.net(name) for name in names]


def _short_runs() -> list[tuple[clean.Variation, list[Case]]]:
    return [(clean.COMMON[0], _nets(*clean.SHORT)), (clean.COMMON[2], _nets("plain", "adam"))]


def _runs(name: str) -> list[tuple[clean.Variation, list[Case]]]:
    """The clean runs of an engine: all there are where compiling costs little."""
    short = _nets(*clean.SHORT)
    batches = [clean.batch_case(size) for size in (1, 2, 7, 64)]
    first, again, two = clean.COMMON
    bare = name.split("@")[0]
    found: list[tuple[clean.Variation, list[Case]]]
    if name in (TORCH, CAFFE):
        every = _nets(*clean.EVERY)
        seeds = [clean.seed_case(seed) for seed in range(clean.SEEDS)]
        found = [(first, [*every, *batches, clean.fortran_case()]), (again, [*short, *batches]),
                 (two, [*short, *batches, clean.fortran_case()]),
                 (dataclasses.replace(first, title="seeds"), seeds)]  # fmt: skip
    elif name == TF:
        found = [(first, [*_nets(*clean.EVERY), *batches, clean.fortran_case()]), (again, short),
                 (two, [*short, batches[-1]])]  # fmt: skip
    elif name in (THEANO, LASAGNE):
        found = [(first, [*short, batches[-1]]), (two, short[:1])]
    else:
        found = [(first, [*short, batches[-1]]), (two, short)]
    if name != CAFFE:
        found.append((clean.DOUBLE, short[1:3] if name in (THEANO, LASAGNE) else short))
    if name in (TORCH, TF, KERAS):
        found += list(zip(clean.FURTHER[bare], itertools.repeat(short)))
    return found
