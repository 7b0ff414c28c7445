"""The checks accept a correct engine and name the place of a wrong convention."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from crosstrain.compare.certificate.checks import Check, check_records
from crosstrain.compare.numerics.bounds import Arrays
from crosstrain_reference import LRN, BatchNorm, Convolution, Flatten, Network, Pool, Relu
from crosstrain_service.training import Training

from .cases import BY_NAME, CASES
from .simulated import Simulated, optimizer_of, reference_update


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.training.rule.name != "adadelta"], ids=lambda c: c.name
)
def test_reference_in_the_runs_type_holds(case: Any, dtype: Any) -> None:
    problem = dataclasses.replace(case.problem(), dtype=dtype, test=None)
    checks = list(check_records(problem, Simulated(problem).records()))
    assert not [str(check) for check in checks if not check.holds]


class FlippedKernel(Convolution):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        return super().forward(x, self._flipped(params), *rest, **named)

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        dx, gradients = super().backward(dy, trace, self._flipped(params))
        return dx, self._flipped(gradients)

    def _flipped(self, params: Any) -> Arrays:
        weight = self.name + ".weight"
        spatial = tuple(range(2, params[weight].ndim))
        return {**params, weight: np.ascontiguousarray(np.flip(params[weight], spatial))}


class HalfAtZero(Relu):
    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        return np.where(trace.x == 0, dy / 2, super().backward(dy, trace, params)[0]), {}


class ChannelsLast(Flatten):
    def forward(self, x: np.ndarray, params: Any, *rest: Any, **named: Any) -> Any:
        return super().forward(np.ascontiguousarray(np.moveaxis(x, 1, -1)), params, *rest, **named)

    def backward(self, dy: np.ndarray, trace: Any, params: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(super().backward(dy, trace, params)[0], -1, 1)), {}


def _replaced(layer: Any, kind: type, **changes: Any) -> Any:
    values = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}
    return kind(**{**values, **changes})


def _layers(kind: type, make: Any) -> Any:
    """A simulated engine with every layer of a kind replaced."""

    class Changed(Simulated):
        def network(self) -> Network:
            layers = super().network().layers
            return Network([make(layer) if type(layer) is kind else layer for layer in layers])

    return Changed


def _updates(update: Any) -> Any:
    """A simulated engine with another update."""

    class Changed(Simulated):
        def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
            return update(self.problem.training, params, gradients, state, rate, step)

    return Changed


class ClippedLoss(Simulated):
    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        return np.minimum(super().loss(logits, labels), np.float32(16.118))


class SummedLoss(Simulated):
    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return super().loss_gradient(logits, labels) * logits.dtype.type(len(labels))


class SameOrderEveryEpoch(Simulated):
    def rows(self, step: int) -> np.ndarray:
        training = self.problem.training
        per_epoch = -(-len(self.problem.data.labels) // training.batch_size)
        return super().rows(step % per_epoch)


def _rate_outside_velocity(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    before = training.learning_rates[max(step - 1, 0)]
    moved = {name: value * np.float32(rate / before) for name, value in s.items()}
    return reference_update(training, p, g, moved, rate, step)


def _epsilon_hat(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    rule = training.rule
    scaled = rule.epsilon / np.sqrt(1 - rule.beta2 ** (step + 1))
    changed = dataclasses.replace(training, rule=dataclasses.replace(rule, epsilon=float(scaled)))
    return reference_update(changed, p, g, s, rate, step)


def _inside_root(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    after, state = reference_update(training, p, g, s, rate, step)
    epsilon = np.float32(training.rule.epsilon)
    moved = {n: p[n] - np.float32(rate) * g[n] / np.sqrt(state[n + ".mean_square"] + epsilon) for n in after}
    return moved, state


def _decay(**changes: Any) -> Any:
    def update(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
        decay = training.weight_decay
        assert decay is not None
        factor = changes.get("factor", 1.0)
        rest = {name: value for name, value in changes.items() if name != "factor"}
        changed = dataclasses.replace(decay, rate=decay.rate * factor, **rest)
        return reference_update(dataclasses.replace(training, weight_decay=changed), p, g, s, rate, step)

    return update


def _clip_per_tensor(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    limit = training.clip_norm
    clipped = {n: v * np.float32(limit / max(float(np.linalg.norm(v)), limit)) for n, v in g.items()}
    return reference_update(dataclasses.replace(training, clip_norm=0.0), p, clipped, s, rate, step)


def _clip_with_constant(training: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, step: int) -> Any:
    norm = np.sqrt(sum(float(np.sum(np.square(v, dtype=np.float64))) for v in g.values()))
    factor = np.float32(min(1.0, training.clip_norm / (norm + 1e-6)))
    clipped = {n: v * factor for n, v in g.items()}
    return reference_update(dataclasses.replace(training, clip_norm=0.0), p, clipped, s, rate, step)


FAULTS = {
    "kernel flipped": (
        "conv_delta",
        _layers(Convolution, lambda x: _replaced(x, FlippedKernel)),
        "forward",
        "conv",
    ),
    "kernel flipped, 1d": (
        "conv1d",
        _layers(Convolution, lambda x: _replaced(x, FlippedKernel)),
        "forward",
        "conv1",
    ),
    "padding after before": (
        "conv_asymmetric_padding",
        _layers(Convolution, lambda x: _replaced(x, Convolution, pad_begin=x.pad_end, pad_end=x.pad_begin)),
        "forward",
        "conv1",
    ),
    "half at zero": ("relu_at_zero", _layers(Relu, lambda x: HalfAtZero(x.name)), "backward", "relu"),
    "channels last": (
        "flatten_order",
        _layers(Flatten, lambda x: ChannelsLast(x.name)),
        "forward",
        "flatten",
    ),
    "padding counted": (
        "average_pool_exclude",
        _layers(Pool, lambda x: _replaced(x, Pool, count_include_pad=True)),
        "forward",
        "pool",
    ),
    "alpha of the mean": (
        "lrn",
        _layers(LRN, lambda x: _replaced(x, LRN, alpha=x.alpha / x.size)),
        "forward",
        "lrn",
    ),
    "alpha of the mean within a channel": (
        "lrn_within_channel",
        _layers(LRN, lambda x: _replaced(x, LRN, alpha=x.alpha / x.size**2)),
        "forward",
        "lrn",
    ),
    "eps of batch norm": (
        "batch_norm_dense",
        _layers(BatchNorm, lambda x: BatchNorm(x.name, 1e-3)),
        "forward",
        "norm",
    ),
    "loss clipped": ("loss_large_logits", ClippedLoss, "loss", "training step"),
    "gradient summed": ("conv_same", SummedLoss, "loss gradient", "logits"),
    "same order": ("sgd", SameOrderEveryEpoch, "input", "batch"),
    "rate outside velocity": (
        "momentum_rate_drop",
        _updates(_rate_outside_velocity),
        "update",
        "conv.weight",
    ),
    "eps hat": ("adam_tiny_gradients", _updates(_epsilon_hat), "update", "logits.weight"),
    "eps inside the root": ("rmsprop_large_epsilon", _updates(_inside_root), "update", "conv.weight"),
    "eps inside, small": ("rmsprop", _updates(_inside_root), "update", "conv.weight"),
    "twice lambda": ("l2_weights", _updates(_decay(factor=2.0)), "update", "conv.weight"),
    "biases decayed": ("l2_weights", _updates(_decay(include_biases=True)), "update", "conv.bias"),
    "gamma decayed": ("l2_batch_norm", _updates(_decay(include_biases=True)), "update", "conv.bias"),
    "decoupled": ("l2_weights", _updates(_decay(decoupled=True)), "state", "conv.weight.velocity"),
    "clip per tensor": ("clip_active", _updates(_clip_per_tensor), "update", "conv.weight"),
    "constant in the norm": (
        "clip_small_norm",
        _updates(_clip_with_constant),
        "state",
        "logits.weight.velocity",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_convention_is_placed(fault: str) -> None:
    name, engine, kind, subject = FAULTS[fault]
    problem = dataclasses.replace(BY_NAME[name].problem(), test=None)
    failed = [check for check in check_records(problem, engine(problem).records()) if not check.holds]
    assert failed, "not seen"
    places = {(check.kind, check.subject) for check in failed}
    assert failed[0].kind == kind, failed[0]
    assert (kind, subject) in places, places


def test_ties_are_counted() -> None:
    problem = dataclasses.replace(BY_NAME["max_pool_ties"].problem(), test=None)
    records = Simulated(problem).records()
    gradient = records[0]["output_grad/relu"]
    gradient[...] = records[0]["output_grad/pool"].repeat(2, axis=2).repeat(2, axis=3)
    failed = next(check for check in check_records(problem, records) if not check.holds)
    assert (failed.kind, failed.subject) == ("backward", "pool")
    assert "at ties or exact zeros" in failed.detail


def test_missing_and_not_finite_values_fail() -> None:
    problem = dataclasses.replace(BY_NAME["conv_same"].problem(), test=None)
    records = Simulated(problem).records()
    records[1]["gradient/conv1.weight"] = np.full_like(records[1]["gradient/conv1.weight"], np.nan)
    del records[1]["output_grad/relu2"]
    failed = [check for check in check_records(problem, records) if not check.holds]
    assert {(check.kind, check.subject) for check in failed} >= {
        ("gradient", "conv1.weight"),
        ("backward", "flatten"),
    }
    assert all(isinstance(check, Check) and check.step == 1 for check in failed)


def test_a_unit_in_the_last_place_is_seen_in_copies_only() -> None:
    problem = dataclasses.replace(BY_NAME["max_pool_floor"].problem(), test=None)
    records = Simulated(problem).records()
    for layer in ("conv", "pool"):
        value = records[0][f"output/{layer}"]
        value[...] = np.nextafter(value, np.float32(9))
    kinds = [(check.kind, check.subject) for check in check_records(problem, records) if not check.holds]
    assert ("forward", "conv") not in kinds
    assert optimizer_of(problem.training, []).rule == "sgd"
