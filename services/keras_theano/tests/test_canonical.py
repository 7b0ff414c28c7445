"""Canonical semantics: both engines compute what the reference computes."""

import numpy as np
import pytest

from crosstrain_service.engine import Batch
from crosstrain_service.model import Convolution, Dense, Flatten, Model, Pool, Relu
from crosstrain_service.training import Rule, WeightDecay
from support import (
    NAMES,
    SGD,
    assert_same,
    batches,
    build,
    everything_1d,
    everything_2d,
    tiny,
    train,
    training,
)

RULES = {
    "sgd": (Rule("sgd", momentum=0.0, nesterov=False), {}),
    "momentum": (SGD, {"weight_decay": WeightDecay(0.01), "clip_norm": 0.5}),
    "nesterov": (Rule("sgd", momentum=0.8, nesterov=True), {"weight_decay": WeightDecay(0.1, True)}),
    "rmsprop": (Rule("rmsprop", rho=0.9, epsilon=0.1), {}),
    "adagrad": (Rule("adagrad", epsilon=1e-3, initial_accumulator=0.1), {"clip_norm": 1e3}),
    "adam": (
        Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-8),
        {"weight_decay": WeightDecay(0.02, False, True)},
    ),
    "adamw": (
        Rule("adam", beta1=0.8, beta2=0.99, epsilon=0.5),
        {"weight_decay": WeightDecay(0.1, True, True)},
    ),
    "adadelta": (Rule("adadelta", rho=0.95, epsilon=1e-6), {}),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [everything_2d(), everything_1d()], ids=["2d", "1d"])
def test_every_layer(name, model):
    engine, reference = assert_same(name, model, training(), batches(model))
    x = batches(model)[0].x
    found, expected = engine.batch_statistics(x), reference.batch_statistics(x)
    assert set(found) == set(expected)
    for layer, pair in expected.items():
        np.testing.assert_allclose(found[layer], pair, rtol=1e-9, atol=1e-12)
    statistics = {}
    for layer, (mean, variance) in expected.items():
        statistics[layer + ".running_mean"] = mean + 0.25
        statistics[layer + ".running_var"] = variance * 2
    for item in (engine, reference):
        item.load_statistics(statistics)
    assert engine.statistics().keys() == statistics.keys()
    np.testing.assert_array_equal(engine.statistics()[layer + ".running_mean"], mean + 0.25)
    np.testing.assert_allclose(engine.predict(x), reference.predict(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_rules_and_resume(name, rule):
    """Each rule is the reference's, and three steps, saving, loading elsewhere, three steps equal six bit by
    bit.
    """
    constants, settings = RULES[rule]
    model, settings = tiny(), training(constants, **settings)
    steps = batches(model, count=6)
    assert_same(name, model, settings, steps[:4])
    straight, first, second = (build(name, model, settings) for _ in range(3))
    losses = train(straight, steps)
    assert train(first, steps[:3]) == losses[:3]
    second.load_state(first.state())
    assert train(second, steps[3:]) == losses[3:]
    for wanted, found in (
        (straight.parameters(), second.parameters()),
        (straight.optimizer_state(), second.optimizer_state()),
    ):
        assert wanted.keys() == found.keys()
        for key in wanted:
            np.testing.assert_array_equal(wanted[key], found[key], err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_delta_image_shows_an_unflipped_kernel(name):
    model = Model(
        "delta",
        (1, 7, 7),
        49,
        (Convolution("conv", 1, (3, 3), (1, 1), (1, 1), (1, 1)), Flatten("flatten"), Dense("dense", 49)),
    ).validate()
    kernel = np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    parameters = {
        "conv.weight": kernel,
        "conv.bias": np.zeros(1),
        "dense.weight": np.eye(49),
        "dense.bias": np.zeros(49),
    }
    x = np.zeros((1, 1, 7, 7))
    x[0, 0, 3, 3] = 1
    engine = build(name, model, parameters=parameters)
    image = engine.predict(x).reshape(7, 7)
    np.testing.assert_array_equal(image[2:5, 2:5], kernel[0, 0, ::-1, ::-1])
    np.testing.assert_array_equal(engine.parameters()["conv.weight"], kernel)


def _probe_model(layer, length):
    """The layer alone before a dense layer whose gradient on logit 0 is the weight."""
    flatten = (layer, Flatten("flatten"))
    size = int(np.prod(Model("part", (1, 1, length), 1, flatten).output_shapes()["flatten"]))
    return Model("probe", (1, 1, length), 2, flatten + (Dense("dense", 2, bias=False),)).validate(), size


def _input_gradient(name, layer, values, **execution):
    """dL/dx up to a positive factor of a layer at ``values``: the gradient reaching a 1x1 convolution before
    it.
    """
    inner = Convolution("conv", 1, (1, 1), (1, 1), (0, 0), (0, 0), bias=False)
    _, size = _probe_model(layer, len(values))
    model = Model(
        "probe", (1, 1, len(values)), 2, (inner, layer, Flatten("flatten"), Dense("dense", 2, bias=False))
    ).validate()
    parameters = {
        "conv.weight": np.ones((1, 1, 1, 1)),
        "dense.weight": np.stack([np.zeros(size), np.ones(size)]),
    }
    engine = build(name, model, parameters=parameters, **execution)
    x = np.array(values, float).reshape(1, 1, 1, -1)
    inside = engine.intermediates(Batch(0, x, np.array([0]), 0.1))
    gradient = inside.output_gradients["conv"].ravel()
    return gradient / np.abs(gradient).max()


@pytest.mark.parametrize("name", NAMES)
def test_ties_and_zeros(name):
    """The first of equal maxima gets the gradient and ReLU's gradient at 0 is 0; natively Theano's
    conventions hold.
    """
    pool = Pool("pool", "max", (1, 4), (1, 4), (0, 0), (0, 0))
    overlapping = Pool("pool", "max", (1, 2), (1, 1), (0, 0), (0, 0))
    np.testing.assert_array_equal(_input_gradient(name, pool, [1, 2, 2, 2]), [0, 1, 0, 0])
    np.testing.assert_array_equal(_input_gradient(name, overlapping, [2, 2, 2]), [1, 1, 0])
    np.testing.assert_array_equal(_input_gradient(name, Relu("relu"), [-1, 0, 1]), [0, 0, 1])
    np.testing.assert_array_equal(_input_gradient(name, pool, [1, 2, 2, 2], semantics="native"), [0, 1, 1, 1])
    np.testing.assert_array_equal(_input_gradient(name, Relu("relu"), [-1, 0, 1], semantics="native"), [0, 0.5, 1])


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_never_a_maximum(name):
    """Negative values win over padding, whose value is -inf."""
    model = Model(
        "pad",
        (1, 1, 3),
        3,
        (Pool("pool", "max", (1, 2), (1, 2), (0, 1), (0, 0)), Flatten("flatten"), Dense("dense", 3)),
    ).validate()
    x = np.array([-5.0, -3.0, -4.0]).reshape(1, 1, 1, 3)
    inside = build(name, model).intermediates(Batch(0, x, np.array([0]), 0.1))
    np.testing.assert_array_equal(inside.outputs["pool"].ravel(), [-5, -3])


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_not_clipped(name):
    model = Model("loss", (3,), 3, (Dense("dense", 3, bias=False),)).validate()
    parameters = {"dense.weight": np.eye(3)}
    batch = Batch(0, np.array([[14.4, 50.1, 3.5]]), np.array([0]), 0.1)
    canonical = build(name, model, parameters=parameters).intermediates(batch)
    assert canonical.loss == pytest.approx(35.7, abs=1e-9)
    assert canonical.output_gradients["dense"][0, 0] == pytest.approx(-1, abs=1e-9)
    huge = Batch(0, np.array([[0.0, 1000.0, 0.0]]), np.array([0]), 0.1)
    assert build(name, model, parameters=parameters).intermediates(huge).loss == 1000


@pytest.mark.parametrize("name", NAMES)
def test_not_a_number_is_not_hidden(name):
    model = tiny()
    engine = build(name, model)
    x = batches(model)[0].x
    x[0, 0, 2, 2] = np.nan
    assert np.isnan(engine.predict(x)[0]).any()
    assert np.isfinite(engine.predict(x)[1:]).all()
