"""Native semantics: what differs from the canonical function, and what does not."""

import numpy as np
import oracle
import pytest

from crosstrain_service.engine import Batch
from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Relu
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_service.training import Rule, WeightDecay

MODEL = Model("small", (1, 3, 4), 3, (
    Flatten("flatten"), Dense("dense1", 5), Relu("relu"), Dense("dense2", 3))).validate()
RATE = 0.1


def one_step(kind, rule, semantics="native", model=MODEL, **settings):
    """Parameters before, gradients, parameters and state after one step in float64."""
    engine = oracle.build(kind, model, oracle.training(rule, **settings), semantics=semantics, precision="float64")
    batch = oracle.cast(make_batches(model, 1, 6, learning_rate=RATE)[0], "float64")
    before, inside = engine.parameters(), engine.intermediates(batch)
    loop = ListLoop([batch])
    engine.train(loop)
    assert loop.losses[0] == pytest.approx(inside.loss, rel=1e-12)
    return before, inside.gradients, engine.parameters(), engine.optimizer_state()


def assert_moved(before, after, expected, rtol=1e-6):
    """Relative to the largest, since Keras takes some constants through float32."""
    for name, change in expected.items():
        error = np.abs((before[name] - after[name]) - change).max()
        assert error <= rtol * max(np.abs(change).max(), 1e-12), (name, error)


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov"])
def test_sgd_is_the_canonical_rule(kind, name):
    native = one_step(kind, oracle.RULES[name])
    canonical = one_step(kind, oracle.RULES[name], "canonical")
    for ours, theirs in zip(native, canonical):
        assert set(ours) == set(theirs)
        for key, value in ours.items():
            np.testing.assert_allclose(value, theirs[key], rtol=1e-6, atol=1e-12)


def test_unset_momentum_is_none(kind):
    before, g, after, state = one_step(kind, Rule("sgd"))
    assert state == {}
    assert_moved(before, after, {name: RATE * value for name, value in g.items()})


def test_rmsprop_has_epsilon_inside_the_root(kind):
    before, g, after, state = one_step(kind, Rule("rmsprop", epsilon=1e-2))
    squares = {name: 0.1 * value**2 for name, value in g.items()}
    for name, value in squares.items():
        np.testing.assert_allclose(state[name + ".mean_square"], value, rtol=1e-5, atol=1e-15)
    assert_moved(before, after, {n: RATE * g[n] / np.sqrt(s + 1e-2) for n, s in squares.items()})


def test_adagrad_starts_at_a_tenth(kind):
    before, g, after, state = one_step(kind, Rule("adagrad"))
    sums = {name: 0.1 + value**2 for name, value in g.items()}
    for name, value in sums.items():
        np.testing.assert_allclose(state[name + ".accumulator"], value, rtol=1e-6)
    assert_moved(before, after, {n: RATE * g[n] / np.sqrt(s + 1e-7) for n, s in sums.items()})


def test_adam_has_epsilon_hat(kind):
    before, g, after, state = one_step(kind, Rule("adam", epsilon=1e-3))
    m = {name: 0.1 * value for name, value in g.items()}
    v = {name: 0.001 * value**2 for name, value in g.items()}
    for name in g:
        np.testing.assert_allclose(state[name + ".m"], m[name], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(state[name + ".v"], v[name], rtol=1e-4, atol=1e-15)
    alpha = RATE * np.sqrt(0.001) / 0.1
    assert_moved(before, after, {n: alpha * m[n] / (np.sqrt(v[n]) + 1e-3) for n in g}, rtol=1e-4)


def test_l2_has_each_ones_own_meaning(kind):
    """Keras's L2(rate) adds 2 rate w; plain TensorFlow's l2_loss adds rate w. Neither shows in the reported loss."""
    before, g, after, _ = one_step(kind, Rule("sgd"), weight_decay=WeightDecay(0.3))
    factor = 0.6 if kind.name == "keras-tensorflow" else 0.3
    expected = {n: RATE * (g[n] + (factor * before[n] if n.endswith(".weight") else 0)) for n in g}
    assert_moved(before, after, expected)


def test_l2_counts_in_clipping(kind):
    before, g, after, _ = one_step(kind, Rule("sgd"), weight_decay=WeightDecay(0.3), clip_norm=0.1)
    factor = 0.6 if kind.name == "keras-tensorflow" else 0.3
    whole = {n: g[n] + (factor * before[n] if n.endswith(".weight") else 0) for n in g}
    norm = np.sqrt(sum((value**2).sum() for value in whole.values()))
    assert norm > 0.1
    assert_moved(before, after, {n: RATE * value * 0.1 / norm for n, value in whole.items()})


def test_decoupled_decay_spares_biases(kind):
    before, g, after, _ = one_step(kind, Rule("sgd"), weight_decay=WeightDecay(0.3, decoupled=True))
    expected = {n: RATE * (g[n] + (0.3 * before[n] if n.endswith(".weight") else 0)) for n in g}
    assert_moved(before, after, expected)


def test_dropout_is_drawn_by_the_framework(kind):
    model = Model("dropping", (1, 4, 4), 3, (
        Flatten("flatten"), Dense("dense1", 200), Dropout("drop", 0.25), Dense("dense2", 3))).validate()
    engine = oracle.build(kind, model, oracle.training(Rule("sgd")), semantics="native")
    batch = make_batches(model, 1, 8)[0]
    kept = []
    for _ in range(2):
        outputs = engine.intermediates(batch).outputs
        ratio = outputs["drop"] / outputs["dense1"]
        np.testing.assert_allclose(ratio[ratio != 0], 1 / 0.75, rtol=1e-5)
        assert 0.65 < (ratio != 0).mean() < 0.85
        kept.append(ratio != 0)
        engine.train(ListLoop([batch]))
    assert (kept[0] != kept[1]).any()
    assert (kept[0] != (batch.masks["drop"] > 0)).any()


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_batch_norm_averages_statistics(kind, momentum):
    model = Model("normal", (2, 4, 3), 3, (
        Convolution("conv", 3, (1, 1), (1, 1), (0, 0), (0, 0)), BatchNorm("norm", None, momentum), Flatten("flatten"),
        Dense("dense", 3))).validate()
    engine = oracle.build(kind, model, oracle.training(Rule("sgd")), semantics="native")
    batch = make_batches(model, 1, 5)[0]
    mean, variance = engine.batch_statistics(batch.x)["norm"]
    inside = engine.intermediates(batch).outputs
    shape = (1, 3, 1, 1)
    scaled = (inside["conv"] - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + 1e-3)
    gamma, beta = (oracle.parameters(model)["norm." + part].reshape(shape) for part in ("gamma", "beta"))
    np.testing.assert_allclose(inside["norm"], gamma * scaled + beta, atol=1e-5)
    engine.train(ListLoop([batch]))
    old = 0.99 if momentum is None else momentum
    found = engine.statistics()
    np.testing.assert_allclose(found["norm.running_mean"], (1 - old) * mean, rtol=1e-4, atol=1e-6)
    # Fused operations (all but Keras 3's layer) keep the unbiased variance.
    count = 5 * 4 * 3
    from tensorflow import keras

    biased = kind.name == "keras-tensorflow" and not keras.__version__.startswith("2.")
    kept = variance if biased else variance * count / (count - 1)
    np.testing.assert_allclose(found["norm.running_var"], old + (1 - old) * kept, rtol=1e-5)


def test_forward_of_the_first_step_is_canonical(kind):
    batch = make_batches(MODEL, 1, 6)[0]
    settings = oracle.training(oracle.RULES["momentum"])
    losses = []
    for semantics in ("canonical", "native"):
        engine = oracle.build(kind, MODEL, settings, semantics=semantics)
        losses.append(engine.intermediates(Batch(0, batch.x, batch.labels, RATE)).loss)
    assert losses[0] == losses[1]
