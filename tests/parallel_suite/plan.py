"""What a running service is asked for: the strategies that its engines declare, with the cases of each."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from crosstrain_service.capabilities import Feature
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training
from tests.support import catalogue

from .nets import Sampled, cases
from .strategies import ALONE, Strategy, missing, strategies

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


@functools.cache
def refusal(service: str) -> Refusal:
    """What the service's package refuses of what its engines declare; such packages import no framework."""
    known = catalogue.catalogue().service(service)
    for folder in _sources(known.folder):
        if folder not in sys.path:
            sys.path.append(folder)
    package = importlib.import_module(known.package)
    return getattr(package, "refusal", lambda engine, model, training, execution: "")


def _sources(folder: object) -> Iterator[str]:
    yield f"{folder}/src"
