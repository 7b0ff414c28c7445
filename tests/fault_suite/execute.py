"""Runs the planned processes, two at a time, and judges what they record."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.service import Service, ServiceUnavailable

from . import clean, scoring
from .plan import Batch, Process
from .runs import faulty_service, probe

Say = Callable[[str], None]


@dataclass
class Results:
    """Everything that came out; ``missing``: services that cannot run here, with the reason."""

    scores: list[scoring.Score] = field(default_factory=list)
    runs: list[clean.CleanRun] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Execution:
    """Executes processes; ``say`` is told what is going on."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self.results = Results()

    def run(self, processes: list[Process], workers: int = 2) -> Results:
        """Runs all; a service that cannot run here is noted, any other failure is raised."""
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._process, process) for process in processes]:
                done.result()
        self.results.seconds = time.monotonic() - self._begin
        return self.results

    def _report(self, line: str) -> None:
        self._say(f"[{time.monotonic() - self._begin:4.0f} s] {line}")

    def _process(self, process: Process) -> None:
        begin = time.monotonic()
        try:
            if process.faulty:
                service = faulty_service(process.service)
            else:
                service = Service(process.service, variables=dict(process.variables))
        except ServiceUnavailable as reason:
            with self._lock:
                self.results.missing[process.service] = str(reason)
            self._report(f"{process.title}: {reason}")
            return
        with service:
            for number, batch in enumerate(process.batches):
                self._batch(service, process, batch, f"{batch.engine.name}-{number}")
        self._report(f"{process.title}: done in {time.monotonic() - begin:.0f} s")

    def _batch(self, service: Service, process: Process, batch: Batch, run_id: str) -> None:
        total, done = len(batch.cases), 0
        by_name = {fault.sent.name: fault for fault in batch.faults}
        cases = {case.name: case for case in batch.cases}
        last = time.monotonic()
        for name, outcome in probe(service, batch.engine.name, batch.cases, batch.execution, run_id):
            done += 1
            if batch.variation is None:
                score = scoring.judge(by_name[name], str(batch.engine), outcome)
                with self._lock:
                    self.results.scores.append(score)
            else:
                run = clean.judge(str(batch.engine), batch.variation, cases[name], outcome)
                with self._lock:
                    self.results.runs.append(run)
            if time.monotonic() - last > 10 or done == total:
                last = time.monotonic()
                label = batch.variation.title if batch.variation else "faults"
                self._report(f"{batch.engine}, {label}: {done} of {total}")
