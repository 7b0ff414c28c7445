"""The shorter form of the suite: some faults in three engines must be named exactly, some clean pairs stay silent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from crosstrain.compare.certificate import Certificate, Check
from crosstrain_service import capabilities
from tests.conformance.cases.builder import EXECUTION

from . import clean, nets, table
from .execute import Execution, Results
from .faults import CAFFE, FAULTS, ROWS, TF, TORCH, Fault
from .plan import clean_processes, fault_processes
from .runs import engine_id
from .scoring import Score
from .verdicts import evidence

pytestmark = pytest.mark.timeout(600)

#: (title, network, engine) of the faults of the shorter form.
CHOSEN = [
    ("input.scale_255", "plain", TF),
    ("input.labels_off_by_one", "labels_low", TORCH),
    ("convolution.kernel_flipped", "plain", TF),
    ("convolution.kernel_flipped", "plain", CAFFE),
    ("pool.ceil_for_floor", "odd_pool", CAFFE),
    ("pool.origin_shifted", "plain", TF),
    ("pool.ties_all", "ties", TORCH),
    ("relu.half_at_zero", "zeros", TORCH),
    ("dense.rows_permuted_hwc", "plain", CAFFE),
    ("batch_norm.unbiased_variance", "norm", TORCH),
    ("evaluation.dropout_on", "dropout", CAFFE),
    ("loss.clipped_probabilities", "extreme", TORCH),
    ("momentum.dampening", "momentum", TORCH),
    ("native", "momentum_drop", TORCH),
    ("native", "decay", CAFFE),
    ("adam.epsilon_hat", "adam", TF),
    ("clip.per_tensor", "clip", TORCH),
    ("rate.previous_step", "plain_rates", CAFFE),
]


def _chosen() -> list[Fault]:
    found = []
    for title, network, engine in CHOSEN:
        fault = next(item for item in FAULTS
                     if (item.title, item.network) == (title, network) and engine in item.engines)  # fmt: skip
        found.append(dataclasses.replace(fault, engines=(engine,)))
    return found


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    """What the shorter form gives."""
    processes = [*fault_processes(tuple(_chosen())), *clean_processes(short=True)]
    yield Execution(lambda line: print(line, flush=True)).run(processes)


@pytest.mark.parametrize("fault", _chosen(), ids=lambda fault: f"{fault.title}-{fault.network}-{fault.engines[0]}")
def test_fault_is_named(fault: Fault, results: Results) -> None:
    engine = engine_id(fault.engines[0])
    if engine.service in results.missing:
        pytest.skip(results.missing[engine.service])
    (score,) = [item for item in results.scores if item.fault == fault and item.engine == str(engine)]
    assert not score.error
    assert score.caught
    assert set(score.found) == fault.names, "\n".join(score.details)


def test_no_false_alarm(results: Results) -> None:
    found = clean.pairs(results.runs)
    assert [str(pair) for pair in found if pair.verdict not in ("IDENTICAL", "ROUNDING")] == []
    assert [run.error for run in results.runs if run.error] == []
    if not results.missing:
        assert len(found) >= 30


def test_every_row_of_the_semantics_has_a_fault() -> None:
    assert {fault.row for fault in FAULTS} == set(ROWS)
    assert len({(fault.title, fault.network) for fault in FAULTS}) >= 40
    assert len({engine_id(name).name for fault in FAULTS for name in fault.engines}) >= 3


def test_every_fault_and_clean_case_is_complete() -> None:
    for name in nets.names():
        case = nets.net(name)
        assert case.needs(execution=EXECUTION) <= set(capabilities.FEATURES) | {"probe"}
    names = [(fault.sent.name, engine) for fault in FAULTS for engine in fault.engines]
    assert len(names) == len(set(names))


def test_counting() -> None:
    """A missed fault, a wrong name, an alarm and a run that failed all lower the result."""
    fault = FAULTS[0]
    named = Score(fault, "torch@1", "MISMATCH", tuple(fault.names))
    wrong = Score(fault, "torch@2", "MISMATCH", (*fault.names, "unknown"))
    missed = Score(fault, "torch@3", "ROUNDING")
    runs = [_clean_run("a", 0.5), _clean_run("b", 0.5)]
    summary = table.Summary(Results([named, wrong, missed], runs))
    assert (summary.line, summary.passed) == ("caught 2/3 named 1/3 false-alarms 0/1", False)
    assert table.Summary(Results([named], runs)).passed
    alarm = table.Summary(Results([named], [runs[0], _clean_run("b", 1.5)]))
    assert (alarm.line, alarm.passed) == ("caught 1/1 named 1/1 false-alarms 1/1", False)
    failed = clean.CleanRun("c@1", "1 thread", "plain", "float32", error="failed")
    assert not table.Summary(Results([named], [*runs, failed])).passed


def _clean_run(engine: str, ratio: float) -> clean.CleanRun:
    certificate = Certificate("start", (Check("forward", "conv1", 0, ratio),))
    known = evidence(engine, f"{engine}@1", certificate, {0: {"loss": np.asarray(ratio)}}, 4)
    return clean.CleanRun(f"{engine}@1", "1 thread", "plain", "float32", known)
