"""Runs the cases on one engine: one probe for all cases of a precision, one refusal for each unsupported
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from crosstrain.compare.numerics.bounds import Arrays
from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service import convert
from crosstrain_service.capabilities import UNSUPPORTED, Feature
from tests.support import messages
from tests.support.service import Service, ServiceUnavailable, error_info, features

from .cases import CASES, EXECUTION, Case

PROBE_SECONDS = 1500.0
PRECISIONS = ("float32", "float64")


@dataclass
class Outcome:
    """What an engine made of a case: recorded steps, or an error."""

    records: dict[int, Arrays] = field(default_factory=dict)
    error: str = ""


def lacking(case: Case, precision: str, declared: dict[str, Feature]) -> set[str]:
    """Features that the case needs and the engine does not declare."""
    return {name for name in case.needs(precision) if name not in declared or declared[name].support == UNSUPPORTED}


def wanted(case: Case, precision: str, declared: dict[str, Feature]) -> bool:
    """Whether a case is to be run in a precision: float64 repeats some cases, or replaces float32."""
    if precision == "float32":
        return True
    has_float32 = "precision.float32" in declared and declared["precision.float32"].support != UNSUPPORTED
    return case.double or not has_float32


class Conformance:
    """An engine of a running service, with the outcome of every case it supports."""

    def __init__(self, service: Service, engine: str, semantics: str = "canonical") -> None:
        """Raises :class:`ServiceUnavailable` if the engine cannot run."""
        descriptions = service.describe()
        if engine not in descriptions:
            raise ServiceUnavailable(f"service {service.name} has no engine {engine}")
        if descriptions[engine].unavailable_reason:
            raise ServiceUnavailable(descriptions[engine].unavailable_reason)
        self.service = service
        self.engine = engine
        self.execution = dataclasses.replace(EXECUTION, semantics=semantics)
        self.declared = features(descriptions[engine])
        self._outcomes: dict[str, dict[str, Outcome]] = {}

    def outcome(self, case: Case, precision: str) -> Outcome:
        """Outcome of a supported case; the first call of a precision runs all its cases in one process."""
        if precision not in self._outcomes:
            chosen = [
                item
                for item in CASES
                if wanted(item, precision, self.declared) and not lacking(item, precision, self.declared)
            ]
            self._outcomes[precision] = self._probe(chosen, precision)
        return self._outcomes[precision][case.name]

    def _probe(self, cases: list[Case], precision: str) -> dict[str, Outcome]:
        run_id = f"conformance-{self.engine}-{precision}"
        self.service.training.Probe(self.request(run_id, cases, precision), timeout=60)
        outcomes = {case.name: Outcome() for case in cases}
        end = "the run ended without a record of the case"
        for event in self.service.watch(run_id, PROBE_SECONDS):
            if event.WhichOneof("event") == "probe_recorded":
                item = event.probe_recorded
                if item.HasField("error"):
                    outcomes[item.case_id].error = item.error.message
                else:
                    outcomes[item.case_id].records[item.step] = self.service.tensors(item.digest)
            elif event.WhichOneof("event") == "state_changed" and event.state_changed.HasField("error"):
                end = f"the run failed: {event.state_changed.error.message}"
        for case in cases:
            outcome = outcomes[case.name]
            expected = set(case.steps) | ({-1} if case.test is not None else set())
            missing = sorted(expected - set(outcome.records))
            if missing and not outcome.error:
                outcome.error = f"{end} (steps {missing})"
        return outcomes

    def request(self, run_id: str, cases: Iterable[Case], precision: str, **changes: Any) -> service_pb2.ProbeRequest:
        """The probe of some cases; ``changes`` are settings of the execution."""
        execution = dataclasses.replace(self.execution, precision=precision, **changes)
        spec = run_pb2.ProbeSpec(execution=messages.execution(execution))
        for case in cases:
            item = spec.cases.add(
                case_id=case.name,
                model=convert.model_message(case.model),
                train=messages.dataset(self.service, *case.data[:2], case.model, case.data.divisor),
                training=messages.training(self.service, case.training),
                initial_weights_digest=self.service.upload_tensors(case.initial),
                steps=case.steps,
            )
            if case.test is not None:
                test = messages.dataset(self.service, *case.test[:2], case.model, case.test.divisor)
                item.test.CopyFrom(test)
        return service_pb2.ProbeRequest(run_id=run_id, engine=self.engine, spec=spec)

    def refusal(self, case: Case, precision: str, **changes: Any) -> tuple[str, str, str]:
        """(status code, reason, message) of the answer to a case; ("OK", "", "") if it was accepted."""
        run_id = f"refused-{self.engine}-{case.name}-{precision}"
        request = self.request(run_id, [case], precision, **changes)
        try:
            self.service.training.Probe(request, timeout=60)
        except grpc.RpcError as error:
            info = error_info(error)
            return error.code().name, info.reason if info else "", error.details() or ""
        return "OK", "", ""
