"""Runs the plans of all engines, some services at a time, and judges what they record."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc

from crosstrain.compare.freerun.traces import LossTrace
from tests.conformance.suite import Outcome
from tests.fault_suite.runs import faulty_service, probe
from tests.support.catalogue import EngineId
from tests.support.service import RunFailed, Service, ServiceUnavailable, features

from . import faults, scoring
from .nets import TRAINED, Sampled
from .plan import FaultTask, Plan, Task, fault_tasks, plan
from .strategies import ALONE, Strategy
from .trained import train

Say = Callable[[str], None]


@dataclass
class Results:
    """What came out. ``undeclared`` and ``refused``: (engine, strategy, case or "", reason); ``missing``: engines
    that cannot run here.
    """

    parity: list[scoring.Parity] = field(default_factory=list)
    scores: list[faults.Score] = field(default_factory=list)
    undeclared: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[tuple[str, str, str, str]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Execution:
    """Executes the plans; ``say`` is told what is going on."""

    def __init__(self, say: Say, chosen: tuple[Sampled, ...] = (), only: str = "") -> None:
        self._say = say
        self._chosen = chosen
        self._only = only
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self.results = Results()

    def run(self, engines: Iterable[EngineId], workers: int = 2) -> Results:
        """Runs all; a service that cannot run here is noted."""
        services: dict[str, list[EngineId]] = {}
        for engine in engines:
            services.setdefault(engine.service, []).append(engine)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._service, name, items) for name, items in services.items()]:
                done.result()
        self.results.seconds = time.monotonic() - self._begin
        return self.results

    def report(self, line: str) -> None:
        """Says a line with the time since the start."""
        self._say(f"[{time.monotonic() - self._begin:4.0f} s] {line}")

    def _service(self, name: str, engines: list[EngineId]) -> None:
        try:
            service = Service(name)
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
                found = plan(name, engine.name, features(description), self._chosen, self._only)
                with self._lock:
                    self.results.undeclared += [(str(engine), *item) for item in found.missing.items()]
                self._engine(service, engine, found)

    def run_faults(self, engines: Iterable[EngineId], chosen: tuple[faults.Fault, ...], workers: int = 2) -> Results:
        """Plants faults in every engine of which each rank is a process."""
        begin = time.monotonic()
        services: dict[str, list[EngineId]] = {}
        for engine in engines:
            services.setdefault(engine.service, []).append(engine)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._faulty, name, items, chosen) for name, items in services.items()]:
                done.result()
        self.results.seconds += time.monotonic() - begin
        return self.results

    def _faulty(self, name: str, engines: list[EngineId], chosen: tuple[faults.Fault, ...]) -> None:
        try:
            service = faulty_service(name)
        except ServiceUnavailable as reason:
            self._missing(engines, str(reason))
            return
        with service:
            descriptions = service.describe()
            for engine in engines:
                description = descriptions.get(engine.name)
                if description is None or description.unavailable_reason:
                    continue
                for task in fault_tasks(name, engine.name, features(description), chosen, self._only):
                    self._plant(service, engine, task)

    def _plant(self, service: Service, engine: EngineId, task: FaultTask) -> None:
        scores = []
        for group in task.groups():
            by_name = {fault.sent.name: fault for fault in group}
            cases = [fault.sent for fault in group]
            run_id = f"{_plain(engine.name)}-{_plain(task.strategy.title)}-{_plain(group[0].title)}"
            left = set(by_name)
            try:
                for name, outcome in probe(service, engine.name, cases, task.strategy.execution, run_id):
                    left.discard(name)
                    scores.append(faults.judge(by_name[name], str(engine), task.strategy.title, outcome))
            except grpc.RpcError as error:
                failed = Outcome(error=f"{error.code().name}: {error.details()}")
                scores += [faults.judge(by_name[name], str(engine), task.strategy.title, failed) for name in left]
        with self._lock:
            self.results.scores += scores
        good = sum(score.named for score in scores)
        self.report(f"{engine}, {task.strategy.title}: faults {good}/{len(scores)}")
        for score in scores:
            if not score.named:
                found = score.error or ", ".join(score.found) or "nothing"
                self.report(f"  {score.fault.title}: {'caught' if score.caught else 'not caught'}, named {found}")
                for line in score.details:
                    self.report(f"    {line}")

    def _missing(self, engines: list[EngineId], reason: str) -> None:
        with self._lock:
            self.results.missing.update((str(engine), reason) for engine in engines)
        self.report(f"{', '.join(map(str, engines))}: {reason}")

    def _engine(self, service: Service, engine: EngineId, found: Plan) -> None:
        if not found.tasks:
            self.report(f"{engine}: declares nothing to run on several ranks")
            return
        alone = {name: judged for name, (judged, _) in self._task(service, engine, found.alone).items()}
        traces: dict[str, LossTrace | str] = {}
        for task in found.tasks:
            with self._lock:
                self.results.refused += [(str(engine), task.strategy.title, *item) for item in task.refused.items()]
            judged = self._task(service, engine, task)
            parities = [scoring.compare(str(engine), task.strategy, case, alone[name], spread)
                        for name, (spread, case) in judged.items()]  # fmt: skip
            parities += self._trained(service, engine, task, traces, alone, judged)
            with self._lock:
                self.results.parity += parities
            good = sum(parity.holds for parity in parities)
            self.report(f"{engine}, {task.strategy.title}: parity {good}/{len(parities)}")
            for parity in parities:
                for line in parity.details:
                    self.report(f"  {parity.case}: {line}")

    def _trained(
        self,
        service: Service,
        engine: EngineId,
        task: Task,
        traces: dict[str, LossTrace | str],
        alone: dict[str, scoring.Judged],
        spread: dict[str, tuple[scoring.Judged, Sampled]],
    ) -> list[scoring.Parity]:
        """A real training run on these ranks and, the first time, on one."""
        case = next((case for case in task.cases if case.name == TRAINED), None)
        if case is None:
            return []
        strategies = [Strategy("1 rank", ALONE)] if TRAINED not in traces else []
        for strategy in [*strategies, task.strategy]:
            run_id = f"{_plain(engine.name)}-{_plain(strategy.title)}-train"
            try:
                found: LossTrace | str = train(service, engine.name, case, strategy.execution, run_id)
            except (grpc.RpcError, RunFailed) as error:
                found = str(error)
            traces[TRAINED if strategies and strategy is strategies[0] else strategy.title] = found
        return [scoring.compare_runs(str(engine), task.strategy, case, (alone[TRAINED], traces[TRAINED]),
                                     (spread[TRAINED][0], traces[task.strategy.title]))]  # fmt: skip

    def _task(self, service: Service, engine: EngineId, task: Task) -> dict[str, tuple[scoring.Judged, Sampled]]:
        cases = {case.name: case for case in task.cases}
        label = f"{engine} ({task.strategy.title})"
        run_id = f"{_plain(engine.name)}-{_plain(task.strategy.title)}"
        found = {}
        try:
            for name, outcome in probe(service, engine.name, task.cases, task.strategy.execution, run_id):
                found[name] = (scoring.judge(str(engine), label, cases[name], outcome), cases[name])
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            for name, case in cases.items():
                found.setdefault(name, (scoring.judge(str(engine), label, case, Outcome(error=reason)), case))
        return found


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)
