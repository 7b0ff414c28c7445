"""Stopping and going on in a new engine is the same as not stopping, bit for bit."""

import numpy as np
import oracle
import pytest

from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_service.training import Rule

MODEL = Model("resumed", (2, 6, 5), 3, (
    Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1)), BatchNorm("norm", 1e-3), Relu("relu"),
    Pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0)), Dropout("drop", 0.4), Flatten("flatten"),
    Dense("dense", 3))).validate()
DEFAULTS = {name: Rule(name) for name in ("sgd", "rmsprop", "adagrad", "adam", "adadelta")}


def run(kind, rule, semantics, splits):
    settings = oracle.training(rule)
    batches = make_batches(MODEL, 6, 5)
    engine = oracle.build(kind, MODEL, settings, semantics=semantics)
    losses = []
    for start, stop in splits:
        if start:
            state = engine.state()
            engine = kind(MODEL, settings, oracle.Execution(semantics=semantics))
            engine.load_state(state)
        loop = ListLoop(batches[start:stop])
        engine.train(loop)
        losses += loop.losses
    return losses, engine


def check(kind, rule, semantics):
    whole, first = run(kind, rule, semantics, [(0, 6)])
    parts, second = run(kind, rule, semantics, [(0, 3), (3, 6)])
    assert len(whole) == 6 and whole == parts
    for ours, theirs in ((first.state(), second.state()), (first.parameters(), second.parameters()),
                         (first.optimizer_state(), second.optimizer_state())):
        assert set(ours) == set(theirs)
        for name, value in ours.items():
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize("name", oracle.RULES)
def test_canonical(kind, name):
    check(kind, oracle.RULES[name], "canonical")


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_native(kind, name):
    """The framework's own dropout and running averages go on as well."""
    check(kind, DEFAULTS[name], "native")


def test_parameters_are_copies(kind):
    engine = oracle.build(kind, MODEL, oracle.training(oracle.RULES["momentum"]))
    taken, state = engine.parameters(), engine.state()
    before = {name: value.copy() for name, value in taken.items()}
    kept = {name: value.copy() for name, value in state.items()}
    engine.train(ListLoop(make_batches(MODEL, 2, 5)))
    assert any((engine.parameters()[name] != value).any() for name, value in before.items())
    for found, expected in ((taken, before), (state, kept)):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
