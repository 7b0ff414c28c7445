"""Differences that people reported, made again in one engine or two: what the verdict says of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from crosstrain.compare.causes import explain
from crosstrain.compare.certificate import certify
from crosstrain.compare.freerun.traces import LossTrace
from crosstrain.compare.verdict import EngineEvidence
from crosstrain_service.model import Dense, Flatten
from crosstrain_service.training import Execution
from tests.conformance.cases.builder import Case, case
from tests.conformance.suite import Outcome
from tests.support.service import Service, ServiceUnavailable

from . import clean, nets
from .runs import engine_id, faulty_service, probe
from .verdicts import document, evidence

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def torch_service() -> Iterator[Service]:
    """PyTorch with the test engines."""
    try:
        with faulty_service("torch") as service:
            yield service
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))


def _outcome(service: Service, engine: str, item: Case, run_id: str, execution: Execution | None = None) -> Outcome:
    found = dict(probe(service, engine, [item], execution or Execution(intra_threads=1), run_id))
    assert not found[item.name].error
    return found[item.name]


def _evidence(label: str, engine: str, item: Case, outcome: Outcome) -> EngineEvidence:
    certificate = certify(item.problem(), outcome.records)
    return evidence(label, engine, certificate, outcome.records, item.training.batch_size)


def _planted(item: Case, plant: str) -> Case:
    return dataclasses.replace(item, model=dataclasses.replace(item.model, name=f"fault.{plant}"))


def test_number_of_threads_is_rounding(torch_service: Service) -> None:
    """Results that depend on the number of threads."""
    item = clean.batch_case(64)
    engines = []
    for threads in (1, 2):
        outcome = _outcome(torch_service, "torch", item, f"threads-{threads}", Execution(intra_threads=threads))
        engines.append(_evidence(f"torch ({threads})", "torch@2.13.0", item, outcome))
    (pair,) = document(engines)["pairs"]
    assert pair["verdict"] in ("IDENTICAL", "ROUNDING"), pair["sentence"]


def test_a_difference_beyond_a_strict_tolerance_is_rounding(torch_service: Service) -> None:
    """4.8e-6 between two frameworks, where somebody's tolerance was 1e-6."""
    random = np.random.RandomState(4)
    pixels = random.uniform(-30, 30, (8, 1, 16, 16)).astype(np.float32)
    item = case("large_values", "", (1, 16, 16), [Flatten("flatten"), Dense("dense1", 8), Dense("dense2", 3)],
                pixels=pixels, batch=8, steps=1)  # fmt: skip
    first = _outcome(torch_service, "torch", item, "strict")
    try:
        with Service(engine_id("caffe").service) as service:
            second = _outcome(service, "caffe", item, "strict")
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))
    apart = max(float(np.abs(first.records[0][name] - second.records[0][name]).max())
                for name in ("output/dense1", "output/dense2"))  # fmt: skip
    assert apart > 1e-6
    engines = [_evidence("torch", "torch@2.13.0", item, first), _evidence("caffe", "caffe@1.0.0", item, second)]
    (pair,) = document(engines)["pairs"]
    assert pair["verdict"] == "ROUNDING", pair["sentence"]


def test_repeating_an_engine_finds_that_it_is_not_deterministic(torch_service: Service) -> None:
    """The same seed, another result: seen by running the same engine again."""
    item = _planted(clean.batch_case(64), "layout.any_order")
    outcomes = [_outcome(torch_service, "torch", item, f"again-{number}") for number in range(3)]
    traces = [LossTrace.of({step: float(record["loss"]) for step, record in found.records.items()})
              for found in outcomes]  # fmt: skip
    known = _evidence("torch", "torch@2.13.0", item, outcomes[0])
    known = dataclasses.replace(known, trace=traces[0], repeats=tuple(traces[1:]))
    (engine,) = document([known])["engines"]
    assert engine["verdict"] != "MISMATCH"
    assert engine["repeats"]["runs"] == 3
    assert not engine["repeats"]["bitwise_equal"]
    assert 0 < engine["repeats"]["max_difference"] < 1e-3
    steady = dataclasses.replace(known, repeats=(traces[0], traces[0]))
    assert document([steady])["engines"][0]["repeats"]["bitwise_equal"]


def test_mean_of_the_means_of_unequal_shards_is_a_mismatch(torch_service: Service) -> None:
    """13 samples on two ranks: the smaller shard counts too much."""
    item = _shards()
    outcome = _outcome(torch_service, "torch", _planted(item, "loss.mean_of_means"), "shards")
    known = _evidence("torch", "torch@2.13.0", item, outcome)
    assert document([known])["engines"][0]["verdict"] == "MISMATCH"
    assert {check.kind for check in known.failed} == {"loss", "loss gradient"}
    problem = item.problem()
    causes = explain(problem, outcome.records, certify(problem, outcome.records))
    assert [cause.ids for cause in causes] == [("loss.mean_of_means",)]


def test_every_epoch_in_the_same_order_is_named(torch_service: Service) -> None:
    """No ``set_epoch``: the second epoch has the batches of the first."""
    item = nets.net("plain")
    outcome = _outcome(torch_service, "torch", _planted(item, "input.other_rows.every_epoch"), "epochs")
    problem = item.problem()
    certificate = certify(problem, outcome.records)
    (cause,) = explain(problem, outcome.records, certificate)
    assert (cause.ids, cause.step) == (("input.other_rows",), 3)
    assert "set_epoch" in cause.found_in


def test_equal_shards_are_no_mismatch(torch_service: Service) -> None:
    """The mean of means is the mean where the shards are equal."""
    item = _shards(batch=12)
    outcome = _outcome(torch_service, "torch", _planted(item, "loss.mean_of_means"), "equal-shards")
    assert not _evidence("torch", "torch@2.13.0", item, outcome).failed


def _shards(batch: int = 13) -> Case:
    return case("shards", "", (1, 3, 3), [Flatten("flatten"), Dense("dense1", 4)], classes=4, samples=batch,
                batch=batch, steps=2)  # fmt: skip
