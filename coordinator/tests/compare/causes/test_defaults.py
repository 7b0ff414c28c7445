"""Engines that use a framework's own constants, several at once, in place of the job's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare.causes.update_faults import ruled, updates
from compare.problems import problem, small

from crosstrain.compare.causes import defaults, explain
from crosstrain.compare.certificate import certify
from crosstrain.compare.testing import Simulated, optimizer_of
from crosstrain_service.model import Dense, Flatten
from crosstrain_service.training import Rule, Training, WeightDecay

Arrays = dict[str, np.ndarray]
F = np.float32
CONSTANT, FLOAT32 = "optimizer.other_constant", "optimizer.constants_in_float32"


class KerasAdagrad(Simulated):
    """Keras 3: the sum of squares starts at 0.1, epsilon is inside the root and 1e-7."""

    def initial_state(self, params: Arrays) -> Arrays:
        state = optimizer_of(self.problem.training, list(params)).init_state(params)
        return {name: np.full_like(value, 0.1) for name, value in state.items()}

    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
        return _adagrad(params, gradients, state, rate, 1e-7)


class LasagneAdagrad(Simulated):
    """Lasagne: from 0, epsilon is inside the root and 1e-6."""

    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> Any:
        return _adagrad(params, gradients, state, rate, 1e-6)


def _adagrad(params: Arrays, gradients: Arrays, state: Arrays, rate: float, epsilon: float) -> Any:
    total = {n: state[n + ".accumulator"] + gradients[n] * gradients[n] for n in params}
    after = {n: params[n] - F(rate) * gradients[n] / np.sqrt(total[n] + F(epsilon)) for n in params}
    return after, {n + ".accumulator": value for n, value in total.items()}


def _moments(b1: float, b2: float, short: bool, p: Arrays, g: Arrays, s: Arrays) -> tuple[Arrays, Arrays]:
    rest1, rest2 = (F(1) - F(b1), F(1) - F(b2)) if short else (F(1 - b1), F(1 - b2))
    m = {n: F(b1) * s[n + ".m"] + rest1 * g[n] for n in p}
    return m, {n: F(b2) * s[n + ".v"] + rest2 * g[n] * g[n] for n in p}


def _adam(b1: float, b2: float, epsilon: float, short: bool) -> type[Simulated]:
    """Adam with epsilon hat; ``short``: as in Caffe, of betas rounded to float32."""

    def step(t: Training, p: Arrays, g: Arrays, s: Arrays, rate: float, number: int) -> Any:
        m, v = _moments(b1, b2, short, p, g, s)
        first, second = (float(F(b1)), float(F(b2))) if short else (b1, b2)
        scale = F(rate * np.sqrt(1 - second ** (number + 1)) / (1 - first ** (number + 1)))
        after = {n: (p[n] - scale * m[n] / (np.sqrt(v[n]) + F(epsilon))).astype(F) for n in p}
        return after, {n + ".m": x for n, x in m.items()} | {n + ".v": x for n, x in v.items()}

    return updates(step)


JOB_ADAM = small(rule=Rule("adam", beta1=0.8, beta2=0.99, epsilon=1e-3), scale=0.01)
#: Each gradient is one product, so that float32 constants show, and small, so that epsilon shows.
ONE_WEIGHT = problem(
    (1, 1, 1), [Flatten("flatten"), Dense("logits", 3, bias=False)], pixels=np.full((1, 1, 1, 1), 1e-4), batch=1,
    rule=Rule("adam", beta1=0.9, beta2=0.9999, epsilon=1e-5), weight_decay=WeightDecay(0.2, decoupled=True),
)  # fmt: skip
#: Problem, engine, causes, and what the last of them says.
SETS: dict[str, tuple[Any, Any, set[tuple[str, ...]], str]] = {
    "PyTorch's RMSprop": (
        small(rule=Rule("rmsprop", rho=0.9, epsilon=1e-3), scale=0.01), ruled(rho=0.99, epsilon=1e-8),
        {(CONSTANT,)}, "Found: rho 0.99 for the job's 0.9 and epsilon 1e-08 for the job's 0.001; default of PyTorch, "
        "Caffe and Torch7."),
    "Keras 3's Adagrad": (
        small(rule=Rule("adagrad", epsilon=1e-3, initial_accumulator=0.0), scale=1e-4), KerasAdagrad,
        # Beside 0.1 the place of an epsilon of 1e-7 is below rounding.
        {("adagrad.initial_accumulator",), (CONSTANT,)},
        "Found: epsilon 1e-07 for the job's 0.001; default of Keras up to 2.10 and Keras since 2.11."),
    "Lasagne's Adagrad": (
        small(rule=Rule("adagrad", epsilon=1e-3, initial_accumulator=0.0), scale=0.01), LasagneAdagrad,
        {("adagrad.epsilon_inside", CONSTANT)}, "Found: epsilon 1e-06 for the job's 0.001; default of Lasagne."),
    "Keras's Adam": (
        JOB_ADAM, _adam(0.9, 0.999, 1e-7, short=False), {("adam.epsilon_hat", CONSTANT)},
        "Found: beta1 0.9 for the job's 0.8, beta2 0.999 for the job's 0.99 and epsilon 1e-07 for the job's 0.001; "
        "default of Keras up to 2.10, Keras since 2.11 and Keras 2.3 on Theano."),
    "Keras's Adam, beta1 given": (
        JOB_ADAM, _adam(0.8, 0.999, 1e-7, short=False), {("adam.epsilon_hat", CONSTANT)},
        "Found: beta2 0.999 for the job's 0.99 and epsilon 1e-07 for the job's 0.001; default of Keras up to 2.10, "
        "Keras since 2.11 and Keras 2.3 on Theano."),
    "Caffe's Adam": (
        JOB_ADAM, _adam(0.0, 0.999, 1e-8, short=True), {("adam.epsilon_hat", CONSTANT)},
        "Found: beta1 0 for the job's 0.8, beta2 0.999 for the job's 0.99 and epsilon 1e-08 for the job's 0.001; "
        "default of Caffe."),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_set_of_defaults_is_named_with_its_values(name: str) -> None:
    of, engine, ids, says = SETS[name]
    records = engine(of).records()
    certificate = certify(of, records)
    causes = explain(of, records, certificate)
    assert {cause.ids for cause in causes} == ids, [(cause.ids, cause.also, cause.where) for cause in causes]
    assert {check for cause in causes for check in cause.checks} == set(certificate.failed)
    assert all(cause.ratio <= 1 for cause in causes)
    assert [cause.note for cause in causes if CONSTANT in cause.ids] == [says]
    assert causes[-1].says.endswith(says)


def test_a_frameworks_own_adam_and_one_fault_more() -> None:
    """Caffe's form of Adam is two conventions; that decay beside the rule is left out is a third."""
    records = _adam(0.9, 0.9999, 1e-5, short=True)(ONE_WEIGHT).records()
    certificate = certify(ONE_WEIGHT, records)
    causes = explain(ONE_WEIGHT, records, certificate)
    assert [cause.ids for cause in causes] == [("adam.epsilon_hat", "decay.missing", FLOAT32)]
    assert set(causes[0].checks) == set(certificate.failed) and causes[0].ratio <= 1


def test_start_of_an_accumulator_is_named() -> None:
    of, engine, _, _ = SETS["Keras 3's Adagrad"]
    records = engine(of).records()
    cause = explain(of, records, certify(of, records))[0]
    assert cause.note == (
        "Found: initial accumulator 0.1 for the job's 0; default of Keras up to 2.10 and Keras since 2.11.")


def test_no_constant_is_named_that_does_not_show() -> None:
    of = small(rule=Rule("rmsprop", rho=0.9, epsilon=1e-12))
    records = ruled(rho=0.99, epsilon=1e-13)(of).records()
    causes = explain(of, records, certify(of, records))
    assert [cause.ids for cause in causes] == [(CONSTANT,)]
    assert causes[0].note.startswith("Found: rho 0.99 for the job's 0.9; default of PyTorch")


def test_set_that_no_framework_has_is_unknown() -> None:
    of = small(rule=Rule("rmsprop", rho=0.9, epsilon=1e-3), scale=0.01)
    records = ruled(rho=0.77, epsilon=3e-4)(of).records()
    causes = explain(of, records, certify(of, records))
    assert [cause.ids for cause in causes] == [()]


def test_texts_hold_plain_numbers() -> None:
    of, engine, _, _ = SETS["PyTorch's RMSprop"]
    records = engine(of).records()
    certificate = certify(of, records)
    texts = [str(check) + check.note for check in certificate.failed]
    texts += [cause.says for cause in explain(of, records, certificate)]
    assert any("found" in text for text in texts)
    assert not [text for text in texts if "np." in text or "float" in text]


def test_parts_of_a_set_hold_two_constants_or_more() -> None:
    asked = Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-8)
    found = list(defaults.sets(asked))
    assert {"beta2": 0.999, "epsilon": 1e-7} in found and {"beta1": 0.0, "beta2": 0.999} in found
    assert all(len(item) > 1 for item in found)
    assert len(found) == len({tuple(item.items()) for item in found})


def test_every_rule_has_defaults_of_every_framework() -> None:
    names = {item.framework for item in defaults.DEFAULTS}
    for rule in ("rmsprop", "adagrad", "adam", "adadelta"):
        of_rule = [item for item in defaults.DEFAULTS if item.rule.name == rule]
        assert {item.framework for item in of_rule} == names and len(of_rule) == len(names) == 7
        for item in of_rule:
            constants = [getattr(item.rule, name) for name in defaults.CONSTANTS[rule]]
            assert None not in constants
