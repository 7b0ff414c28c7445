"""Networks from and for Caffe: the same logits in Caffe itself, in the engine and in the reference."""

import os
import sys

import caffe
import numpy as np
import pytest
from oracle import RULES, training

from crosstrain_caffe.engine import CaffeEngine
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Model,
    Pool,
    Relu,
)
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_service.training import Execution, Rule

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "coordinator", "src"))

from crosstrain.exchange.caffe import import_caffe  # noqa: E402
from crosstrain.exchange.caffe_export import export_caffe  # noqa: E402

SOLVER = 'base_lr: 0.1 lr_policy: "fixed" type: "Adam" momentum: 0.9 max_iter: 5'
NET = """
name: "by_hand"
input: "pixels" input_shape { dim: 6 dim: 2 dim: 9 dim: 8 }
layer { name: "c/1" type: "Convolution" bottom: "pixels" top: "c" convolution_param {
  num_output: 5 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "bn" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "sc" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true
  filler { type: "uniform" min: 0.5 max: 1.5 } bias_filler { type: "uniform" } } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "lrn" type: "LRN" bottom: "c" top: "l" lrn_param { local_size: 3 alpha: 0.6 } }
layer { name: "mp" type: "Pooling" bottom: "l" top: "m" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ap" type: "Pooling" bottom: "m" top: "a" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "d" type: "Dropout" bottom: "a" top: "a" }
layer { name: "fc" type: "InnerProduct" bottom: "a" top: "fc" inner_product_param {
  num_output: 4 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
"""


def images(shape, count=6, seed=0):
    return np.random.RandomState(seed).uniform(-1, 1, (count,) + tuple(shape)).astype(np.float32)


def predictions(model, arrays, x):
    """Logits of the engine and of the reference."""
    engines = (CaffeEngine(model, training(RULES["sgd"]), Execution()),
               ReferenceEngine(model, training(RULES["sgd"]), Execution(precision="float64")))
    for engine, dtype in zip(engines, (np.float32, np.float64)):
        values = {name: value.astype(dtype) for name, value in arrays.items()}
        engine.load_parameters(values)
        if model.statistics_shapes():
            engine.load_statistics(values)
        yield engine.predict(x.astype(dtype))


def test_a_network_by_hand(tmp_path):
    path = str(tmp_path / "net.prototxt")
    with open(path, "w") as file:
        file.write(NET)
    caffe.set_random_seed(1)
    net = caffe.Net(path, caffe.TRAIN)
    # Two batches give the statistics a weight other than 1.
    for seed in (1, 2):
        net.blobs["pixels"].data[...] = images((2, 9, 8), seed=seed)
        net.forward()
    net.save(str(tmp_path / "net.caffemodel"))
    own = caffe.Net(path, caffe.TEST, weights=str(tmp_path / "net.caffemodel"))
    x = images((2, 9, 8), seed=3)
    own.blobs["pixels"].data[...] = x
    expected = np.array(own.forward()["fc"])
    found = import_caffe(NET, SOLVER, (tmp_path / "net.caffemodel").read_bytes())
    names = [layer.name for layer in found.model.layers]
    assert names == ["c_1", "bn", "r", "lrn", "mp", "ap", "d", "fc_flatten", "fc"]
    for logits in predictions(found.model, found.weights, x):
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


# The order of layers in Caffe's example of CIFAR-10: overlapping pools rounded up, LRN within channels.
WITHIN = """
name: "cifar_like"
layer { name: "data" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 6 dim: 3 dim: 16 dim: 12 } shape { dim: 6 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param {
  num_output: 8 kernel_size: 5 pad: 2 stride: 1 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "relu1" type: "ReLU" bottom: "pool1" top: "pool1" }
layer { name: "norm1" type: "LRN" bottom: "pool1" top: "norm1"
  lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL } }
layer { name: "conv2" type: "Convolution" bottom: "norm1" top: "conv2" convolution_param {
  num_output: 8 kernel_size: 5 pad: 2 stride: 1 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "norm2" type: "LRN" bottom: "pool2" top: "norm2"
  lrn_param { local_size: 5 alpha: 0.25 beta: 0.5 norm_region: WITHIN_CHANNEL } }
layer { name: "ip1" type: "InnerProduct" bottom: "norm2" top: "ip1"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss" }
"""


def test_a_network_with_response_norm_within_channels(tmp_path):
    (tmp_path / "net.prototxt").write_text(WITHIN)
    (tmp_path / "solver.prototxt").write_text(
        'train_net: "%s" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 random_seed: 1' % (tmp_path / "net.prototxt"))
    solver = caffe.get_solver(str(tmp_path / "solver.prototxt"))
    solver.net.save(str(tmp_path / "net.caffemodel"))
    found = import_caffe(WITHIN, 'base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 3',
                         (tmp_path / "net.caffemodel").read_bytes())
    norms = found.model.layers_of(LocalResponseNorm)
    assert norms == [LocalResponseNorm("norm1", 3, 0.5 / 9, 0.75, 1.0, "within_channel"),
                     LocalResponseNorm("norm2", 5, 0.25 / 25, 0.5, 1.0, "within_channel")]
    assert found.model.output_shapes()["norm2"] == (8, 4, 3)
    x = images((3, 16, 12))
    solver.net.blobs["data"].data[...] = x
    solver.net.forward()
    for logits in predictions(found.model, found.weights, x):
        np.testing.assert_allclose(logits, solver.net.blobs["ip1"].data, rtol=1e-5, atol=1e-6)
    # Training in the engine, native and canonical, and by hand.
    batches = make_batches(found.model, 3, 6, learning_rate=0.1)
    losses = {}
    for semantics in ("native", "canonical"):
        engine = CaffeEngine(found.model, training(Rule("sgd", momentum=0.9, nesterov=False), (0.1,) * 3, 6),
                             Execution(semantics=semantics))
        engine.load_parameters(found.weights)
        loop = ListLoop(batches)
        engine.train(loop)
        losses[semantics] = loop.losses
    by_hand = []
    for batch in batches:
        solver.net.blobs["data"].data[...] = batch.x
        solver.net.blobs["label"].data[...] = batch.labels
        solver.step(1)
        by_hand.append(float(solver.net.blobs["loss"].data))
    assert losses == {"native": by_hand, "canonical": by_hand}


@pytest.mark.parametrize("shape", [(2, 9, 8), (2, 12)], ids=["images", "lines"])
def test_an_exported_network(shape, tmp_path):
    dims = len(shape) - 1
    one, two, three = ((size,) * dims for size in (1, 2, 3))
    model = Model("exported", shape, 3, (
        Convolution("conv", 4, three, one, one, one), BatchNorm("norm", 1e-3), Relu("relu"),
        Pool("pool", "max", three, two, (0,) * dims, (0,) * dims), LocalResponseNorm("lrn", 3, 0.5, 0.75, 2.0),
        LocalResponseNorm("within", 3, 0.5, 0.75, 1.0, "within_channel"),
        Pool("mean", "average", two, one, one, one, "floor", True), Flatten("flatten"), Dropout("drop", 0.5),
        Dense("fc", 3),
    )).validate()
    random = np.random.RandomState(0)
    shapes = {**model.parameter_shapes(), **model.statistics_shapes()}
    arrays = {name: random.uniform(0.2, 1, size).astype(np.float32) for name, size in shapes.items()}
    text, data = export_caffe(model, arrays)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "net.caffemodel").write_bytes(data)
    net = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, weights=str(tmp_path / "net.caffemodel"))
    x = images(shape)
    net.blobs["data"].reshape(len(x), *list(net.blobs["data"].shape)[1:])
    net.blobs["data"].data[...] = x.reshape(net.blobs["data"].shape)
    logits = np.array(net.forward()["fc"])
    for expected in predictions(model, arrays, x):
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
