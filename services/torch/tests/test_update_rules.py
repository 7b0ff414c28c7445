"""Every update rule through the real training path against the reference."""

import dataclasses

import numpy as np
import oracle
import pytest
import torch

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.probe import record_steps
from crosstrain_service.testing import ListLoop, cnn2, make_batches
from crosstrain_service.training import Rule, WeightDecay
from crosstrain_torch.optimizer import UpdateRule

MODEL = cnn2((1, 7, 6), 4, (3, 4), 6, dropout=0.25)
# Warm-up from 0, a constant stretch, changes up and down, and 0 in the middle.
RATES = (0.0, 0.05, 0.05, 0.2, 0.01, 0.0, 0.1, 0.1)
PREPARATIONS = {
    "plain": {},
    "clipped": {"clip_norm": 0.05},
    "hardly clipped": {"clip_norm": 1e3},
    "l2": {"weight_decay": WeightDecay(0.1)},
    "l2 with biases, clipped": {"weight_decay": WeightDecay(0.1, include_biases=True), "clip_norm": 0.05},
    "decoupled": {"weight_decay": WeightDecay(0.5, decoupled=True)},
    "decoupled, clipped": {"weight_decay": WeightDecay(0.5, decoupled=True), "clip_norm": 0.05},
}


def batches(rates=RATES):
    drawn = make_batches(MODEL, len(rates), 5)
    found = [dataclasses.replace(batch, learning_rate=rate) for batch, rate in zip(drawn, rates)]
    last = found[-1]
    masks = {name: mask[:2] for name, mask in last.masks.items()}
    found[-1] = dataclasses.replace(last, x=last.x[:2].copy(), labels=last.labels[:2].copy(), masks=masks)
    return found


@pytest.mark.parametrize("preparation", PREPARATIONS)
@pytest.mark.parametrize("rule", oracle.RULES)
def test_rule_in_float64(rule, preparation):
    settings = oracle.training(oracle.RULES[rule], RATES, **PREPARATIONS[preparation])
    built = oracle.engine(MODEL, settings, precision="float64")
    oracle.assert_steps_equal(built, MODEL, settings, batches(), 1e-11)


@pytest.mark.parametrize("rule", oracle.RULES)
def test_rule_in_float32(rule):
    settings = oracle.training(oracle.RULES[rule], RATES, **PREPARATIONS["l2 with biases, clipped"])
    oracle.assert_steps_equal(oracle.engine(MODEL, settings), MODEL, settings, batches(), 2e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_rescaling_matters(nesterov):
    """PyTorch's own momentum differs from the canonical one exactly from the first change of the rate on."""
    settings = oracle.training(Rule("sgd", momentum=0.9, nesterov=nesterov))
    runs = {}
    for semantics in ("canonical", "native"):
        # Without dropout, which native semantics would draw on their own.
        model = cnn2((1, 7, 6), 4, (3, 4), 6)
        built = oracle.engine(model, settings, semantics=semantics)
        steps = [dataclasses.replace(b, masks={}) for b in batches((0.05, 0.05, 0.1, 0.1))]
        runs[semantics] = [record for _, record in record_steps(built, steps, range(4))]
    name = "parameter_after/dense2.weight"
    differences = [np.abs(a[name] - b[name]).max() for a, b in zip(runs["canonical"], runs["native"])]
    assert differences[:2] == [0, 0]
    assert differences[2] > 1e-5


def test_state_is_zero_or_initial_before_the_first_step():
    names = {
        "sgd": set(),
        "momentum": {"velocity"},
        "nesterov": {"velocity"},
        "rmsprop": {"mean_square"},
        "adagrad": {"accumulator"},
        "adam": {"m", "v"},
        "adadelta": {"mean_square", "mean_update"},
    }
    shapes = MODEL.parameter_shapes()
    for rule, suffixes in names.items():
        state = oracle.engine(MODEL, oracle.training(oracle.RULES[rule])).optimizer_state()
        assert set(state) == {"%s.%s" % (name, suffix) for name in shapes for suffix in suffixes}
        for name, value in state.items():
            assert value.shape == shapes[name.rsplit(".", 1)[0]]
            assert np.all(value == np.float32(0.1 if name.endswith("accumulator") else 0))


def test_velocity_holds_the_learning_rate_in_native_semantics_too():
    model = cnn2((1, 7, 6), 4, (3, 4), 6)
    built = oracle.engine(model, oracle.training(oracle.RULES["momentum"]), semantics="native")
    batch = make_batches(model, 1, 5)[0]
    gradients = built.intermediates(batch).gradients
    built.train(ListLoop([batch]))
    for name, value in built.optimizer_state().items():
        expected = 0.05 * gradients[name[: -len(".velocity")]]
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-9)


def quadratic(settings, native, gradient):
    """One parameter pair after one step with the given gradients and rate 0.1."""
    named = {
        "a.weight": torch.nn.Parameter(torch.ones(2)),
        "a.bias": torch.nn.Parameter(torch.ones(2)),
    }
    rule = UpdateRule(named, settings, native)
    for parameter in named.values():
        parameter.grad = torch.full((2,), gradient)
    rule.step(0.1)
    return {name: parameter.detach().numpy() for name, parameter in named.items()}


def test_native_decay_covers_biases():
    settings = oracle.training(Rule("sgd"), weight_decay=WeightDecay(0.5))
    canonical, native = (quadratic(settings, native, 0.0) for native in (False, True))
    np.testing.assert_allclose(canonical["a.bias"], 1.0)
    np.testing.assert_allclose(canonical["a.weight"], 0.95)
    np.testing.assert_allclose(native["a.bias"], 0.95)


def test_native_clipping_adds_to_the_norm():
    settings = oracle.training(Rule("sgd"), clip_norm=1e-6)
    # The norm is 2e-6, so the factors are 1/2 and 1e-6 / (2e-6 + 1e-6).
    gradients = []
    for native in (False, True):
        parameter = torch.nn.Parameter(torch.ones(4))
        rule = UpdateRule({"a.weight": parameter}, settings, native)
        parameter.grad = torch.full((4,), 1e-6)
        rule.step(0.1)
        gradients.append(parameter.grad[0].item())
    np.testing.assert_allclose(gradients, [1e-6 / 2, 1e-6 / 3], rtol=1e-5)


def test_native_constants_are_pytorchs():
    defaults = {
        "sgd": {"momentum": 0.0, "nesterov": False},
        "rmsprop": {"alpha": 0.99, "eps": 1e-8},
        "adagrad": {"eps": 1e-10, "initial_accumulator_value": 0},
        "adam": {"betas": (0.9, 0.999), "eps": 1e-8},
        "adadelta": {"rho": 0.9, "eps": 1e-6},
    }
    for name, expected in defaults.items():
        named = {"a.weight": torch.nn.Parameter(torch.ones(2))}
        rule = UpdateRule(named, oracle.training(Rule(name)), native=True)
        for key, value in expected.items():
            assert rule.optimizer.defaults[key] == value, (name, key)


@pytest.mark.parametrize(
    "rule, missing",
    [
        (Rule("adam", beta1=0.9, epsilon=1e-8), "beta2"),
        (Rule("rmsprop", rho=0.9), "epsilon"),
        (Rule("adagrad", epsilon=1e-8), "initial_accumulator"),
        (Rule("adadelta", epsilon=1e-8), "rho"),
    ],
)
def test_canonical_semantics_refuse_a_missing_constant(rule, missing):
    with pytest.raises(CrosstrainError, match=missing) as caught:
        oracle.engine(MODEL, oracle.training(rule))
    assert caught.value.reason == "INVALID_FIELD"
