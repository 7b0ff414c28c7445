"""What a running service is asked for: the strategies that its engines declare, with the cases of each."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from crosstrain_service import capabilities
from crosstrain_service.capabilities import Feature
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training
from tests.support import catalogue

from .faults import DIVERGED, Fault
from .nets import Sampled, cases
from .strategies import ALONE, BACKENDS, Strategy, missing, strategies

Refusal = Callable[[str, Model, Training, Execution], str]


@dataclass(frozen=True)
class Task:
    """One engine and strategy: the cases to run, and those it does not offer, with the reason, by name."""

    strategy: Strategy
    cases: tuple[Sampled, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything to do with one engine. ``missing``: strategies it does not declare, with its own reason."""

    alone: Task
    tasks: tuple[Task, ...]
    missing: Mapping[str, str]


def plan(
    service: str, engine: str, declared: Mapping[str, Feature], chosen: tuple[Sampled, ...] = (), only: str = ""
) -> Plan:
    """The plan of an engine; ``only`` restricts it to strategies whose title holds this text."""
    tasks, lacking = [], {}
    for strategy in strategies():
        if only not in strategy.title:
            continue
        reason = strategy.missing(declared)
        if reason:
            lacking[strategy.title] = reason
        else:
            tasks.append(_task(service, engine, declared, strategy, chosen or cases()))
    names = {case.name for task in tasks for case in task.cases}
    alone = _task(service, engine, declared, Strategy("1 rank", ALONE),
                  tuple(case for case in chosen or cases() if case.name in names))  # fmt: skip
    return Plan(alone, tuple(tasks), lacking)


@dataclass(frozen=True)
class FaultTask:
    """Faults to plant in one engine and strategy."""

    strategy: Strategy
    faults: tuple[Fault, ...]

    def groups(self) -> Iterator[tuple[Fault, ...]]:
        """What one probe can hold: all that are recorded together, and each that ends its run by itself."""
        recorded = tuple(fault for fault in self.faults if fault.name != DIVERGED)
        if recorded:
            yield recorded
        yield from ((fault,) for fault in self.faults if fault.name == DIVERGED)


def fault_tasks(
    service: str, engine: str, declared: Mapping[str, Feature], chosen: tuple[Fault, ...], only: str = ""
) -> Iterator[FaultTask]:
    """Two data parallel ranks by every backend that starts a process for each: nothing passes between replicas in one
    process where a fault could be planted.
    """
    for backend in BACKENDS:
        strategy = next(item for item in strategies() if item.title == f"data 2, {backend}")
        if only not in strategy.title or strategy.missing(declared):
            continue
        package = _package(service)
        count = getattr(package, "processes", lambda engine, execution, ranks: ranks)
        if count(engine, strategy.execution, 2) < 2:
            continue
        found = []
        for fault in chosen:
            model, training = fault.claimed.model, fault.claimed.training
            needed = fault.claimed.needs(execution=strategy.execution)
            needed |= capabilities.features_of_both(model, strategy.execution)
            refused = missing(needed, declared) or refusal(service)(engine, model, training, strategy.execution)
            if not refused and fault.package in ("", package.__name__):
                found.append(fault)
        yield FaultTask(strategy, tuple(found))


def _task(
    service: str, engine: str, declared: Mapping[str, Feature], strategy: Strategy, chosen: tuple[Sampled, ...]
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
