"""Every update rule, with decay and clipping, against the reference while the learning rate changes."""

import numpy as np
import oracle
import pytest

from crosstrain_service.engine import Batch
from crosstrain_service.model import BatchNorm, Dense, Flatten, Model, Relu
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_service.training import Rule, WeightDecay

MODEL = Model("small", (1, 3, 4), 3, (
    Flatten("flatten"), Dense("dense1", 5, bias=False), BatchNorm("norm", 1e-2), Relu("relu"),
    Dense("dense2", 3))).validate()
RATES = (0.1, 0.1, 0.01, 0.03)


def batches(rates=RATES):
    made = make_batches(MODEL, len(rates), 6)
    return [Batch(b.step, b.x, b.labels, rate, b.masks) for b, rate in zip(made, rates)]


@pytest.mark.parametrize("name", oracle.RULES)
def test_rule_with_changing_rate(kind, name):
    settings = oracle.training(oracle.RULES[name], RATES)
    oracle.assert_like_reference(kind, MODEL, settings, batches(), 1e-11)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "rmsprop", "adam"])
def test_rule_in_float32(kind, name):
    settings = oracle.training(oracle.RULES[name], RATES)
    oracle.assert_like_reference(kind, MODEL, settings, batches(), 1e-5, "float32")


@pytest.mark.parametrize("decay", [
    WeightDecay(0.1), WeightDecay(0.2, include_biases=True), WeightDecay(0.1, decoupled=True),
    WeightDecay(0.3, decoupled=True, include_biases=True)], ids=["l2", "l2 all", "decoupled", "decoupled all"])
@pytest.mark.parametrize("name", ["momentum", "rmsprop", "adam", "adadelta"])
def test_decay_behind_clipping(kind, name, decay):
    settings = oracle.training(oracle.RULES[name], RATES, weight_decay=decay, clip_norm=0.05)
    oracle.assert_like_reference(kind, MODEL, settings, batches(), 1e-11)


def test_clipping_leaves_short_gradients(kind):
    settings = oracle.training(oracle.RULES["sgd"], RATES, clip_norm=1e3)
    oracle.assert_like_reference(kind, MODEL, settings, batches(), 1e-11)


def test_adams_first_step_in_float32(kind):
    """With a tiny epsilon every element moves by the learning rate; 1 - 0.999^1 in float32 would be off by 1e-5."""
    rule = Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-30)
    engine = oracle.build(kind, MODEL, oracle.training(rule))
    before = engine.parameters()["dense2.weight"]
    engine.train(ListLoop(batches((0.5,))))
    moved = np.abs(engine.parameters()["dense2.weight"] - before)
    np.testing.assert_allclose(moved[moved > 0], 0.5, rtol=2e-6)


@pytest.mark.parametrize("name", oracle.RULES)
@pytest.mark.parametrize("native", [False, True], ids=["canonical", "native"])
def test_state_before_the_first_step(kind, name, native):
    rule = oracle.RULES[name]
    engine = oracle.build(kind, MODEL, oracle.training(rule), semantics="native" if native else "canonical")
    found = engine.optimizer_state()
    slots = {"sgd": [], "momentum": ["velocity"], "nesterov": ["velocity"], "rmsprop": ["mean_square"],
             "adagrad": ["accumulator"], "adam": ["m", "v"], "adadelta": ["mean_square", "mean_update"]}[name]
    shapes = MODEL.parameter_shapes()
    assert set(found) == {"%s.%s" % (parameter, slot) for parameter in shapes for slot in slots}
    start = np.float32(rule.initial_accumulator or 0)
    for key, value in found.items():
        assert value.shape == shapes[key.rsplit(".", 1)[0]]
        assert (value == start).all(), key
