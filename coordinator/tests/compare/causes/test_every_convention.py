"""Every convention of the table: an engine with it is a mismatch, and the convention is named exactly."""

from __future__ import annotations

from typing import Any

import pytest
from compare.causes import data_faults, layer_faults, rank_faults, update_faults

from crosstrain.compare.causes import CONVENTIONS, explain
from crosstrain.compare.certificate import certify
from crosstrain.compare.testing import Simulated

FAULTS: dict[str, tuple[Any, Any]] = {
    **layer_faults.FAULTS, **data_faults.FAULTS, **update_faults.FAULTS, **rank_faults.FAULTS,
}  # fmt: skip

#: Conventions that give the same numbers on the example's data and are therefore named along with it.
SAME = {
    "loss.summed": {"gradient.summed_over_ranks"},
    "input.scale_255": {"input.rescaled"},
    "precision.tf32": {"precision.float16"},
    "parallel.masks_of_one_rank": {"dropout.own_mask"},
}


def test_every_convention_has_an_example() -> None:
    assert sorted(FAULTS) == sorted(item.id for item in CONVENTIONS)


@pytest.mark.parametrize("name", FAULTS)
def test_convention_is_named(name: str) -> None:
    problem, engine = FAULTS[name]
    records = engine(problem).records()
    certificate = certify(problem, records)
    assert not certificate.holds
    causes = explain(problem, records, certificate)
    assert [cause.ids for cause in causes] == [(name,)], [(cause.ids, cause.also, cause.where) for cause in causes]
    assert set(causes[0].also) <= SAME.get(name, set())
    assert causes[0].ratio <= 1 < max(check.ratio for check in certificate.failed)
    covered = {*causes[0].checks, *causes[0].consequences}
    assert covered == set(certificate.failed)


@pytest.mark.parametrize("name", rank_faults.STEPS)
def test_weights_of_samples_are_named_from_the_update_alone(name: str) -> None:
    problem, engine = rank_faults.STEPS[name]
    records = engine(problem).records()
    certificate = certify(problem, records)
    assert {check.kind.split(",")[0] for check in certificate.failed} == {"update", "state"}
    causes = explain(problem, records, certificate)
    assert [cause.ids for cause in causes] == [(name,)], [(cause.ids, cause.also, cause.where) for cause in causes]


@pytest.mark.parametrize("name", FAULTS)
def test_engine_without_a_fault_holds(name: str) -> None:
    problem, _ = FAULTS[name]
    records = Simulated(problem).records()
    certificate = certify(problem, records)
    assert not [str(check) for check in certificate.failed]
    assert explain(problem, records, certificate) == ()
