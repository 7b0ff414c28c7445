"""What a running service is asked for: the strategies that its engines declare, with the cases of each."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType

from crosstrain_service import capabilities
from crosstrain_service.capabilities import Feature
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training
from tests.support import catalogue

from .faults import DIVERGED, Fault
from .nets import BUILT_IN, EVERY, MIXED, TRAINED, Sampled, cases
from .strategies import BACKENDS, Strategy, missing, strategies

#: Engines that run all cases on three ranks as well, and get all faults; the others take longer to compile.
THOROUGH = ("torch", "tensorflow", "caffe", "reference")
Refusal = Callable[[str, Model, Training, Execution], str]


@dataclass(frozen=True)
class Task:
    """One engine and strategy: the cases to run, and those it does not offer, with the reason, by name. ``trained``:
    one of the cases is trained for real as well.
    """

    strategy: Strategy
    cases: tuple[Sampled, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    trained: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything to do with one engine. ``alone``: one rank, in every precision; ``missing``: strategies it does not
    declare, with its own reason.
    """

    alone: tuple[Task, ...]
    tasks: tuple[Task, ...]
    missing: Mapping[str, str]


def plan(
    service: str, engine: str, declared: Mapping[str, Feature], chosen: tuple[Sampled, ...] = (), only: str = ""
) -> Plan:
    """The plan of an engine; ``only`` restricts it to strategies whose title holds this text."""
    tasks, lacking = [], {}
    chosen = chosen or cases()
    newest = engine in catalogue.catalogue().service(service).default_for
    thorough, three = newest and engine in THOROUGH, False
    for strategy in strategies():
        reason = strategy.missing(declared)
        first = strategy.is_data(3) and not reason and not three
        whole = strategy.plain or (first and thorough)
        three = three or first
        if only not in strategy.title:
            continue
        if reason:
            lacking[strategy.title] = reason
        else:
            names = names_of(strategy, whole, newest)
            task = _task(service, engine, declared, strategy, [case for case in chosen if case.name in names])
            tasks.append(replace(task, trained=whole and any(case.name == TRAINED for case in task.cases)))
    alone = {}
    for task in tasks:
        _, wanted = alone.setdefault(task.strategy.precision, (task.strategy.alone, {}))
        wanted.update({case.name: case for case in task.cases})
    single = tuple(_task(service, engine, declared, strategy, list(wanted.values()))
                   for strategy, wanted in alone.values())  # fmt: skip
    return Plan(single, tuple(tasks), lacking)


def names_of(strategy: Strategy, whole: bool, newest: bool = True) -> Collection[str]:
    """Names of the cases that a strategy runs: all with ``whole``, some otherwise."""
    if strategy.precision != "float32":
        return MIXED
    if not newest and not strategy.is_data():
        return BUILT_IN
    return [case.name for case in cases()] if whole else EVERY


@dataclass(frozen=True)
class FaultTask:
    """Faults to plant in one engine and strategy."""

    strategy: Strategy
    faults: tuple[Fault, ...]

    def groups(self) -> Iterator[tuple[Fault, ...]]:
        """What one probe can hold: all that are recorded together, and each that ends its run by itself or is
        asked for in another way.
        """
        apart = tuple(fault for fault in self.faults if fault.name == DIVERGED or fault.spread)
        together = tuple(fault for fault in self.faults if fault not in apart)
        if together:
            yield together
        yield from ((fault,) for fault in apart)


def fault_tasks(
    service: str, engine: str, declared: Mapping[str, Feature], chosen: tuple[Fault, ...], only: str = ""
) -> Iterator[FaultTask]:
    """Two data parallel ranks by every backend. All faults by the first one that starts a process for each rank, in
    thorough engines; elsewhere a part of them. Between replicas in one process only what is done inside an engine can
    be planted.
    """
    package = _package(service)
    full = engine in THOROUGH and engine in catalogue.catalogue().service(service).default_for
    label = f"{engine}@{catalogue.catalogue().service(service).engines[engine]}"
    for backend in BACKENDS:
        strategy = next(item for item in strategies() if item.title == f"data 2, {backend}")
        if strategy.missing(declared):
            continue
        processes = getattr(package, "processes", lambda engine, execution, ranks: ranks)(
            engine, strategy.execution, 2)  # fmt: skip
        found = []
        for fault in chosen:
            if not (fault.short or (full and processes > 1)) or not fault.fits(package.__name__, label, processes):
                continue
            execution = fault.execution(strategy.execution)
            model, training = fault.claimed.model, fault.claimed.training
            needed = fault.claimed.needs(execution=execution) | capabilities.features_of_both(model, execution)
            if not missing(needed, declared) and not refusal(service)(engine, model, training, execution):
                found.append(fault)
        full = full and processes < 2
        if only in strategy.title and found:
            yield FaultTask(strategy, tuple(found))


def _task(
    service: str, engine: str, declared: Mapping[str, Feature], strategy: Strategy, chosen: Iterable[Sampled]
) -> Task:
    found, refused = [], {}
    for case in chosen:
        reason = missing(case.needs_of(strategy.execution), declared)
        reason = reason or refusal(service)(engine, case.model, case.training, strategy.execution)
        if reason:
            refused[case.name] = reason
        else:
            found.append(case)
    return Task(strategy, tuple(found), refused)


def refusal(service: str) -> Refusal:
    """What the service's package refuses of what its engines declare."""
    return getattr(_package(service), "refusal", lambda engine, model, training, execution: "")


@functools.cache
def _package(service: str) -> ModuleType:
    """The service's package; such packages import no framework."""
    known = catalogue.catalogue().service(service)
    sys.path.append(str(known.folder / "src"))
    return importlib.import_module(known.package)
