"""Bounds of mixed precision: half-precision layers hold, wrong ones do not, and float32's bounds would fail both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from compare.problems import MOMENTUM, conv, pool, problem

from crosstrain.compare.causes import explain
from crosstrain.compare.certificate import Problem, certify
from crosstrain.compare.certificate.sizes import size
from crosstrain.compare.freerun.traces import LossTrace, difference
from crosstrain.compare.numerics.rounding import Bounded, half_of, mixed, unit_of
from crosstrain.compare.testing import Simulated
from crosstrain_reference import Backward, Forward, Network
from crosstrain_service.model import Relu

CHAIN = problem(
    (2, 8, 8), [conv("conv", 6, 3, 1, 1), Relu("relu"), pool("pool", "max", 2, 2)], rule=MOMENTUM, test=True,
    samples=12, batch=6,
)  # fmt: skip


def half_float(value: Any) -> np.ndarray:
    return np.asarray(value, np.float16).astype(np.float32)


def brain_float(value: Any) -> np.ndarray:
    """Rounded to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32).reshape(np.shape(value))


class HalfNetwork(Network):
    """Factors and results of every layer in half precision, sums in single precision."""

    rounded: Callable[[Any], np.ndarray] = staticmethod(half_float)

    def forward(self, x: Any, params: Any, masks: Any = None, train: bool = True, statistics: Any = None) -> Forward:
        narrow = {name: self.rounded(value) for name, value in params.items()}
        y, outputs, traces = self.rounded(x), {}, {}
        for layer in self.layers:
            y, traces[layer.name] = layer.forward(y, narrow, train, (masks or {}).get(layer.name))
            y = outputs[layer.name] = self.rounded(y)
        return Forward(x, outputs, traces)

    def backward(self, dy: np.ndarray, forward: Forward, params: Mapping[str, np.ndarray]) -> Backward:
        narrow = {name: self.rounded(value) for name, value in params.items()}
        outputs, gradients = {}, {}
        dy = self.rounded(dy)
        for layer in reversed(self.layers):
            outputs[layer.name] = dy
            dy, own = layer.backward(dy, forward.traces[layer.name], narrow)
            dy = self.rounded(dy)
            gradients.update({name: self.rounded(value) for name, value in own.items()})
        return Backward(outputs, dy, {name: gradients[name] for name in params})


def simulated(half: str, wrong: float = 1.0) -> tuple[Problem, dict[int, dict[str, np.ndarray]]]:
    of = dataclasses.replace(CHAIN, half=half)
    rounding = half_float if half == "float16" else brain_float

    class Engine(Simulated):
        def network(self) -> Network:
            found = HalfNetwork(super().network().layers)
            found.rounded = rounding  # type: ignore[method-assign]
            return found

        def gradients(self, gradients: Any) -> Any:
            return {name: wrong * value for name, value in gradients.items()}

    return of, Engine(of).records()


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_layers_hold_and_float32_bounds_would_not(half: str) -> None:
    of, records = simulated(half)
    certificate = certify(of, records)
    assert certificate.holds, [str(check) for check in certificate.failed]
    # The bounds are not so wide that they say nothing.
    worst = certificate.worst_by_kind()
    assert worst["forward"].ratio > 0.05
    assert worst["gradient"].ratio > 0.05
    strict = certify(dataclasses.replace(of, half=""), records)
    assert {"forward", "gradient", "backward"} <= {check.kind for check in strict.failed}


@pytest.mark.parametrize(("half", "wrong"), [("float16", 1.05), ("bfloat16", 1.2), ("bfloat16", 2.0)])
def test_a_wrong_gradient_is_still_found(half: str, wrong: float) -> None:
    certificate = certify(*simulated(half, wrong))
    assert {"gradient"} <= {check.kind for check in certificate.failed} <= {"gradient", "gradient, size"}


@pytest.mark.parametrize(("half", "moved"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_an_update_that_no_gradient_explains_is_found(half: str, moved: float) -> None:
    of, records = simulated(half)
    name = "parameter_after/conv.weight"
    records[2][name] = records[2][name] * np.float32(1 + moved)
    failed = certify(of, records).failed
    assert {(check.kind, check.subject) for check in failed} == {("update", "conv.weight")}


BFLOAT16 = 2.0**-8


def _gradient(count: int, loose: float) -> Bounded:
    """Values whose elements may be off by a multiple of themselves."""
    value = np.random.default_rng(1).normal(0, 1e-3, count)
    return Bounded(value, loose * np.abs(value))


def test_the_size_of_a_whole_tensor_is_known_better_than_its_elements() -> None:
    wanted = _gradient(20_000, 0.3)
    random = np.random.default_rng(2)
    noisy = wanted.value + wanted.error * random.uniform(-1, 1, 20_000)
    for holds, found in ((True, noisy), (True, wanted.value * (1 + BFLOAT16)), (False, 1.03 * wanted.value)):
        check = size("gradient, size", "w", 0, found, wanted, BFLOAT16)
        assert check is not None and check.holds is holds
        assert np.all(np.abs(found - wanted.value) <= wanted.error), "no element alone would show it"
    assert not check.holds and "1.03 times as large as expected" in check.detail
    # Ten elements do not average out what a hundred thousand do.
    few = size("gradient, size", "b", 0, 1.03 * wanted.value[:10], _gradient(20_000, 0.3)._replace(
        value=wanted.value[:10], error=wanted.error[:10]), BFLOAT16)  # fmt: skip
    assert few is not None and few.holds


def test_the_size_of_an_update_counts_from_where_it_starts() -> None:
    start = np.full(5000, 7.0)
    wanted = Bounded(start + 1e-3, np.full(5000, 2e-4))
    check = size("update, size", "w", 0, start + 1.1e-3, wanted, 0.0, start)
    assert check is not None and not check.holds and check.found == pytest.approx(1.1)
    assert size("update, size", "w", 0, start, Bounded(start, 1.0), BFLOAT16, start) is None, "nothing is to move"
    nan = size("update, size", "w", 0, start * np.nan, wanted, BFLOAT16, start)
    assert nan is None, "that the elements are wrong, other checks say"


def test_a_step_of_exactly_another_rate_is_no_rounding_of_the_gradient() -> None:
    of, records = simulated("bfloat16")
    for rate in (1.0001, 1.02):
        record = dict(records[1])
        for name in of.initial:
            before, after = record[f"state/{name}.velocity"], record[f"state_after/{name}.velocity"]
            kept = 0.9 * before.astype(np.float64)
            velocity = (kept + rate * (after - kept)).astype(np.float32)
            record[f"state_after/{name}.velocity"] = velocity
            record[f"parameter_after/{name}"] = record[f"parameter/{name}"] - velocity
        failed = certify(of, {1: record}).failed
        assert {check.kind for check in failed} >= {"update", "state"}
        assert failed[0].note == f"{rate:g} times the step of the recorded gradient, to float32"
        causes = explain(of, {1: record}, certify(of, {1: record}))
        assert rate < 1.01 or [cause.ids for cause in causes] == [("rate.scaled",)]


def test_an_update_that_overflowed_must_change_nothing() -> None:
    of, records = simulated("float16")
    record = records[1]
    record["skipped"] = np.asarray(1)
    failed = {check.kind for check in certify(of, {1: record}).failed}
    assert failed == {"update, left out", "state, left out"}
    for name in list(record):
        if name.startswith(("parameter/", "state/")):
            record[name.replace("/", "_after/", 1)] = record[name]
    certificate = certify(of, {1: record})
    assert certificate.holds
    assert {check.note for check in certificate.checks if check.kind == "update, left out"} == {
        "left out: a gradient overflowed float16"
    }
    # Nothing overflows in bfloat16: leaving an update out is a fault there.
    assert not certify(dataclasses.replace(of, half="bfloat16"), {1: record}).holds


def test_bounds_of_precisions() -> None:
    assert mixed("bfloat16").unit == 2.0**-24
    assert mixed("float16").floor > 4 * 2.0**-11
    assert mixed("float16", backward=True).tiny < mixed("float16").tiny
    with pytest.raises(ValueError, match="int8"):
        mixed("int8")
    assert unit_of("mixed_bfloat16") > unit_of("mixed_float16") > unit_of("float32") == unit_of("")
    assert unit_of("mixed_bfloat16", 64) == unit_of("mixed_bfloat16") / 8
    assert unit_of("float32", 64) == unit_of("float32") == unit_of("mixed_float16", 2**60)
    assert [half_of(name) for name in ("mixed_float16", "float16", "")] == ["float16", "", ""]


def test_losses_of_half_precision_depart_later() -> None:
    steps = np.arange(3)
    one = np.array([2.0, 1.5, 1.0])
    other = one * (1 + 1e-4)
    assert difference(LossTrace(steps, one), LossTrace(steps, other)).departed_step == 0
    unit = unit_of("mixed_bfloat16")
    assert difference(LossTrace(steps, one, unit=unit), LossTrace(steps, other)).departed_step == -1
    assert difference(LossTrace(steps, one, unit=unit), LossTrace(steps, 2 * one)).departed_step == 0
