"""The shorter form of the suite: some engines and strategies hold, all faults in one engine are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from crosstrain_service.capabilities import EXACT, FEATURES, UNSUPPORTED, Feature
from tests.support.catalogue import choose

from . import table
from .execute import Execution, Results
from .faults import DIVERGED, FAULTS, TORCH, Fault, Score
from .nets import MIXED, TRAINED, Sampled, cases
from .plan import fault_tasks, plan
from .scoring import Parity
from .strategies import strategies

pytestmark = pytest.mark.timeout(600)

ENGINE = "torch"
_WHOLE = {TRAINED, f"{TRAINED}, trained", "adam", "one_sample"}
#: (engine, text that the strategy's title holds, cases that must have run) of the shorter form.
CHOSEN = (
    (ENGINE, "data 3, native", _WHOLE), (ENGINE, "tensor 2 x pipeline 2", {TRAINED}),
    (ENGINE, "native, mixed_bfloat16", {"adam"}), ("caffe", "data 3, mpi", _WHOLE),
)  # fmt: skip


def _small() -> tuple[Sampled, ...]:
    return tuple(case for case in cases() if not case.name.startswith("cnn"))


def _say(line: str) -> None:
    print(line, flush=True)


@pytest.mark.parametrize(("engine", "title", "wanted"), CHOSEN)
def test_ranks_compute_what_one_does(engine: str, title: str, wanted: set[str]) -> None:
    results = Execution(_say, _small(), title).run(choose(engine), 1)
    if results.missing:
        pytest.skip("; ".join(results.missing.values()))
    if not results.parity:
        pytest.skip("; ".join(reason for _, _, reason in results.undeclared))
    assert [(item.case, item.details) for item in results.parity if not item.holds] == []
    assert {item.case for item in results.parity} >= wanted


@pytest.fixture(scope="module")
def planted() -> Results:
    """All faults in one engine."""
    return Execution(_say, (), "data 2, native").run(choose(ENGINE), 1, parity=False, planted=FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_fault_is_named(fault: Fault, planted: Results) -> None:
    if planted.missing:
        pytest.skip("; ".join(planted.missing.values()))
    if not fault.fits(TORCH, ENGINE, 2):
        pytest.skip("planted in other engines")
    (score,) = [item for item in planted.scores if item.fault == fault]
    assert not score.error
    assert score.named, (score.found, score.details)


def _declared(*names: str) -> dict[str, Feature]:
    known = {name for name in FEATURES if not name.startswith(("parallel.", "execution.accumulation"))}
    return {name: Feature(EXACT if name in known or name in names else UNSUPPORTED, "not here") for name in FEATURES}


def test_only_what_is_declared_is_planned() -> None:
    found = plan("reference", "reference", _declared("parallel.data", "parallel.mpi"))
    assert [task.strategy.title for task in found.tasks] == ["data 2, mpi", "data 3, mpi", "data 4, mpi"]
    assert found.missing["tensor 2"] == "parallel.native (not here); parallel.tensor (not here)"
    assert set(found.tasks[0].refused) == {"batch_norm"}
    (alone,) = found.alone
    assert {case.name for case in alone.cases} == {case.name for case in cases()} - {"batch_norm"}
    assert [len(task.cases) for task in found.tasks] == [len(alone.cases), len(alone.cases), 3]
    assert [task.trained for task in found.tasks] == [True, True, False]
    assert len(found.tasks) + len(found.missing) == len(list(strategies()))


def test_faults_that_end_a_run_have_runs_of_their_own() -> None:
    names = ("parallel.data", "parallel.native", "parallel.mpi")
    task, again = fault_tasks("reference", "reference", _declared(*names), FAULTS)
    groups = list(task.groups())
    assert all(len(group) == 1 for group in groups[1:])
    assert [fault for group in groups for fault in group if fault.name == DIVERGED] == [
        fault for group in groups[1:] for fault in group]  # fmt: skip
    assert not any(fault.packages or fault.network == "norm" for fault in task.faults)
    assert set(again.faults) == {fault for fault in task.faults if fault.short} < set(task.faults)


def test_counting() -> None:
    """A mismatch, and a fault that is missed or named otherwise, lower the result."""
    good = Parity("a@1", "data 2", "cnn2", "ROUNDING", "IDENTICAL")
    named = Score(FAULTS[0], "a@1", "data 2, mpi", True, (FAULTS[0].name,))
    assert table.Summary(Results([good], [named])).passed
    bad = dataclasses.replace(good, pair="MISMATCH", details=("other|values",))
    other = dataclasses.replace(named, found=(FAULTS[0].name, "unknown"))
    missed = dataclasses.replace(named, caught=False, found=())
    results = Results([good, bad], [named, other, missed])
    assert (table.Summary(results).line, table.Summary(results).passed) == ("parity 1/2 faults 1/3", False)
    assert "other\\|values" in table.markdown(results)
    assert not table.Summary(Results()).passed


def test_results_can_be_joined(tmp_path: Path) -> None:
    """A part that runs again takes the place of the same engine's and strategy's results."""
    old = Parity("a@1", "data 2", "cnn2", "MISMATCH", "MISMATCH", 3.0, ("why",))
    kept = dataclasses.replace(old, strategy="data 3")
    score = Score(FAULTS[0], "a@1", "data 2, mpi", True, ("unknown",), details=("x",))
    path = tmp_path / "results.json"
    table.write_json(Results([old, kept], [score], [("b@1", "data 2", "not here")], missing={"c@1": "no"}), path)
    before = table.read_json(path)
    assert (before.parity, before.scores) == ([old, kept], [score])
    new = Parity("a@1", "data 2", "cnn2", "ROUNDING", "ROUNDING")
    found = table.joined(before, Results([new, Parity("c@1", "data 2", "cnn2", "ROUNDING", "ROUNDING")]))
    assert [item.strategy for item in found.parity if item.engine == "a@1"] == ["data 3", "data 2"]
    assert new in found.parity and old not in found.parity
    assert (found.scores, found.undeclared, found.missing) == ([score], [("b@1", "data 2", "not here")], {})


def test_precisions_are_compared_with_their_own() -> None:
    names = ("parallel.data", "parallel.native", "precision.mixed_bfloat16")
    declared = {name: feature for name, feature in _declared(*names).items() if name != "precision.mixed_float16"}
    found = plan("reference", "reference", declared, only="data 2, native")
    assert [(task.strategy.title, task.strategy.precision) for task in found.alone] == [
        ("1 rank", "float32"), ("1 rank, mixed_bfloat16", "mixed_bfloat16")]  # fmt: skip
    assert found.tasks[-1].strategy.title == "data 2, native, mixed_bfloat16"
    assert {case.name for case in found.tasks[-1].cases} == {case.name for case in found.alone[1].cases} == set(MIXED)
    assert found.tasks[-1].cases[0].problem("mixed_bfloat16").half == "bfloat16"
