"""Caffe's files in and out, without Caffe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from crosstrain.exchange import caffemodel
from crosstrain.exchange.caffe import import_caffe, job_text, model_text
from crosstrain.exchange.caffe_export import export_caffe
from crosstrain.exchange.caffe_net import import_net
from crosstrain.exchange.textproto import MAX_DEPTH, Message, Scalar, parse
from crosstrain.spec import build_model, parse_document
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import BatchNorm, Convolution, Dense, Flatten, LocalResponseNorm, Model, Pool, Relu

LENET = """
name: "LeNet"  # as in Caffe's examples
layer { name: "mnist" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.00390625 } data_param { source: "/some/where/lmdb" batch_size: 32 backend: LMDB } }
layer { name: "mnist" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.00390625 } data_param { source: "elsewhere" batch_size: 100 backend: LMDB } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "conv2/3x3" type: "Convolution" bottom: "pool1" top: "conv2"
  convolution_param { num_output: 50 kernel_h: 5 kernel_w: 3 pad_h: 0 pad_w: 1 } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1" inner_product_param { num_output: 500 } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param { dropout_ratio: 0.4 } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 10 } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "examples/mnist/lenet_train_test.prototxt"
test_iter: 100 test_interval: 500 base_lr: 0.01 momentum: 0.9 weight_decay: 0.0005
lr_policy: "step" gamma: 0.1 stepsize: 100 display: 100 max_iter: 10000 snapshot_prefix: "/tmp/x" solver_mode: GPU
"""
SMALL = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 2 dim: 5 dim: 6 } } }
LAYERS
layer { name: "out" type: "InnerProduct" bottom: "y" top: "out" inner_product_param { num_output: 3 } }
"""


def small(layers: str) -> str:
    return SMALL.replace("LAYERS", layers)


def test_lenet() -> None:
    found = import_caffe(LENET, SOLVER, input_shape=(1, 28, 28), ignore_rates=True)
    assert [layer.name for layer in found.model.layers] == [
        "conv1", "pool1", "conv2_3x3", "pool2", "ip1_flatten", "ip1", "relu1", "drop", "ip2",
    ]  # fmt: skip
    assert found.model.layers[1] == Pool("pool1", "max", (2, 2), (2, 2), (0, 0), (0, 0), "ceil")
    assert found.model.layers[2] == Convolution("conv2_3x3", 50, (5, 3), (1, 1), (0, 1), (0, 1))
    assert found.model.layers[3] == Pool("pool2", "average", (3, 3), (2, 2), (0, 0), (0, 0), "ceil", True)
    assert found.model.output_shapes()["pool2"] == (50, 4, 6), "8 x 12 rounded up"
    assert found.divisor == 256.0
    assert found.training == {
        "epochs": 10000, "max_steps": 10000, "seed": 0, "batch_size": 32,
        "optimizer": {"sgd": {"learning_rate": 0.01, "momentum": 0.9}},
        "schedule": {"decay": {"step": {"factor": 0.1, "every_steps": 100}}},
        "weight_decay": {"rate": 0.0005, "include_biases": True},
    }  # fmt: skip
    assert any("lr_mult" in remark for remark in found.remarks)


def test_rates_of_single_parameters_are_refused_unless_ignored() -> None:
    with pytest.raises(CrosstrainError, match=r"conv1.bias \(2\).*--ignore-lr-mult"):
        import_caffe(LENET, SOLVER, input_shape=(1, 28, 28))


def test_the_written_documents_are_read_back() -> None:
    found = import_caffe(LENET, SOLVER, input_shape=(1, 28, 28), ignore_rates=True)
    assert job_text(found, "model.yaml").startswith(
        "# Imported from Caffe. Samples have the shape 1x28x28, classes: 10"
    )
    text = job_text(found, "model.yaml").replace('model: "model.yaml"\n', "")
    inline = "model:\n" + "".join(f"  {line}\n" for line in model_text(found.model).splitlines())
    spec = parse_document(text + inline)
    assert build_model(spec, (1, 28, 28), 10) == found.model
    assert spec.training.batch_size == 32 and spec.data is not None and spec.data.divisor == 256.0


def test_batch_norm_and_local_response_norm() -> None:
    layers = """
    layer { name: "bn" type: "BatchNorm" bottom: "x" top: "x" batch_norm_param { eps: 1e-3 } }
    layer { name: "sc" type: "Scale" bottom: "x" top: "x" scale_param { bias_term: true } }
    layer { name: "lrn" type: "LRN" bottom: "x" top: "y" lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 } }
    """
    found = import_net(small(layers))
    assert found.model.layers[:2] == (BatchNorm("bn", 1e-3), LocalResponseNorm("lrn", 5, 0.1, 0.75, 1.0))
    assert found.batch_size == 4 and found.sources["bn"] == ("bn", "sc")


@pytest.mark.parametrize("region", ["WITHIN_CHANNEL", "1"])
def test_local_response_norm_within_a_channel(region: str) -> None:
    layer = """
    layer { name: "lrn" type: "LRN" bottom: "x" top: "y"
      lrn_param { norm_region: %s local_size: 3 alpha: 0.9 beta: 0.5 %s } }
    """
    expected = LocalResponseNorm("lrn", 3, 0.1, 0.5, 1.0, "within_channel")
    found = import_net(small(layer % (region, "")))
    assert found.model.layers[0] == expected and not found.remarks
    found = import_net(small(layer % (region, "k: 2")))
    assert found.model.layers[0] == expected and "lrn: Caffe ignores k" in found.remarks[0]
    text = model_text(found.model)
    assert '"region": "within_channel"' in text


@pytest.mark.parametrize(("layer", "words"), [
    ('type: "Python" python_param { module: "os" layer: "x" }', ["'one' (Python)", "code"]),
    ('type: "Deconvolution"', ["Deconvolution", "known are"]),
    ('type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 2 }', ["MAX or AVE"]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 group: 2 }', ["group"]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 dilation: 2 }', ["dilation"]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 9 }', ["'one'", "does not fit"]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: x }', ["kernel_size must be a number"]),
    ('type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 new_field: 1 }', ["new_field cannot be"]),
    ('type: "Pooling" pooling_param { kernel_size: 1 stride: 4 }', ["outside"]),
    ('type: "LRN" lrn_param { norm_region: BETWEEN }', ["ACROSS_CHANNELS or WITHIN_CHANNEL"]),
    ('type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL local_size: 4 }', ["local_size must be odd"]),
    ('type: "ReLU" relu_param { negative_slope: 0.1 }', ["negative_slope"]),
    ('type: "Scale" scale_param { bias_term: true }', ["behind a BatchNorm"]),
    ('type: "BatchNorm"', ["Scale layer must follow"]),
    ('type: "ReLU" bottom: "other"', ["sequence"]),
    ('type: "ReLU" param { name: "shared" }', ["param cannot be taken over"]),
])  # fmt: skip
def test_what_cannot_be_taken_is_named(layer: str, words: list[str]) -> None:
    with pytest.raises(CrosstrainError) as caught:
        import_net(small(f'\nlayer {{ name: "one" bottom: "x" top: "y" {layer} }}'))
    assert caught.value.reason == "INVALID_MODEL" and caught.value.message.startswith("line ")
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(("old", "new", "word"), [
    ('"step"', '"poly"', "poly"),
    ("momentum: 0.9", 'type: "LBFGS"', "LBFGS"),
    ("momentum: 0.9", "iter_size: 4", "iter_size"),
    ("momentum: 0.9", 'regularization_type: "L1"', "L2"),
    ("momentum: 0.9", 'weights: "file.caffemodel"', "weights cannot be taken over"),
    ("base_lr: 0.01", "", "base_lr"),
    ("base_lr: 0.01", "base_lr: nan", "base_lr must be a number"),
])  # fmt: skip
def test_solvers_that_cannot_be_taken(old: str, new: str, word: str) -> None:
    with pytest.raises(CrosstrainError, match=word):
        import_caffe(LENET, SOLVER.replace(old, new), input_shape=(1, 28, 28), ignore_rates=True)


def test_the_shape_of_a_database_must_be_stated() -> None:
    with pytest.raises(CrosstrainError, match="--input-shape"):
        import_net(LENET)


def test_text_format() -> None:
    found = parse("a: 1 a: -2.5e3f # c\nb < c: 'x\\n' \"y\\x41\" > d: [1, 2,3] e { } f: TRUE;")
    assert [value.text for value in found.fields["a"]] == ["1", "-2.5e3f"]  # type: ignore[union-attr]
    inner = found.fields["b"][0]
    assert isinstance(inner, Message) and inner.fields["c"] == [Scalar("x\nyA", True, 2)]
    assert len(found.fields["d"]) == 3 and isinstance(found.fields["e"][0], Message)


@pytest.mark.parametrize("text", [
    "a", "a:", "a {", "a: {", "}", "a: 1 }", "a: 'x", "a: 'x\n'", "= 1", "a: [1", "a { b: 1 >", "a: \x00", "1: 2",
    "a {" * (MAX_DEPTH + 2), "a: [" * 50,
])  # fmt: skip
def test_broken_text_names_a_line(text: str) -> None:
    with pytest.raises(CrosstrainError, match="line 1|line 2|more than"):
        parse(text)


MODEL = Model("net", (2, 6, 5), 3, (
    Convolution("conv", 4, (3, 2), (1, 1), (1, 0), (1, 0)), BatchNorm("norm", 1e-3), Relu("relu"),
    Pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0), "ceil"), LocalResponseNorm("lrn", 3, 0.25, 0.75, 2.0),
    Flatten("flatten"), Dense("out", 3, False),
)).validate()  # fmt: skip


def random_weights() -> dict[str, np.ndarray]:
    random = np.random.RandomState(0)
    shapes = {**MODEL.parameter_shapes(), **MODEL.statistics_shapes()}
    return {name: random.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def test_round_trip() -> None:
    weights = random_weights()
    text, data = export_caffe(MODEL, weights)
    found = import_caffe(text, SOLVER, data)
    assert found.model == MODEL
    assert found.weights is not None and found.weights.keys() == weights.keys()
    for name, value in found.weights.items():
        assert value.tobytes() == weights[name].tobytes(), name


def test_local_response_norm_within_a_channel_goes_out_and_in() -> None:
    lrn = LocalResponseNorm("lrn", 3, 0.25, 0.75, 1.0, "within_channel")
    head = Flatten("flatten"), Dense("out", 3)
    model = Model("net", (2, 4, 3), 3, (lrn, *head)).validate()
    weights = {name: np.ones(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    text, data = export_caffe(model, weights)
    assert "norm_region: WITHIN_CHANNEL local_size: 3 alpha: 2.25 beta: 0.75 engine: CAFFE" in text
    assert import_caffe(text, SOLVER, data).model == model
    # A line is an image of height 1, whose window is a square.
    text, _ = export_caffe(Model("net", (2, 12), 3, (lrn, *head)).validate(), weights)
    assert "alpha: 2.25" in text
    with pytest.raises(CrosstrainError, match="'lrn' cannot be exported: k is 2.0"):
        export_caffe(replace(model, layers=(replace(lrn, k=2.0), *head)), weights)


def test_broken_caffemodels() -> None:
    text, data = export_caffe(MODEL, random_weights())
    for size in [0, 1, 2, 7, *range(20, len(data), 97)]:
        with pytest.raises(CrosstrainError) as caught:
            import_caffe(text, SOLVER, data[:size])
        assert caught.value.reason == "INVALID_WEIGHTS"
    random = np.random.RandomState(0)
    for _ in range(200):
        damaged = bytearray(data)
        for at in random.randint(0, len(data), 3):
            damaged[at] = random.randint(256)
        try:
            import_caffe(text, SOLVER, bytes(damaged))
        except CrosstrainError as error:
            assert error.reason == "INVALID_WEIGHTS"
    with pytest.raises(
        CrosstrainError, match=r"'out' has an array of shape \(3, 24\) where the network needs \(7, 24\)"
    ):
        import_caffe(text.replace("num_output: 3", "num_output: 7"), SOLVER, data)
    with pytest.raises(CrosstrainError, match="no weight of layer 'conv'"):
        import_caffe(text, SOLVER, caffemodel.write("x", {"out": ("InnerProduct", [np.zeros((3, 24), np.float32)])}))


def test_what_caffe_cannot_express_is_not_exported() -> None:
    flatten = Flatten("flatten"), Dense("out", 3)
    for layer, word in (
        (Pool("one", "average", (3, 3), (1, 1), (1, 1), (1, 1)), "padding in averages"),
        (Convolution("one", 1, (2, 2), (1, 1), (0, 0), (1, 1)), "before and after"),
    ):
        with pytest.raises(CrosstrainError, match=word):
            model = Model("m", (1, 4, 4), 3, (layer, *flatten)).validate()
            shapes = model.parameter_shapes().items()
            export_caffe(model, {name: np.zeros(shape, np.float32) for name, shape in shapes})
