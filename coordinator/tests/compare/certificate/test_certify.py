"""The certificate: order, structured worst elements, what cannot be compared, fast algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compare.problems import MOMENTUM, conv, pool, problem

from crosstrain.compare.certificate import NotComparable, Problem, certify
from crosstrain.compare.testing import Simulated
from crosstrain_reference import Convolution, Network
from crosstrain_service.model import Dense, Dropout, Flatten, Relu

CHAIN = problem(
    (1, 6, 6), [conv("conv", 2, 3, 1, 1), Relu("relu"), pool("pool", "max", 2, 2)], rule=MOMENTUM, test=True)
ORDER = [
    "input", "initial weights", "initial state", "continuity", "forward", "loss", "loss gradient", "backward",
    "gradient", "update", "state",
]  # fmt: skip


def records(of: Problem = CHAIN) -> dict[int, dict[str, np.ndarray]]:
    return Simulated(of).records()


def test_checks_come_in_the_order_of_the_computation() -> None:
    certificate = certify(CHAIN, records(), "rate-change")
    assert certificate.case == "rate-change" and certificate.holds and not certificate.failed
    assert certificate.first_failure is None
    for step in range(3):
        kinds = [check.kind for check in certificate.checks if check.step == step]
        ranks = [min(ORDER.index(kind), ORDER.index("backward")) if kind == "gradient" else ORDER.index(kind)
                 for kind in kinds]  # fmt: skip
        assert ranks == sorted(ranks)
        forward = [check.subject for check in certificate.checks if check.kind == "forward" and check.step == step]
        assert forward == ["conv", "relu", "pool", "flatten", "logits"]
        backward = [check.subject for check in certificate.checks if check.kind == "backward" and check.step == step]
        assert backward == ["logits", "flatten", "pool", "relu"]
    assert certificate.checks[-1].kind == "evaluation"
    worst = certificate.worst_by_kind()
    assert 0 < worst["forward"].ratio <= 1 and worst["input"].ratio == 0
    assert not certificate.identical


def test_identical_means_no_rounding_at_all() -> None:
    copies = problem((1, 1, 3), [Flatten("flatten"), Dense("logits", 3)], pixels=np.zeros((2, 1, 1, 3)), batch=2,
                     steps=1, rates=0.0, labels=[0, 1], initial={"logits.bias": 0.0})  # fmt: skip
    certificate = certify(copies, records(copies))
    rounded = {check.kind for check in certificate.checks if check.ratio}
    assert certificate.holds and rounded <= {"loss", "loss gradient", "backward", "gradient"}
    exact = dataclasses.replace(certificate, checks=tuple(item for item in certificate.checks if not item.ratio))
    assert exact.identical and certificate.identical == (not rounded)


def test_worst_element_is_structured() -> None:
    found = records()
    found[1]["output/relu"][2, 1, 3, 4] += np.float32(0.25)
    check = certify(CHAIN, found).first_failure
    assert check is not None
    assert (check.kind, check.subject, check.step, check.layer) == ("forward", "relu", 1, "relu")
    assert check.coordinates == (2, 1, 3, 4)
    assert check.found is not None and check.expected is not None
    assert check.found - check.expected == pytest.approx(0.25)
    assert (check.count, check.size, check.bound, check.ratio) == (1, 3 * 2 * 36, 0.0, np.inf)
    assert str(check).startswith("step 1, forward of relu: inf of the bound: 1 of 216 elements; at (2, 1, 3, 4) found")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_engine_that_computes_no_number_is_a_mismatch(value: float) -> None:
    class Broken(Convolution):
        def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
            y, trace = super().forward(x, params, *rest, **named)
            y[0, 0, 0, 0] = value
            return y, trace

    class Engine(Simulated):
        def network(self) -> Network:
            first, *rest = super().network().layers
            return Network([Broken(**vars(first)), *rest])

    with np.errstate(all="ignore"):
        found = Engine(CHAIN).records()
    certificate = certify(CHAIN, found)
    assert certificate.first_failure is not None
    assert (certificate.first_failure.kind, certificate.first_failure.subject) == ("forward", "conv")
    # What the next layer makes of it is no second failure.
    assert "relu" not in [check.subject for check in certificate.failed if check.kind == "forward"]


def test_ties_and_zeros_are_counted() -> None:
    blank = problem((1, 4, 4), [conv("conv", 1, 1), Relu("relu"), pool("pool", "max", 2, 2)], biases=False,
                    pixels=np.zeros((3, 1, 4, 4)), steps=1)  # fmt: skip
    found = records(blank)
    found[0]["output_grad/relu"] = found[0]["output_grad/pool"].repeat(2, axis=2).repeat(2, axis=3)
    certificate = certify(blank, found)
    # Every window has four equal maxima: three gradients too many each.
    assert (certificate.ties, certificate.zeros) == (3 * 4 * 3, 0)
    found = records(blank)
    found[0]["output_grad/conv"] = found[0]["output_grad/relu"] / np.float32(2)
    certificate = certify(blank, found)
    assert (certificate.ties, certificate.zeros) == (0, 3 * 4)


def test_fast_convolution_is_rounding_with_a_note() -> None:
    found = records()
    output = found[0]["output/conv"]
    largest = np.abs(output).max()
    moved = output + np.float32(3e-7) * largest * np.sign(np.random.RandomState(0).uniform(-1, 1, output.shape))
    found[0]["output/conv"] = moved.astype(np.float32)
    checks = certify(CHAIN, found).checks
    fast = next(check for check in checks if check.kind == "forward" and check.subject == "conv")
    assert fast.holds and fast.note.startswith("fast algorithm: ")
    found[0]["output/conv"] = (output + np.float32(1e-4) * largest).astype(np.float32)
    assert not next(check for check in certify(CHAIN, found).checks if check.kind == "forward").holds


def test_wrong_initial_state_is_seen() -> None:
    found = records()
    found[0]["state/conv.weight.velocity"] = found[0]["state/conv.weight.velocity"] + np.float32(0.5)
    kinds = [check.kind for check in certify(CHAIN, found).failed]
    assert kinds[0] == "initial state"


def _without(name: str, step: int = 0) -> Callable[[Any], None]:
    return lambda found: found[step].pop(name)


def _set(name: str, value: Any, step: int = 0) -> Callable[[Any], None]:
    return lambda found: found[step].update({name: value})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda found: found.clear(), "no step is recorded"),
        (lambda found: found.update({9: found[0]}), "step 9 is recorded, but the problem has 3"),
        (_without("input"), "step 0: input is not recorded"),
        (_without("output/relu", 1), "step 1: output/relu is not recorded"),
        (_without("output_grad/pool", 2), "step 2: output_grad/pool is not recorded"),
        (_without("gradient/conv.bias"), "step 0: gradient/conv.bias is not recorded"),
        (_without("state_after/conv.bias.velocity"), "step 0: state_after/conv.bias.velocity is not recorded"),
        (_set("parameter/conv.weight", np.zeros((2, 1, 5, 5), np.float32)), "shape (2, 1, 5, 5), the model has"),
        (_set("labels", np.zeros(3, np.float32)), "labels are float32 (3,), expected integers"),
        (_set("labels", np.zeros(7, np.int64)), "7 labels, but logits of 3 samples"),
        (_set("loss", np.array("x")), "loss does not hold numbers"),
        (_without("logits", -1), "step -1: logits is not recorded"),
    ],
)
def test_damaged_records_are_no_verdict_on_the_engine(damage: Callable[[Any], Any], reason: str) -> None:
    found = records()
    damage(found)
    with pytest.raises(NotComparable) as caught:
        certify(CHAIN, found)
    assert reason in caught.value.reason


def test_evaluation_without_test_data_cannot_be_compared() -> None:
    with pytest.raises(NotComparable, match="no test data"):
        certify(dataclasses.replace(CHAIN, test=None), records())


def test_missing_mask_cannot_be_compared() -> None:
    dropped = problem((1, 3, 4), [Flatten("flatten"), Dense("dense", 5), Dropout("drop", 0.5), Dense("logits", 3)])
    found = records(dropped)
    del found[0]["mask/drop"]
    with pytest.raises(NotComparable, match="mask/drop is not recorded"):
        certify(dropped, found)


def test_labels_out_of_range_are_a_mismatch_not_a_crash() -> None:
    found = records()
    found[0]["labels"] = found[0]["labels"] + 3
    failed = certify(CHAIN, found).failed
    assert (failed[0].kind, failed[0].subject) == ("input", "labels")


def test_rounding_of_deep_networks_excuses_no_wrong_update() -> None:
    """The worst case of a whole pass grows with every layer until it would allow any gradient at all."""
    deep = [layer for i in range(4) for layer in (conv(f"conv{i}", 16, 3, 1, 1), Relu(f"relu{i}"))]
    of = problem((1, 10, 10), deep, rule=MOMENTUM, samples=4, batch=4, steps=1, clip_norm=0.5)

    class Longer(Simulated):
        def update(self, params: Any, gradients: Any, state: Any, rate: float, step: int) -> Any:
            after, state_after = super().update(params, gradients, state, rate, step)
            moved = {name: params[name] + (after[name] - params[name]) * np.float32(1.03) for name in params}
            return moved, state_after

    assert certify(of, Simulated(of).records()).holds
    failed = {(check.kind, check.subject) for check in certify(of, Longer(of).records()).failed}
    assert {("update", f"conv{i}.weight") for i in range(4)} <= failed
