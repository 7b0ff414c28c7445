"""Native semantics: each framework's own conventions, as their documentation and source state them."""

import numpy as np
import pytest

from crosstrain_service.engine import Batch
from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.training import Rule, WeightDecay
from support import NAMES, SGD, batches, build, everything_2d, tiny, train, training

PLAIN = Rule("sgd")
#: Epsilon by framework where the rule leaves it open.
EPSILON = {"keras-theano": 1e-7, "lasagne": 1e-6}


def _native(name, model, settings):
    return build(name, model, settings, semantics="native")


def _step(name, settings, model=None):
    """Parameters before and after one step, its data gradients, loss, and the engine."""
    model = model or tiny()
    batch = batches(model)[0]
    engine = _native(name, model, settings)
    before = engine.parameters()
    inside = engine.intermediates(batch)
    (loss,) = train(engine, [batch])
    assert loss == pytest.approx(inside.loss, rel=1e-12)
    return before, engine.parameters(), inside.gradients, batch.learning_rate, engine


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("biases", [False, True])
def test_l2_counts_twice_and_is_not_in_the_loss(name, biases):
    decay = WeightDecay(0.1, False, biases)
    before, after, gradients, rate, _ = _step(name, training(PLAIN, weight_decay=decay))
    for key, value in before.items():
        factor = 0.2 if biases or key.endswith(".weight") else 0.0
        np.testing.assert_allclose(after[key], value - rate * (gradients[key] + factor * value), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_decoupled_decay(name):
    before, after, gradients, rate, _ = _step(name, training(PLAIN, weight_decay=WeightDecay(0.1, True)))
    for key, value in before.items():
        kept = value * (1 - rate * 0.1) if key.endswith(".weight") else value
        np.testing.assert_allclose(after[key], kept - rate * gradients[key], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_clipping_includes_the_penalty(name):
    settings = training(PLAIN, weight_decay=WeightDecay(0.1), clip_norm=0.01)
    before, after, gradients, rate, _ = _step(name, settings)
    total = {key: gradients[key] + (0.2 * value if key.endswith(".weight") else 0) for key, value in before.items()}
    norm = np.sqrt(sum(np.sum(value**2) for value in total.values()))
    factor = 0.01 / norm if name == "keras-theano" else 0.01 / (1e-7 + norm)
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value - rate * factor * total[key], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nesterov", [False, True])
def test_velocity_is_canonical(name, nesterov):
    """The frameworks keep the negative of the velocity."""
    before, after, gradients, rate, engine = _step(name, training(Rule("sgd", momentum=0.9, nesterov=nesterov)))
    for key, value in before.items():
        velocity = rate * gradients[key]
        np.testing.assert_allclose(engine.optimizer_state()[key + ".velocity"], velocity, rtol=1e-12, atol=1e-18)
        change = (1.9 if nesterov else 1) * velocity
        np.testing.assert_allclose(after[key], value - change, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_rmsprop_epsilon(name):
    before, after, gradients, rate, engine = _step(name, training(Rule("rmsprop")))
    for key, value in before.items():
        gradient, epsilon = gradients[key], EPSILON[name]
        square = 0.1 * gradient**2
        root = np.sqrt(square) + epsilon if name == "keras-theano" else np.sqrt(square + epsilon)
        np.testing.assert_allclose(after[key], value - rate * gradient / root, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(engine.optimizer_state()[key + ".mean_square"], square, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("name", NAMES)
def test_adam_epsilon_hat(name):
    before, after, gradients, rate, engine = _step(name, training(Rule("adam", epsilon=1e-3)))
    for key, value in before.items():
        m, v = 0.1 * gradients[key], 0.001 * gradients[key] ** 2
        change = rate * np.sqrt(0.001) / 0.1 * m / (np.sqrt(v) + 1e-3)
        np.testing.assert_allclose(after[key], value - change, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(engine.optimizer_state()[key + ".v"], v, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", [Rule("adagrad", initial_accumulator=0.5), Rule("adadelta")], ids=lambda r: r.name)
def test_state_of_other_rules(name, rule):
    _, _, gradients, _, engine = _step(name, training(rule))
    suffix, start, weight = (".accumulator", 0.5, 1) if rule.name == "adagrad" else (".mean_square", 0, 0.05)
    for key, gradient in gradients.items():
        found = engine.optimizer_state()[key + suffix]
        np.testing.assert_allclose(found, start + weight * gradient**2, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("name", NAMES)
def test_forward_pass_and_layouts(name):
    """The same function as the reference up to the first random layer; features are permuted back."""
    model = everything_2d()
    engine, reference = _native(name, model, training()), build("reference", model)
    for key, value in reference.parameters().items():
        np.testing.assert_array_equal(engine.parameters()[key], value, err_msg=key)
    batch = batches(model)[0]
    found, expected = engine.intermediates(batch), reference.intermediates(batch)
    for layer in model.layers[: [layer.name for layer in model.layers].index("dropout")]:
        np.testing.assert_allclose(
            found.outputs[layer.name], expected.outputs[layer.name], rtol=1e-9, atol=1e-12, err_msg=layer.name
        )
    assert set(found.outputs) == set(found.output_gradients) == {layer.name for layer in model.layers}


def test_keras_flatten_permutes_features():
    """Batch norm between Keras's Flatten and a dense layer sees features in H, W, C order, which is
    translated.
    """
    model = Model(
        "flat",
        (2, 2, 3),
        3,
        (Flatten("flatten"), BatchNorm("bn", 1e-3, 0.5), Relu("relu"), Dense("dense", 3)),
    ).validate()
    parameters = build("reference", model).parameters()
    parameters["bn.gamma"] = np.linspace(0.5, 2, 12)
    parameters["bn.beta"] = np.linspace(-0.2, 1, 12)
    engine, reference = (
        build(name, model, parameters=parameters, **options)
        for name, options in (("keras-theano", {"semantics": "native"}), ("reference", {}))
    )
    batch = batches(model)[0]
    found, expected = engine.intermediates(batch), reference.intermediates(batch)
    for part in ("outputs", "output_gradients", "gradients"):
        for key, value in getattr(expected, part).items():
            np.testing.assert_allclose(getattr(found, part)[key], value, rtol=1e-7, atol=1e-9, err_msg=key)


def test_keras_loss_is_clipped():
    model = Model("loss", (3,), 3, (Dense("dense", 3, bias=False),)).validate()
    batch = Batch(0, np.array([[14.4, 50.1, 3.5]]), np.array([0]), 0.1)
    engine = build("keras-theano", model, parameters={"dense.weight": np.eye(3)}, semantics="native")
    inside = engine.intermediates(batch)
    assert inside.loss == pytest.approx(-np.log(1e-7), rel=1e-9)
    assert not inside.gradients["dense.weight"].any()
    np.testing.assert_allclose(engine.predict(batch.x), batch.x, rtol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_running_averages(name):
    """Keras scales the variance by n / (n - 1 - eps); Theano's operation, used with Lasagne, by n / (n - 1)."""
    model = Model(
        "norm",
        (2, 3, 2),
        3,
        (
            BatchNorm("bn", 0.01, 0.75),
            Pool("pool", "max", (2, 2), (1, 1), (0, 0), (0, 0)),
            Flatten("flatten"),
            Dense("dense", 3),
        ),
    ).validate()
    engine = _native(name, model, training(PLAIN))
    batch = batches(model)[0]
    engine.intermediates(batch)
    assert not engine.statistics()["bn.running_mean"].any()
    train(engine, [batch])
    mean, variance = batch.x.mean(axis=(0, 2, 3)), batch.x.var(axis=(0, 2, 3))
    count = batch.x[:, 0].size
    scaled = (variance + 0.01) * count / (count - 1.01) if name == "keras-theano" else variance * count / (count - 1)
    np.testing.assert_allclose(engine.statistics()["bn.running_mean"], 0.25 * mean, rtol=1e-9)
    np.testing.assert_allclose(engine.statistics()["bn.running_var"], 0.75 + 0.25 * scaled, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_drawn_and_resumed(name):
    model = Model(
        "drop",
        (1, 4, 4),
        3,
        (
            Convolution("conv", 2, (3, 3), (1, 1), (1, 1), (1, 1)),
            Flatten("flatten"),
            Dropout("dropout", 0.5),
            Dense("dense", 3),
        ),
    ).validate()
    steps = batches(model, count=6)
    straight, first, second = (_native(name, model, training(SGD)) for _ in range(3))
    losses = train(straight, steps)
    inside = first.intermediates(steps[0])
    zeros = inside.outputs["dropout"] == 0
    assert 0.2 < zeros.mean() < 0.8
    np.testing.assert_allclose(inside.outputs["dropout"][~zeros], 2 * inside.outputs["flatten"][~zeros], rtol=1e-12)
    assert inside.loss == pytest.approx(losses[0], rel=1e-12), "recording draws what the step after it draws"
    assert train(first, steps[:3]) == losses[:3]
    second.load_state(first.state())
    assert train(second, steps[3:]) == losses[3:]
    twice = [second.predict(steps[0].x) for _ in range(2)]
    np.testing.assert_array_equal(*twice)
