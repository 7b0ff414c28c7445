"""Native semantics against plain Caffe: a prototxt written by hand, run through pycaffe."""

import caffe
import numpy as np
import pytest
from oracle import engine, parameters, single, training

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import BatchNorm, Dropout, LocalResponseNorm, Pool
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_service.training import Rule, WeightDecay

HEAD = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 2 dim: 7 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 4 } } }
layer { name: "first" type: "Convolution" bottom: "data" top: "first"
  convolution_param { num_output: 3 kernel_size: 1 bias_term: false } }
"""
TAIL = """
layer { name: "last" type: "InnerProduct" bottom: "layer" top: "last" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "last" bottom: "label" top: "loss" }
"""
BY_HAND = {
    "batch_norm": (
        BatchNorm("layer"),
        'layer { name: "norm" type: "BatchNorm" bottom: "first" top: "norm" }'
        'layer { name: "layer" type: "Scale" bottom: "norm" top: "layer" scale_param { bias_term: true } }'),
    "batch_norm_given": (
        BatchNorm("layer", 1e-2, 0.5),
        'layer { name: "norm" type: "BatchNorm" bottom: "first" top: "norm"'
        "  batch_norm_param { eps: 0.01 moving_average_fraction: 0.5 } }"
        'layer { name: "layer" type: "Scale" bottom: "norm" top: "layer" scale_param { bias_term: true } }'),
    "lrn": (
        LocalResponseNorm("layer", 3, 0.25, 0.75, 1.0),
        'layer { name: "layer" type: "LRN" bottom: "first" top: "layer" lrn_param { local_size: 3 alpha: 0.75 } }'),
    "lrn_within": (
        LocalResponseNorm("layer", 3, 0.5, 0.75, 1.0, "within_channel"),
        'layer { name: "layer" type: "LRN" bottom: "first" top: "layer"'
        "  lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 alpha: 4.5 } }"),
    "ceil": (
        Pool("layer", "max", (2, 2), (2, 2), (0, 0), (0, 0), "ceil"),
        'layer { name: "layer" type: "Pooling" bottom: "first" top: "layer"'
        "  pooling_param { kernel_size: 2 stride: 2 } }"),
    "average": (
        Pool("layer", "average", (3, 3), (2, 2), (1, 1), (1, 1), "ceil"),
        'layer { name: "layer" type: "Pooling" bottom: "first" top: "layer"'
        "  pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }"),
    "dropout": (
        Dropout("layer", 0.4),
        'layer { name: "layer" type: "Dropout" bottom: "first" top: "layer" dropout_param { dropout_ratio: 0.4 } }'),
}
BIAS = {"weight": 0, "bias": 1, "gamma": 0, "beta": 1}


def by_hand(tmp_path, layer, settings, model):
    """A solver on the hand-written network, with the parameters that the engine starts from."""
    net = tmp_path / "net.prototxt"
    net.write_text(HEAD + layer + TAIL)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('train_net: "%s" lr_policy: "fixed" random_seed: 0 %s' % (net, settings))
    made = caffe.get_solver(str(solver))
    for name, value in parameters(model).items():
        owner, part = name.split(".")
        made.net.params[owner][BIAS[part]].data[...] = value
    return made


def train_by_hand(solver, batches):
    losses = []
    for batch in batches:
        solver.net.blobs["data"].data[...] = batch.x
        solver.net.blobs["label"].data[...] = batch.labels
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    return losses


def assert_equal_runs(built, solver, model, batches):
    """Losses and parameters after every step are bitwise equal; Caffe has one random generator for both."""
    caffe.set_random_seed(0)
    loop = ListLoop(batches)
    built.train(loop)
    caffe.set_random_seed(0)
    assert train_by_hand(solver, batches) == loop.losses
    for name, value in built.parameters().items():
        owner, part = name.split(".")
        assert solver.net.params[owner][BIAS[part]].data.tobytes() == value.tobytes(), name


@pytest.mark.parametrize("name", BY_HAND)
def test_layer_with_decay_of_everything(name, tmp_path):
    layer, text = BY_HAND[name]
    model = single(layer, input_shape=(2, 7, 6))
    settings = training(Rule("sgd", momentum=0.9), batch_size=4, weight_decay=WeightDecay(0.01), clip_norm=0.5)
    built = engine(model, settings, semantics="native")
    batches = make_batches(model, 3, 4)
    hand = "base_lr: 0.05 momentum: 0.9 weight_decay: 0.01 clip_gradients: 0.5"
    solver = by_hand(tmp_path, text, hand, model)
    assert_equal_runs(built, solver, model, batches)
    if isinstance(layer, BatchNorm):
        mean, variance, weight = (blob.data for blob in solver.net.params["norm"])
        found = built.statistics()
        np.testing.assert_allclose(found["layer.running_mean"], mean / weight, rtol=1e-6)
        np.testing.assert_allclose(found["layer.running_var"], variance / weight, rtol=1e-6)
        # Predictions are by Caffe's own statistics.
        x = make_batches(model, 1, 6, seed=5)[0].x
        first = np.einsum("oc,nchw->nohw", built.parameters()["first.weight"][:, :, 0, 0], x)
        values = {key: value[:, None, None] for key, value in {**found, **built.parameters()}.items() if "layer" in key}
        root = np.sqrt(values["layer.running_var"] + (layer.epsilon or 1e-5))
        scaled = (first - values["layer.running_mean"]) / root * values["layer.gamma"] + values["layer.beta"]
        logits = scaled.reshape(6, -1) @ built.parameters()["last.weight"].T + built.parameters()["last.bias"]
        np.testing.assert_allclose(built.predict(x), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rule", "text"), [
    (Rule("sgd"), 'type: "SGD"'),
    (Rule("sgd", momentum=0.9, nesterov=True), 'type: "Nesterov" momentum: 0.9'),
    (Rule("rmsprop"), 'type: "RMSProp"'),
    (Rule("adagrad"), 'type: "AdaGrad"'),
    (Rule("adadelta", rho=0.9), 'type: "AdaDelta" momentum: 0.9'),
    # Without a value for beta1 Caffe's momentum is 0.
    (Rule("adam"), 'type: "Adam"'),
    (Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-4), 'type: "Adam" momentum: 0.9 momentum2: 0.99 delta: 1e-4'),
], ids=lambda value: value.name if isinstance(value, Rule) else "")
def test_rule_with_defaults(rule, text, tmp_path):
    layer, hand = BY_HAND["ceil"]
    model = single(layer, input_shape=(2, 7, 6))
    built = engine(model, training(rule, (0.01,) * 4, 4), semantics="native")
    solver = by_hand(tmp_path, hand, "base_lr: 0.01 " + text, model)
    batches = [type(b)(b.step, b.x, b.labels, 0.01, b.masks) for b in make_batches(model, 4, 4)]
    assert_equal_runs(built, solver, model, batches)


def test_rounding_that_gives_another_size_is_refused():
    model = single(Pool("layer", "max", (2, 2), (2, 2), (0, 0), (0, 0)), input_shape=(2, 7, 6))
    with pytest.raises(CrosstrainError) as caught:
        engine(model, training(Rule("sgd")), semantics="native")
    assert caught.value.reason == "UNSUPPORTED"
    assert "'layer'" in str(caught.value) and "(4, 3)" in str(caught.value) and "(3, 3)" in str(caught.value)
