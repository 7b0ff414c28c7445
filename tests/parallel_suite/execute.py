"""Runs the plans of all engines, some services at a time, and has what they record judged by other processes."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc

from crosstrain.compare.freerun.traces import LossTrace
from crosstrain_protos.v1 import service_pb2
from tests.conformance.suite import Outcome
from tests.fault_suite.runs import faulty_service, probe
from tests.support.catalogue import EngineId
from tests.support.service import RunFailed, Service, ServiceUnavailable, features

from . import faults, scoring
from .judges import Judges
from .nets import TRAINED, Sampled
from .plan import FaultTask, Task, fault_tasks, plan
from .trained import train

Say = Callable[[str], None]
Traces = dict[str, LossTrace | str]


@dataclass
class Results:
    """What came out. ``undeclared`` and ``refused``: (engine, strategy, case or "", reason); ``missing``: engines
    that cannot run here; ``broken``: those that the suite itself failed in.
    """

    parity: list[scoring.Parity] = field(default_factory=list)
    scores: list[faults.Score] = field(default_factory=list)
    undeclared: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[tuple[str, str, str, str]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


class _Pending(NamedTuple):
    """A case whose records are being judged."""

    case: Sampled
    judged: Future[scoring.Judged]


class Execution:
    """Executes the plans; ``say`` is told what is going on, and ``keep`` is given what there is so far."""

    def __init__(
        self,
        say: Say,
        chosen: tuple[Sampled, ...] = (),
        only: str = "",
        keep: Callable[[Results], None] = lambda results: None,
    ) -> None:
        self._say = say
        self._keep = keep
        self._chosen = chosen
        self._only = only
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self.results = Results()

    def run(
        self,
        engines: Iterable[EngineId],
        workers: int = 2,
        *,
        parity: bool = True,
        planted: tuple[faults.Fault, ...] = (),
    ) -> Results:
        """Runs ``workers`` services at a time: parity, and in services of their own the faults. An engine that cannot
        run here is noted.
        """
        services: dict[str, list[EngineId]] = {}
        for engine in engines:
            services.setdefault(engine.service, []).append(engine)
        works: list[tuple[str, Callable[[str], Service], Callable[[Service, EngineId, Declared], None]]] = []
        if parity:
            works += [(name, Service, self._engine) for name in services]
        if planted:
            works += [(name, faulty_service, lambda *known: self._faulty(*known, planted)) for name in services]
        with Judges(workers) as self._judges, concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._service, name, services[name], *how) for name, *how in works]:
                done.result()
        self.results.seconds = time.monotonic() - self._begin
        return self.results

    def report(self, line: str) -> None:
        """Says a line with the time since the start."""
        self._say(f"[{time.monotonic() - self._begin:4.0f} s] {line}")

    def _service(
        self,
        name: str,
        engines: list[EngineId],
        start: Callable[[str], Service],
        work: Callable[[Service, EngineId, Declared], None],
    ) -> None:
        """Starts a service and works with each of its engines that can run here."""
        try:
            service = start(name)
        except ServiceUnavailable as reason:
            self._missing(engines, str(reason))
            return
        with service:
            descriptions = service.describe()
            for engine in engines:
                description = descriptions.get(engine.name)
                if description is None or description.unavailable_reason:
                    self._missing([engine], description.unavailable_reason if description else "no such engine")
                    continue
                try:
                    work(service, engine, description)
                except Exception as error:  # what the other engines gave is kept
                    traceback.print_exc()
                    with self._lock:
                        self.results.broken.append(f"{engine}: {error!r}")

    def _missing(self, engines: list[EngineId], reason: str) -> None:
        with self._lock:
            self.results.missing.update((str(engine), reason) for engine in engines)
        self.report(f"{', '.join(map(str, engines))}: {reason}")

    def _engine(self, service: Service, engine: EngineId, description: Declared) -> None:
        """The parity of one engine: every strategy against one rank."""
        found = plan(engine.service, engine.name, features(description), self._chosen, self._only)
        with self._lock:
            self.results.undeclared += [(str(engine), *item) for item in found.missing.items()]
            self.results.refused += [
                (str(engine), task.strategy.title, *item) for task in found.tasks for item in task.refused.items()
            ]
        if not found.tasks:
            self.report(f"{engine}: declares nothing to run on several ranks")
            return
        alone = {task.strategy.precision: self._recorded(service, engine, task) for task in found.alone}
        traces: Traces = {}
        if any(task.trained for task in found.tasks):
            self._train(service, engine, next(task for task in found.alone if not task.strategy.execution.precision),
                        traces)  # fmt: skip
        # One strategy is judged while the next one runs.
        with concurrent.futures.ThreadPoolExecutor(1) as after:
            done = []
            for task in found.tasks:
                begin = time.monotonic()
                spread = self._recorded(service, engine, task)
                if task.trained:
                    self._train(service, engine, task, traces)
                seconds = time.monotonic() - begin
                done.append(after.submit(self._compare, engine, task, alone[task.strategy.precision], spread, traces,
                                         seconds))  # fmt: skip
            for item in done:
                item.result()

    def _recorded(self, service: Service, engine: EngineId, task: Task) -> dict[str, _Pending]:
        """The cases of a task by name, recorded by the engine and handed to the judges."""
        title = task.strategy.title
        arguments = (str(engine), f"{engine} ({title})")
        found = {}
        cases = {case.name: case for case in task.cases}

        def judge(name: str, outcome: Outcome) -> None:
            judged = self._judges.submit(scoring.judge, *arguments, cases[name], outcome, task.strategy.precision)
            found[name] = _Pending(cases[name], judged)

        run_id = f"{_plain(engine.name)}-{_plain(title)}"
        try:
            for name, outcome in probe(service, engine.name, task.cases, task.strategy.execution, run_id):
                judge(name, outcome)
        except grpc.RpcError as error:
            failed = Outcome(error=f"{error.code().name}: {error.details()}")
            for name in cases.keys() - found.keys():
                judge(name, failed)
        return found

    def _train(self, service: Service, engine: EngineId, task: Task, traces: Traces) -> None:
        """Trains one of the cases for real; ``traces`` gets the losses, or why there are none."""
        case = next(case for case in task.cases if case.name == TRAINED)
        run_id = f"{_plain(engine.name)}-{_plain(task.strategy.title)}-train"
        try:
            found: LossTrace | str = train(service, engine.name, case, task.strategy.execution, run_id)
        except (grpc.RpcError, RunFailed) as error:
            found = str(error)
        traces[task.strategy.title] = found

    def _compare(
        self,
        engine: EngineId,
        task: Task,
        alone: dict[str, _Pending],
        spread: dict[str, _Pending],
        traces: Traces,
        seconds: float,
    ) -> None:
        strategy = task.strategy
        parities = [
            scoring.compare(str(engine), strategy, item.case, alone[name].judged.result(), item.judged.result())
            for name, item in spread.items()
        ]
        if task.trained:
            one, several = alone[TRAINED], spread[TRAINED]
            parities.append(scoring.compare_runs(
                str(engine), strategy, one.case, (one.judged.result(), traces[strategy.alone.title]),
                (several.judged.result(), traces[strategy.title])))  # fmt: skip
        with self._lock:
            self.results.parity += parities
            self._keep(self.results)
        good = sum(parity.holds for parity in parities)
        self.report(f"{engine}, {strategy.title}: parity {good}/{len(parities)} ({seconds:.0f} s)")
        for parity in parities:
            for line in parity.details:
                self.report(f"  {parity.case}: {line}")

    def _faulty(
        self, service: Service, engine: EngineId, description: Declared, chosen: tuple[faults.Fault, ...]
    ) -> None:
        """Plants faults in every strategy of an engine that they can be planted in."""
        for task in fault_tasks(engine.service, engine.name, features(description), chosen, self._only):
            self._plant(service, engine, task)

    def _plant(self, service: Service, engine: EngineId, task: FaultTask) -> None:
        begin = time.monotonic()
        title = task.strategy.title
        judged = []
        for group in task.groups():
            left = {fault.sent.name: fault for fault in group}

            def judge(name: str, outcome: Outcome, left: dict[str, faults.Fault] = left) -> None:
                judged.append(self._judges.submit(faults.judge, left.pop(name), str(engine), title, outcome))

            run_id = f"{_plain(engine.name)}-{_plain(title)}-{_plain(group[0].title)}"
            cases = [fault.sent for fault in group]
            try:
                for name, outcome in probe(service, engine.name, cases, group[0].execution(task.strategy.execution),
                                           run_id):  # fmt: skip
                    judge(name, outcome)
            except grpc.RpcError as error:
                failed = Outcome(error=f"{error.code().name}: {error.details()}")
                for name in list(left):
                    judge(name, failed)
        scores = [item.result() for item in judged]
        with self._lock:
            self.results.scores += scores
            self._keep(self.results)
        good = sum(score.named for score in scores)
        self.report(f"{engine}, {title}: faults {good}/{len(scores)} ({time.monotonic() - begin:.0f} s)")
        for score in scores:
            if not score.named:
                found = score.error or ", ".join(score.found) or "nothing"
                self.report(f"  {score.fault.title}: {'caught' if score.caught else 'not caught'}, named {found}")
                for line in score.details:
                    self.report(f"    {line}")


Declared = service_pb2.EngineDescription


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)
