"""Engines with one wrong convention in the update, in float32, written without the table's own formulas."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from compare.problems import ADAM, MOMENTUM, NESTEROV, conv, problem, small

from crosstrain.compare.testing import Simulated, reference_update
from crosstrain_reference import cross_entropy_gradient
from crosstrain_service.model import Dense, Flatten, Relu
from crosstrain_service.training import Rule, Training, WeightDecay

Arrays = dict[str, np.ndarray]
F = np.float32


def updates(step: Any) -> type[Simulated]:
    """An engine with another update: ``step`` gets (training, parameters, gradients, state, rate, step from 0)."""

    class Changed(Simulated):
        def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step_: int) -> Any:
            return step(self.problem.training, params, gradients, state, rate, step_)

    return Changed


def asked(**changes: Any) -> type[Simulated]:
    """An engine that computes the canonical update of other settings."""

    def step(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
        return reference_update(dataclasses.replace(t, **changes), p, g, s, rate, number)

    return updates(step)


def ruled(**constants: Any) -> type[Simulated]:
    """An engine with other constants of its rule."""

    def step(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
        changed = dataclasses.replace(t, rule=dataclasses.replace(t.rule, **constants))
        return reference_update(changed, p, g, s, rate, number)

    return updates(step)


def decayed(factor: float = 1.0, **changes: Any) -> type[Simulated]:
    """An engine with other weight decay."""

    def step(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
        assert t.weight_decay is not None
        decay = dataclasses.replace(t.weight_decay, rate=t.weight_decay.rate * factor, **changes)
        return reference_update(dataclasses.replace(t, weight_decay=decay), p, g, s, rate, number)

    return updates(step)


def _penalty_clipped(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    assert t.weight_decay is not None
    whole = {n: v + F(t.weight_decay.rate) * p[n] if n.endswith(".weight") else v for n, v in g.items()}
    return reference_update(dataclasses.replace(t, weight_decay=None), p, whole, s, rate, number)


def _tensor_clipped(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    limit = t.clip_norm
    clipped = {n: v * F(limit / max(float(np.linalg.norm(v)), limit)) for n, v in g.items()}
    return reference_update(dataclasses.replace(t, clip_norm=0.0), p, clipped, s, rate, number)


def _norm_plus(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    norm = np.sqrt(sum(float(np.sum(np.square(v, dtype=np.float64))) for v in g.values()))
    clipped = {n: v * F(min(1.0, t.clip_norm / (norm + 1e-6))) for n, v in g.items()}
    return reference_update(dataclasses.replace(t, clip_norm=0.0), p, clipped, s, rate, number)


def _momentum(p: Arrays, s: Arrays, velocity: Any, moved: Any = None) -> Any:
    new = {n: velocity(n, s[n + ".velocity"]).astype(F) for n in p}
    moved = moved or (lambda n, v: v)
    return {n: p[n] - moved(n, new[n]) for n in p}, {n + ".velocity": v for n, v in new.items()}


def _buffer_of_gradients(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    before = t.learning_rates[max(number - 1, 0)]
    # The buffer b holds gradients; what is recorded is rate times b.
    return _momentum(p, s, lambda n, v: F(rate) * (F(0.9) * (v / F(before)) + g[n]))


def _dampened(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    share = F(1.0 if number == 0 else 0.1)
    return _momentum(p, s, lambda n, v: F(0.9) * v + F(rate) * (share * g[n]))


def _no_momentum(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    return {n: p[n] - F(rate) * g[n] for n in p}, {n: v.copy() for n, v in s.items()}


class LooksAhead(Simulated):
    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
        net, rows = self.network(), self.rows(step)
        moved = {n: (v - F(0.9) * state[n + ".velocity"]).astype(F) for n, v in params.items()}
        forward = net.forward(self.typed(self.problem.data.inputs(rows)), moved, {})
        outer = cross_entropy_gradient(forward.outputs["logits"], self.problem.data.labels[rows])
        there = net.backward(outer, forward, moved).params
        return _momentum(params, state, lambda n, v: F(0.9) * v + F(rate) * there[n])


def _root_of_sum(part: str) -> Any:
    def step(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
        _, state = reference_update(t, p, g, s, rate, number)
        return {n: p[n] - F(rate) * g[n] / np.sqrt(state[f"{n}.{part}"] + F(t.rule.epsilon or 0)) for n in p}, state

    return step


class StartsAtTenth(Simulated):
    def initial_state(self, params: Arrays) -> Arrays:
        return {name: np.full_like(value, 0.1) for name, value in super().initial_state(params).items()}


def _adam(p: Arrays, g: Arrays, s: Arrays, t: Training, change: Any) -> Any:
    """Adam's moments, and a step that ``change`` makes of (m, v, g, parameter's name)."""
    b1, b2 = t.rule.beta1 or 0.0, t.rule.beta2 or 0.0
    m = {n: F(b1) * s[n + ".m"] + F(1 - b1) * g[n] for n in p}
    v = {n: F(b2) * s[n + ".v"] + F(1 - b2) * g[n] * g[n] for n in p}
    state = {n + ".m": x for n, x in m.items()} | {n + ".v": x for n, x in v.items()}
    return {n: (p[n] - change(m[n], v[n], n)).astype(F) for n in p}, state


def _hat(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    scale = F(rate * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1)))
    return _adam(p, g, s, t, lambda m, v, n: scale * m / (np.sqrt(v) + F(1e-5)))


def _uncorrected(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    return _adam(p, g, s, t, lambda m, v, n: F(rate) * m / (np.sqrt(v) + F(1e-5)))


class Amsgrad(Simulated):
    def __init__(self, problem_: Any) -> None:
        super().__init__(problem_)
        self.highest: Arrays = {}

    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
        def change(m: np.ndarray, v: np.ndarray, n: str) -> np.ndarray:
            self.highest[n] = np.maximum(self.highest.get(n, v), v)
            first, second = F(1 - 0.9 ** (step + 1)), F(1 - 0.99 ** (step + 1))
            return F(rate) * (m / first) / (np.sqrt(self.highest[n] / second) + F(1e-5))

        return _adam(params, gradients, state, self.problem.training, change)


def _float32_differences(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    b1, b2, one = F(0.9), F(0.9999), F(1)
    m = {n: b1 * s[n + ".m"] + (one - b1) * g[n] for n in p}
    v = {n: b2 * s[n + ".v"] + (one - b2) * g[n] * g[n] for n in p}
    first, second = F(1 - 0.9 ** (number + 1)), F(1 - 0.9999 ** (number + 1))
    moved = {n: p[n] - F(rate) * (m[n] / first) / (np.sqrt(v[n] / second) + F(1e-5)) for n in p}
    return moved, {n + ".m": x for n, x in m.items()} | {n + ".v": x for n, x in v.items()}


def _plain(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    return {n: p[n] - F(rate) * g[n] for n in p}, {n: v.copy() for n, v in s.items()}


def _late(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    return reference_update(t, p, g, s, float(t.learning_rates[max(number - 1, 0)]), number)


def _third(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
    return reference_update(t, p, g, s, rate * 0.3, number)


L2 = WeightDecay(0.2)
ALL = WeightDecay(0.2, include_biases=True)
BESIDE = WeightDecay(0.2, decoupled=True)
RMS = Rule("rmsprop", rho=0.9, epsilon=1e-3)
ADAGRAD = Rule("adagrad", epsilon=1e-3, initial_accumulator=0.0)
DROP = [0.1, 0.1, 0.01, 0.01]
FADING = problem(
    (1, 4, 4), [conv("conv", 2, 3), Relu("relu")], rule=Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-5), rates=0.3,
    samples=4, batch=2, steps=6,
)  # fmt: skip
SMALL_NORM = problem(
    (1, 3, 4), [Flatten("flatten"), Dense("logits", 3, bias=False)], rule=MOMENTUM, scale=1e-4, clip_norm=1e-6)

ONE_WEIGHT = problem(
    (1, 1, 1), [Flatten("flatten"), Dense("logits", 3, bias=False)], pixels=np.full((1, 1, 1, 1), 0.5), batch=1,
    rule=Rule("adam", beta1=0.9, beta2=0.9999, epsilon=1e-5))  # fmt: skip

FAULTS: dict[str, tuple[Any, Any]] = {
    "decay.missing": (small(rule=MOMENTUM, weight_decay=L2), asked(weight_decay=None)),
    "decay.doubled": (small(rule=MOMENTUM, weight_decay=L2), decayed(2.0)),
    "decay.halved": (small(rule=MOMENTUM, weight_decay=L2), decayed(0.5)),
    "decay.decoupled": (small(rule=MOMENTUM, weight_decay=L2), decayed(decoupled=True)),
    "decay.coupled": (small(rule=MOMENTUM, weight_decay=BESIDE), decayed(decoupled=False)),
    "decay.biases_included": (small(rule=MOMENTUM, weight_decay=L2), decayed(include_biases=True)),
    "decay.biases_excluded": (small(rule=MOMENTUM, weight_decay=ALL), decayed(include_biases=False)),
    "decay.before_clip": (small(rule=MOMENTUM, weight_decay=L2, clip_norm=0.1), updates(_penalty_clipped)),
    "clip.per_tensor": (small(rule=MOMENTUM, clip_norm=0.05), updates(_tensor_clipped)),
    "clip.missing": (small(rule=MOMENTUM, clip_norm=0.05), asked(clip_norm=0.0)),
    "clip.norm_epsilon": (SMALL_NORM, updates(_norm_plus)),
    "momentum.rate_outside": (small(rule=MOMENTUM, rates=DROP), updates(_buffer_of_gradients)),
    "momentum.dampening": (small(rule=MOMENTUM), updates(_dampened)),
    "momentum.missing": (small(rule=MOMENTUM), updates(_no_momentum)),
    "momentum.nesterov": (small(rule=MOMENTUM), ruled(nesterov=True)),
    "momentum.no_nesterov": (small(rule=NESTEROV), ruled(nesterov=False)),
    "momentum.lookahead": (small(rule=NESTEROV), LooksAhead),
    "rmsprop.epsilon_inside": (small(rule=RMS), updates(_root_of_sum("mean_square"))),
    "adagrad.epsilon_inside": (small(rule=ADAGRAD), updates(_root_of_sum("accumulator"))),
    "adagrad.initial_accumulator": (small(rule=ADAGRAD), StartsAtTenth),
    "adam.epsilon_hat": (small(rule=ADAM, scale=0.01), updates(_hat)),
    "adam.beta1_zero": (small(rule=ADAM), ruled(beta1=0.0)),
    "adam.no_bias_correction": (small(rule=ADAM), updates(_uncorrected)),
    "adam.amsgrad": (FADING, Amsgrad),
    "optimizer.constants_in_float32": (ONE_WEIGHT, updates(_float32_differences)),
    "optimizer.other_constant": (small(rule=ADAM, scale=0.01), ruled(epsilon=1e-8)),
    "optimizer.other_rule": (small(rule=ADAM), updates(_plain)),
    "rate.previous_step": (small(rule=MOMENTUM, rates=DROP), updates(_late)),
    "rate.scaled": (small(rule=MOMENTUM), updates(_third)),
}
