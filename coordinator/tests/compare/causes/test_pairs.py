"""Two wrong conventions at once, unknown causes, and one cause in many places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare.causes.layer_faults import (
    RESPONSE,
    FlippedKernel,
    as_kind,
    layers,
    with_fields,
)
from compare.causes.update_faults import decayed, updates
from compare.problems import MOMENTUM, NESTEROV, conv, pool, problem, small

from crosstrain.compare.causes import explain
from crosstrain.compare.certificate import certify
from crosstrain_reference import LRN, Convolution, Pool
from crosstrain_service.model import Relu
from crosstrain_service.training import Rule, Training, WeightDecay

Arrays = dict[str, np.ndarray]
F = np.float32


def _plain_dampened(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    share = F(1.0 if step == 0 else 0.1)
    new = {n: F(0.9) * s[n + ".velocity"] + F(rate) * share * g[n] for n in p}
    return {n: p[n] - v for n, v in new.items()}, {n + ".velocity": v for n, v in new.items()}


PAIRS: dict[str, tuple[Any, Any, tuple[str, str]]] = {
    "twice the decay, and of biases": (
        small(rule=MOMENTUM, weight_decay=WeightDecay(0.2)), decayed(2.0, include_biases=True),
        ("decay.biases_included", "decay.doubled")),
    "plain and dampened": (
        small(rule=NESTEROV), updates(_plain_dampened), ("momentum.dampening", "momentum.no_nesterov")),
    "flipped and shifted": (
        problem((1, 6, 8), [conv("conv", 2, 3, 2, 0, 1)]),
        layers(Convolution, lambda x: as_kind(x, FlippedKernel, pad_begin=x.pad_end, pad_end=x.pad_begin)),
        ("convolution.kernel_flipped", "convolution.padding_shifted")),
    "alpha and k": (
        RESPONSE, layers(LRN, lambda x: with_fields(x, alpha=x.alpha / x.size, k=1.0)),
        ("lrn.alpha_over_n", "lrn.other_k")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_two_conventions_at_once(name: str) -> None:
    of, engine, wanted = PAIRS[name]
    records = engine(of).records()
    causes = explain(of, records, certify(of, records))
    assert {item for cause in causes for item in cause.ids} == set(wanted), [(c.ids, c.also, c.where) for c in causes]
    assert any(cause.ids == wanted for cause in causes)
    assert all(item.count(".") == 2 for cause in causes if cause.ids == wanted for item in cause.also)


class Bent(Pool):
    """A maximum that nobody's convention gives."""

    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        y, trace = super().forward(x, params, *rest, **named)
        return y + np.float32(0.01) * np.abs(y), trace


def test_unknown_cause_shows_its_worst_element() -> None:
    of = problem((1, 6, 6), [conv("conv", 2, 3, 1, 1), Relu("relu"), pool("pool", "max", 2, 2)])
    records = layers(Pool, lambda x: as_kind(x, Bent))(of).records()
    certificate = certify(of, records)
    causes = explain(of, records, certificate)
    assert [cause.unknown for cause in causes] == [True]
    cause = causes[0]
    assert cause.where == ("forward pool",) and len(cause.checks) == 3
    assert cause.worst.coordinates is not None and cause.ratio > 1
    assert cause.worst.found == pytest.approx(1.01 * (cause.worst.expected or 0), rel=1e-5)
    assert cause.title == "Unknown cause" and "No convention" in cause.says


def _strange(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    return {n: p[n] - F(rate) * np.sign(g[n]) * g[n] ** 2 for n in p}, {n: v.copy() for n, v in s.items()}


def test_unknown_rule_is_one_unknown_cause() -> None:
    of = small(rule=MOMENTUM)
    records = updates(_strange)(of).records()
    causes = explain(of, records, certify(of, records))
    assert [cause.ids for cause in causes] == [()]
    assert len(causes[0].where) == 8


@pytest.mark.parametrize("rule", [MOMENTUM, Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-5)])
def test_bounds_larger_than_gradients_explain_nothing(rule: Rule) -> None:
    """The bound of a whole pass grows with every layer; here it exceeds the gradients, and the norm to clip by."""

    def strange(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
        moved = {n: (p[n] * F(1.01) + F(0.003) * np.sign(p[n])).astype(F) for n in p}
        return moved, {n: v + F(1) for n, v in s.items()}

    deep = [layer for i in range(4) for layer in (conv(f"conv{i}", 16, 3, 1, 1), Relu(f"relu{i}"))]
    of = problem((1, 10, 10), deep, rule=rule, samples=4, batch=4, steps=1, clip_norm=0.5)
    records = updates(strange)(of).records()
    causes = explain(of, records, certify(of, records))
    assert [cause.ids for cause in causes] == [()], [(cause.ids, cause.ratio, cause.where) for cause in causes]


def test_two_faults_are_two_causes() -> None:
    of = small(rule=MOMENTUM, weight_decay=WeightDecay(0.2))

    class Both(layers(Convolution, lambda x: as_kind(x, FlippedKernel))):  # type: ignore[misc]
        update = decayed(2.0).update

    records = Both(of).records()
    causes = explain(of, records, certify(of, records))
    assert [cause.ids for cause in causes] == [("convolution.kernel_flipped",), ("decay.doubled",)]


def test_alternatives_that_change_nothing_are_never_named() -> None:
    symmetric = problem(
        (1, 6, 6), [conv("conv", 2, 3), Relu("relu")], steps=1, initial={"conv.weight": 0.5, "conv.bias": 0.0})

    class Doubled(Convolution):
        def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
            y, trace = super().forward(x, params, *rest, **named)
            return y * np.float32(1.25), trace

    records = layers(Convolution, lambda x: as_kind(x, Doubled))(symmetric).records()
    causes = explain(symmetric, records, certify(symmetric, records))
    # Flipping or transposing a constant kernel is no difference, so that neither explains anything.
    assert [cause.ids for cause in causes] == [()] and causes[0].where == ("forward conv",)
