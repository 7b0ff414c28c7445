"""Reports about update rules, losses, precision and reporting, each as a small input: what must be said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare.cases.test_operations import first, judged, named
from compare.causes import data_faults
from compare.causes.layer_faults import as_kind, layers, short
from compare.causes.update_faults import FAULTS, updates
from compare.problems import MOMENTUM, NESTEROV, SGD, conv, problem, small

from crosstrain.compare.testing import Simulated, reference_update
from crosstrain_reference import Convolution
from crosstrain_service.model import Dense, Flatten, Relu
from crosstrain_service.training import Rule, Training, WeightDecay

Arrays = dict[str, np.ndarray]
F = np.float32


def linear(gradient: float, rule: Rule, **settings: Any) -> Any:
    """One weight per class and one pixel, chosen so that the gradients' size is about ``gradient``."""
    pixels = np.full((1, 1, 1, 1), gradient / (2 / 3))
    return problem((1, 1, 1), [Flatten("flatten"), Dense("logits", 3, bias=False)], pixels=pixels, labels=[0], batch=1,
                   rule=rule, initial={"logits.weight": 0.0}, **settings)  # fmt: skip


def test_14_momentum_is_equal_until_the_rate_drops() -> None:
    falling = small(rule=MOMENTUM, rates=[0.1] * 5 + [0.01] * 3, steps=8)
    certificate, causes = judged(falling, FAULTS["momentum.rate_outside"][1])
    assert first(certificate)[0] in ("update", "state") and first(certificate)[2] == 5
    assert named(causes) == [("momentum.rate_outside",)]


def _torch_nesterov(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    buffer = {n: F(0.9) * (s[n + ".velocity"] / F(rate)) + g[n] for n in p}
    moved = {n: p[n] - F(rate) * (g[n] + F(0.9) * buffer[n]) for n in p}
    return moved, {n + ".velocity": F(rate) * v for n, v in buffer.items()}


def test_15_nesterov_in_another_form_is_right() -> None:
    certificate, causes = judged(small(rule=NESTEROV, steps=6), updates(_torch_nesterov))
    assert certificate.holds and causes == ()


def test_16_dampening_shows_from_the_second_step() -> None:
    certificate, causes = judged(small(rule=MOMENTUM), FAULTS["momentum.dampening"][1])
    assert first(certificate)[2] == 1
    assert named(causes) == [("momentum.dampening",)]


def test_17_adam_epsilon_against_epsilon_hat() -> None:
    tiny = linear(1e-8, Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-8), rates=1e-3, steps=1)

    def hat(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
        _, state = reference_update(t, p, g, s, rate, step)
        scale = F(1e-3 * np.sqrt(1 - 0.999) / (1 - 0.9))
        return {n: p[n] - scale * state[n + ".m"] / (np.sqrt(state[n + ".v"]) + F(1e-8)) for n in p}, state

    certificate, causes = judged(tiny, updates(hat))
    assert named(causes) == [("adam.epsilon_hat",)]
    check = certificate.first_failure
    assert check is not None and check.found is not None and check.expected is not None
    gradient = 1e-8 if check.coordinates == (0, 0) else 0.5e-8
    # A step of g / (g + eps) against g / (g + eps / sqrt(1 - beta2)).
    assert abs(check.expected) == pytest.approx(1e-3 * gradient / (gradient + 1e-8), rel=1e-3)
    assert abs(check.found) == pytest.approx(1e-3 * gradient / (gradient + 1e-8 / np.sqrt(1e-3)), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "gradient"), [(1.0, 0.1), (1e-7, 1e-4)], ids=["18 large", "19 between versions"])
def test_18_19_rmsprop_epsilon_in_or_out(epsilon: float, gradient: float) -> None:
    of = linear(gradient, Rule("rmsprop", rho=0.9, epsilon=epsilon), rates=0.01)
    certificate, causes = judged(of, FAULTS["rmsprop.epsilon_inside"][1])
    assert {check.kind for check in certificate.failed} == {"update"}
    assert named(causes) == [("rmsprop.epsilon_inside",)]


def test_20_l2_differs_by_a_factor_of_two() -> None:
    _, causes = judged(small(weight_decay=WeightDecay(0.01)), FAULTS["decay.doubled"][1])
    assert named(causes) == [("decay.doubled",)]


def test_21_clipped_per_tensor_or_over_all() -> None:
    two = problem((1, 2, 2), [Flatten("flatten"), Dense("logits", 2)], classes=2, clip_norm=1.0, steps=1, batch=1)
    gradients = {"logits.weight": np.full((2, 4), 3 / np.sqrt(8)), "logits.bias": np.full(2, 4 / np.sqrt(2))}

    class Given(Simulated):
        def gradients(self, gradients_: Arrays) -> Arrays:
            return gradients

        def update(self, params: Arrays, gradients_: Arrays, state: Arrays, rate: float, step: int) -> Any:
            # Each of norm 1, where the common norm 5 would leave 0.6 and 0.8.
            factor = {"logits.weight": 1 / 3, "logits.bias": 1 / 4}
            return {n: p - F(rate) * (F(factor[n]) * gradients_[n]) for n, p in params.items()}, state

    _, causes = judged(two, Given)
    assert ("clip.per_tensor",) in named(causes)
    assert set(next(cause for cause in causes if cause.ids == ("clip.per_tensor",)).where) == {
        "update logits.weight", "update logits.bias"}  # fmt: skip


def test_22_epoch_loss_ignores_a_smaller_last_batch() -> None:
    three = problem((1, 2, 2), [Flatten("flatten"), Dense("logits", 3)], samples=3, batch=2, steps=2, scale=9.0)
    certificate, causes = judged(three, data_faults.MeanSoFar)
    # Gradients, weights and the loss of the recording pass agree: it is reporting alone.
    assert {(check.kind, check.subject) for check in certificate.failed} == {("loss", "training step")}
    assert named(causes) == [("loss.running_mean",)]


def test_23_loss_is_off_by_one_in_reporting_only() -> None:
    certificate, causes = judged(small(rule=SGD), data_faults.AfterUpdate)
    assert {(check.kind, check.subject) for check in certificate.failed} == {("loss", "training step")}
    assert named(causes) == [("loss.after_update",)]


def test_24_tf32_is_named_with_its_size() -> None:
    pixels = np.random.RandomState(3).uniform(0, 1, (6, 2, 6, 6))
    of = problem((2, 6, 6), [conv("conv", 4, 3), Relu("relu")], pixels=pixels)
    certificate, causes = judged(of, short(11))
    assert named(causes) == [("precision.tf32",)]
    check = certificate.first_failure
    assert check is not None and check.found is not None and check.expected is not None and check.bound is not None
    assert 1e-6 < abs(check.found - check.expected) < 5e-3


def _reversed_sums(kind: type) -> Any:
    class Backwards(Convolution):
        """Channels and kernel summed from the end: another order of the same sum."""

        def forward(self, x: np.ndarray, params: Any, *rest: Any, **named_: Any) -> Any:
            weight = params[self.name + ".weight"]
            turned = {**params, self.name + ".weight": np.ascontiguousarray(weight[:, ::-1])}
            y, trace = super().forward(np.ascontiguousarray(x[:, ::-1]), turned, *rest, **named_)
            return y, trace._replace(x=x)

    return layers(kind, lambda layer: as_kind(layer, Backwards))


def test_25_26_another_order_of_summation_is_rounding() -> None:
    deep = problem((8, 6, 6), [conv("conv1", 6, 3), Relu("relu"), conv("conv2", 4, 3)], rule=MOMENTUM, test=True)
    engine, plain = _reversed_sums(Convolution)(deep), Simulated(deep)
    own, other = engine.records(), plain.records()
    assert np.abs(own[2]["output/logits"] - other[2]["output/logits"]).max() > 0
    certificate, causes = judged(deep, _reversed_sums(Convolution))
    assert certificate.holds and causes == () and not certificate.identical


def test_28_float64_is_named() -> None:
    certificate, causes = judged(data_faults.SQUARE, data_faults.Double)
    assert certificate.first_failure is not None
    assert "found float64" in certificate.first_failure.detail
    assert named(causes) == [("input.other_dtype",)]


def test_54_loss_stuck_at_the_logarithm_of_the_smallest_number() -> None:
    far = np.array([-60.0, 60.0, 0.0]).reshape(1, 3, 1, 1)
    of = problem((3, 1, 1), [Flatten("flatten"), Dense("logits", 3)], pixels=far, labels=[0], batch=1, steps=1,
                 initial={"logits.weight": np.eye(3), "logits.bias": 0})  # fmt: skip
    certificate, causes = judged(of, data_faults.Saturated)
    check = certificate.first_failure
    assert check is not None and check.found == pytest.approx(87.3365, abs=1e-3)
    assert {item.kind for item in certificate.failed} == {"loss"}
    assert named(causes) == [("loss.saturated_log",)]
