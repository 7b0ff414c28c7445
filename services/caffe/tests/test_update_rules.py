"""Update rules through Caffe's solvers against the reference, and resuming bit for bit."""

import numpy as np
import pytest
from oracle import RULES, assert_steps_equal, engine, single, training

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import BatchNorm, Dropout
from crosstrain_service.testing import ListLoop, cnn2, make_batches
from crosstrain_service.training import Rule, WeightDecay

SMALL = cnn2((1, 6, 6), 3, (2, 3), 4)
RATES = (0.02, 0.02, 0.002, 0.002, 0.01)


def batches(model=SMALL, rates=RATES):
    made = make_batches(model, len(rates), 4)
    return [type(b)(b.step, b.x, b.labels, rate, b.masks) for b, rate in zip(made, rates)]


@pytest.mark.parametrize("name", RULES)
def test_rule_with_a_changing_rate(name):
    settings = training(RULES[name], RATES, 4)
    assert_steps_equal(engine(SMALL, settings), SMALL, settings, batches(), 5e-6)


@pytest.mark.parametrize("name", ["momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("decay", [
    WeightDecay(0.1), WeightDecay(0.1, include_biases=True), WeightDecay(0.2, decoupled=True),
    WeightDecay(0.2, decoupled=True, include_biases=True),
])
def test_decay_with_clipping(name, decay):
    settings = training(RULES[name], RATES, 4, weight_decay=decay, clip_norm=0.05)
    assert_steps_equal(engine(SMALL, settings), SMALL, settings, batches(), 5e-6)


def test_decay_leaves_gammas_and_statistics_alone():
    model = single(BatchNorm("norm", 1e-3), input_shape=(2, 4, 4))
    settings = training(RULES["adam"], RATES, 4, weight_decay=WeightDecay(0.5))
    assert_steps_equal(engine(model, settings), model, settings, batches(model), 1e-5)


def test_epsilon_of_adam_is_beside_the_corrected_root():
    """With gradients near epsilon, Caffe's own form would move 31.6 times less at the first step."""
    rule = Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-8)
    model = single(input_shape=(1, 2, 2))
    settings = training(rule, (1e-3,) * 3, 4)
    tiny = [type(b)(b.step, b.x * np.float32(1e-7), b.labels, 1e-3, b.masks) for b in make_batches(model, 3, 4)]
    assert_steps_equal(engine(model, settings), model, settings, tiny, 2e-5)


@pytest.mark.parametrize("semantics", ["canonical", "native"])
@pytest.mark.parametrize("name", RULES)
def test_resume_is_bitwise(name, semantics):
    model = single(BatchNorm("norm", 1e-3), Dropout("drop", 0.4), input_shape=(2, 5, 4))
    settings = training(RULES[name], (0.01, 0.02) * 3, 4)
    steps = batches(model, settings.learning_rates)
    whole = engine(model, settings, semantics=semantics)
    whole_loop = ListLoop(steps)
    whole.train(whole_loop)
    first = engine(model, settings, semantics=semantics)
    first_loop = ListLoop(steps[:3])
    first.train(first_loop)
    state = {key: np.array(value) for key, value in first.state().items()}
    first.close()
    second = engine(model, settings, semantics=semantics)
    second.load_state(state)
    second_loop = ListLoop(steps[3:])
    second.train(second_loop)
    assert first_loop.losses + second_loop.losses == whole_loop.losses
    for part in ("parameters", "optimizer_state", "statistics"):
        found, expected = getattr(second, part)(), getattr(whole, part)()
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key].tobytes() == value.tobytes(), key


def test_state_of_rules_without_a_step_is_initial():
    for name, rule in RULES.items():
        state = engine(SMALL, training(rule)).optimizer_state()
        assert bool(state) == (name != "sgd")
        assert all((value == (rule.initial_accumulator or 0)).all() or name == "adagrad" for value in state.values())
        if name == "adagrad":
            assert all((value == np.float32(0.1)).all() for value in state.values())


def test_canonical_semantics_need_every_constant():
    with pytest.raises(CrosstrainError) as caught:
        engine(SMALL, training(Rule("adam", beta1=0.9, epsilon=1e-8)))
    assert caught.value.reason == "INVALID_FIELD" and "beta2" in caught.value.field
    model = single(BatchNorm("norm"), input_shape=(1, 2, 2))
    with pytest.raises(CrosstrainError) as caught:
        engine(model, training(RULES["sgd"]))
    assert "norm" in caught.value.field
