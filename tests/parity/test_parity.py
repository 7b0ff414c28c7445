"""The reference jobs over gRPC in every engine of the catalogue.

Losses of all steps and every parameter after the first must be within 1e-6 of the float64 reference. The
only excuse is a decision flip inside the rounding bound at an earlier step, which is shown (see ``flips``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from crosstrain.compare.certificate.checks import Problem, check_records, group
from crosstrain.compare.freerun.flips import Flip, first_flip
from crosstrain.compare.numerics.bounds import network_of
from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_reference import Network
from crosstrain_service import convert
from crosstrain_service.training import Execution
from tests.conftest import Services
from tests.support import jobs, messages
from tests.support.catalogue import EngineId, choose
from tests.support.service import Service

TOLERANCE = 1e-6
STEPS = {"cnn2": 10, "cnn3": 10}
SECONDS = 900.0
pytestmark = pytest.mark.timeout(SECONDS + 60)
EXECUTION = messages.execution(Execution(intra_threads=1))
#: What the summary of the run shows.
MEASURED: list[str] = []


class Expected(NamedTuple):
    """The reference's run of a job."""

    job: jobs.Job
    losses: list[float]
    first: jobs.ReferenceStep


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        found = choose(metafunc.config.getoption("--engines"))
        metafunc.parametrize("engine", found, ids=str, scope="session")


@functools.cache
def reference(name: str) -> Expected:
    """The reference's run of a job; pytest asks for it again with every engine."""
    work = jobs.job(name, STEPS[name])
    losses, first = [], None
    for item in jobs.reference_run(work):
        losses.append(item.loss)
        first = first or item
    assert first is not None
    return Expected(work, losses, first)


@pytest.fixture(scope="session", params=list(STEPS))
def expected(request: pytest.FixtureRequest) -> Expected:
    return reference(request.param)


@pytest.fixture(scope="session")
def first_steps(services: Services) -> Callable[[EngineId, str], jobs.Arrays]:
    """Records of the first step of both jobs, made in one process per engine."""
    digests: dict[EngineId, dict[tuple[str, int], str]] = {}

    def get(engine: EngineId, name: str) -> jobs.Arrays:
        service = services.get(engine.service)
        if engine not in digests:
            both = [(jobs.job(item, 1), [0]) for item in STEPS]
            digests[engine] = probe(service, engine, both, "first")
        return service.tensors(digests[engine][name, 0])

    return get


def test_reference_gives_the_listed_losses(expected: Expected) -> None:
    if expected.job.model.name == "cnn2":
        assert expected.losses == pytest.approx(jobs.CNN2_LOSSES[: len(expected.losses)], abs=1e-11)
    else:
        assert len(expected.losses) == expected.job.steps
        assert np.isfinite(expected.losses).all()


def test_losses(
    engine: EngineId,
    expected: Expected,
    services: Services,
    first_steps: Callable[[EngineId, str], jobs.Arrays],
) -> None:
    service = services.get(engine.service)
    losses = train(service, engine, expected.job)
    differences = np.abs(np.array(losses) - expected.losses)
    name = expected.job.model.name
    shown = " ".join(f"{value:.1e}" for value in differences)
    MEASURED.append(f"{str(engine):<24} {name} losses of steps 0 to {len(losses) - 1}: {shown}")
    beyond = np.flatnonzero(~(differences <= TOLERANCE))
    if not len(beyond):
        return
    flip = find_flip(service, engine, expected, int(beyond[0]), first_steps)
    MEASURED.append(f"{str(engine):<24} {name} first flip: {flip}")
    assert flip is not None, f"losses differ at step {beyond[0]} without a flip before it: {shown}"
    assert flip.is_rounding, f"a decision differs by more than rounding: {flip}"


def test_parameters_and_certificate_of_the_first_step(
    engine: EngineId, expected: Expected, first_steps: Callable[[EngineId, str], jobs.Arrays]
) -> None:
    work = jobs.job(expected.job.model.name, 1)
    record = first_steps(engine, work.model.name)
    after = group(record, "parameter_after")
    assert set(after) == set(expected.first.parameters)
    worst = {name: float(np.abs(after[name] - value).max()) for name, value in expected.first.parameters.items()}
    name = max(worst, key=worst.__getitem__)
    MEASURED.append(f"{str(engine):<24} {work.model.name} parameters after step 0: {worst[name]:.1e} ({name})")
    assert worst[name] <= TOLERANCE
    problem = Problem(work.model, work.training, work.data, work.initial, record["input"].dtype)
    checks = list(check_records(problem, {0: record}))
    failures = [str(check) for check in checks if not check.holds]
    assert not failures, "\n".join(failures[:5])
    top = max(checks, key=lambda check: check.ratio)
    MEASURED.append(
        f"{str(engine):<24} {work.model.name} certificate of step 0: {len(checks)} checks, "
        f"worst {top.ratio:.2f} of the bound ({top.kind} of {top.subject})"
    )


def train(service: Service, engine: EngineId, work: jobs.Job) -> list[float]:
    """Losses of a training run."""
    run_id = f"parity-{engine.name}-{work.model.name}"
    spec = run_pb2.TrainSpec(
        model=convert.model_message(work.model),
        train=messages.dataset(service, *work.data[:2], work.model, work.data.divisor),
        training=messages.training(service, work.training),
        execution=EXECUTION,
        initial_weights_digest=service.upload_tensors(work.initial),
    )
    service.training.Train(service_pb2.TrainRequest(run_id=run_id, engine=engine.name, spec=spec), timeout=60)
    losses: dict[int, float] = {}
    for event in service.finish(run_id, SECONDS):
        if event.WhichOneof("event") == "steps":
            losses.update(enumerate(event.steps.loss, event.steps.first_step))
    assert sorted(losses) == list(range(work.steps)), "not one record for every step"
    return [losses[step] for step in range(work.steps)]


def probe(
    service: Service, engine: EngineId, work: list[tuple[jobs.Job, list[int]]], label: str
) -> dict[tuple[str, int], str]:
    """Digests of the records of some steps of some jobs, by name of the network and step."""
    run_id = f"parity-probe-{engine.name}-{label}"
    spec = run_pb2.ProbeSpec(execution=EXECUTION)
    for item, steps in work:
        spec.cases.add(
            case_id=item.model.name,
            model=convert.model_message(item.model),
            train=messages.dataset(service, *item.data[:2], item.model, item.data.divisor),
            training=messages.training(service, item.training),
            initial_weights_digest=service.upload_tensors(item.initial),
            steps=steps,
        )
    service.training.Probe(service_pb2.ProbeRequest(run_id=run_id, engine=engine.name, spec=spec), timeout=60)
    digests = {}
    for event in service.finish(run_id, SECONDS):
        if event.WhichOneof("event") == "probe_recorded":
            found = event.probe_recorded
            assert not found.HasField("error"), found.error.message
            digests[found.case_id, found.step] = found.digest
    return digests


def find_flip(
    service: Service,
    engine: EngineId,
    expected: Expected,
    steps: int,
    first_steps: Callable[[EngineId, str], jobs.Arrays],
) -> Flip | None:
    """The first flip of the engine's free run against the reference's, in the first ``steps`` steps."""
    name = expected.job.model.name
    network = network_of(expected.job.model)
    flip = compare_decisions(network, expected.first, first_steps(engine, name))
    if flip is not None or steps == 1:
        return flip
    work = jobs.job(name, steps)
    digests = probe(service, engine, [(work, list(range(1, steps)))], name)
    for item in jobs.reference_run(work):
        if item.step:
            flip = compare_decisions(network, item, service.tensors(digests[name, item.step]))
            if flip is not None:
                return flip
    return None


def compare_decisions(network: Network, item: jobs.ReferenceStep, record: jobs.Arrays) -> Flip | None:
    """The first layer whose decisions differ at a step."""
    return first_flip(
        network,
        item.step,
        record["input"],
        group(record, "parameter"),
        group(record, "output"),
        item.forward.outputs,
    )
