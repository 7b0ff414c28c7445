"""Runs many cases of one engine in one probe and gives the problems and records back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from crosstrain_protos.v1 import errors_pb2, run_pb2, service_pb2
from crosstrain_service import convert
from crosstrain_service.training import Execution
from tests.conformance.cases.builder import Case
from tests.conformance.suite import Outcome
from tests.support import catalogue, messages
from tests.support.catalogue import EngineId, choose
from tests.support.service import Service

PROBE_SECONDS = 900.0
_ENGINES = Path(__file__).parent / "engines"

Progress = Callable[[str], None]


def engine_id(name: str) -> EngineId:
    """The engine of a name or name@version; the first of several versions."""
    return choose(name)[0]


def faulty_service(service: str) -> Service:
    """A service whose engines plant the fault that a case's model is named after."""
    package = catalogue.catalogue().service(service).package
    return Service(
        service,
        options=("--package", "crosstrain_faulty"),
        folders=(_ENGINES,),
        variables={"CROSSTRAIN_FAULTY_PACKAGE": package},
    )


def probe(
    service: Service,
    engine: str,
    cases: Iterable[Case],
    execution: Execution,
    run_id: str,
    progress: Progress | None = None,
) -> Iterator[tuple[str, Outcome]]:
    """Outcomes by the cases' names, each as soon as the next case has begun; all in one process."""
    cases = list(cases)
    service.training.Probe(_request(service, engine, cases, execution, run_id), timeout=120)
    outcomes = {case.name: Outcome() for case in cases}
    order = [case.name for case in cases]
    wanted = {case.name: len(case.steps) for case in cases}
    at = 0
    for event in service.watch(run_id, PROBE_SECONDS):
        if event.WhichOneof("event") == "probe_recorded":
            item = event.probe_recorded
            if item.case_id in order[:at]:
                continue  # the run has begun again
            while order[at] != item.case_id:
                yield order[at], outcomes.pop(order[at])
                at += 1
                if progress and at % 10 == 0:
                    progress(f"{at} of {len(order)} cases")
            if item.HasField("error"):
                outcomes[item.case_id].error = item.error.message
            else:
                outcomes[item.case_id].records[item.step] = service.tensors(item.digest)
        elif event.WhichOneof("event") == "rank_lost":
            outcomes[order[at]].error = f"rank {event.rank_lost.rank} was lost: {event.rank_lost.reason}"
        elif event.WhichOneof("event") == "state_changed" and event.state_changed.HasField("error"):
            for name in order[at:]:
                if len(outcomes[name].records) < wanted[name]:
                    outcomes[name].error = f"the run failed: {_said(event.state_changed.error)}"
    for name in order[at:]:
        yield name, outcomes[name]


def _said(error: errors_pb2.Error) -> str:
    reason = errors_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")
    return f"{reason}: {error.message}"


def _request(
    service: Service, engine: str, cases: list[Case], execution: Execution, run_id: str
) -> service_pb2.ProbeRequest:
    spec = run_pb2.ProbeSpec(execution=messages.execution(execution))
    for case in cases:
        item = spec.cases.add(
            case_id=case.name,
            model=convert.model_message(case.model),
            train=messages.dataset(service, *case.data[:2], case.model, case.data.divisor),
            training=messages.training(service, case.training),
            initial_weights_digest=service.upload_tensors(case.initial),
            steps=case.steps,
        )
        if case.test is not None:
            item.test.CopyFrom(messages.dataset(service, *case.test[:2], case.model, case.test.divisor))
    return service_pb2.ProbeRequest(run_id=run_id, engine=engine, spec=spec)
