"""PyTorch and Keras sources with weights, written without either."""

from __future__ import annotations

import ast
import io

import numpy as np
import pytest

from crosstrain.exchange.keras_export import export_keras
from crosstrain.exchange.torch_export import RESERVED, export_torch
from crosstrain_service import weights as canonical
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
)

Arrays = dict[str, np.ndarray]
EXPORTS = [export_torch, export_keras]


def network(*layers: Layer, shape: tuple[int, ...] = (2, 5, 4)) -> Model:
    return Model("net", shape, 3, layers).validate()


MODEL = network(
    Pad("pad", (1, 0), (0, 0)), Convolution("conv", 4, (3, 2), (1, 1), (1, 1), (1, 0)), BatchNorm("norm", 1e-3, 0.9),
    Relu("relu"), LocalResponseNorm("lrn", 3, 0.25, 0.75, 2.0),
    Pool("pool", "average", (3, 3), (2, 2), (0, 1), (1, 1), "ceil"), Flatten("flatten"), Dropout("drop", 0.5),
    Dense("out", 3),
)  # fmt: skip


def weights_of(model: Model, dtype: str = "float32") -> Arrays:
    random = np.random.RandomState(0)
    shapes = {**model.parameter_shapes(), **model.statistics_shapes()}
    return {name: random.uniform(0.5, 1.5, shape).astype(dtype) for name, shape in shapes.items()}


def npz(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return dict(held)


def constructors(source: str) -> dict[str, str]:
    """By name the constructor of every module or layer in a source."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[1], ast.Call):
            assert isinstance(node.elts[0], ast.Constant)
            found[str(node.elts[0].value)] = ast.unparse(node.elts[1])
        if isinstance(node, ast.Call):
            for key in node.keywords:
                if key.arg == "name" and isinstance(key.value, ast.Constant):
                    found[str(key.value.value)] = ast.unparse(node)
    return found


def test_the_torch_source() -> None:
    written = export_torch(MODEL, weights_of(MODEL), 255.0)
    assert "stored values divided by 255.0" in written.source and "(batch, 2, 5, 4)" in written.source
    assert "crosstrain" not in written.source.replace("Crosstrain", "") and "pickle" not in written.source
    assert constructors(written.source) == {
        "pad": "nn.ConstantPad2d((0, 0, 1, 0), 0.0)",
        "conv_pad": "nn.ConstantPad2d((1, 0, 1, 1), 0.0)",
        "conv": "nn.Conv2d(2, 4, (3, 2), (1, 1), (0, 0), bias=True)",
        "norm": f"nn.BatchNorm2d(4, eps=0.001, momentum={1 - 0.9!r})",
        "relu": "nn.ReLU()",
        "lrn": "nn.LocalResponseNorm(3, alpha=0.75, beta=0.75, k=2.0)",
        "pool_pad": "nn.ConstantPad2d((1, 2, 0, 1), 0.0)",
        "pool": "CountedAverage((3, 3), (2, 2), [[3, 3, 2], [2, 3, 1]])",
        "flatten": "nn.Flatten()",
        "drop": "nn.Dropout(0.5)",
        "out": "nn.Linear(36, 3, bias=True)",
    }


def test_the_torch_weights_are_the_canonical_ones() -> None:
    weights = weights_of(MODEL)
    state, metadata = canonical.from_bytes(export_torch(MODEL, weights).weights)
    assert metadata == {"format": "pt"}
    assert state.pop("norm.num_batches_tracked").shape == ()
    renamed = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    assert state.keys() == {renamed.get(name, name) for name in weights}
    for name, value in weights.items():
        assert state[renamed.get(name, name)].tobytes() == value.tobytes(), name


def test_the_keras_source() -> None:
    written = export_keras(MODEL, weights_of(MODEL))
    assert "(batch, 5, 4, 2), channels last" in written.source and "DIVISOR" not in written.source
    found = constructors(written.source)
    assert found["conv_pad"].startswith("keras.layers.ZeroPadding2D(((1, 1), (1, 0)),")
    assert found["norm"] == "keras.layers.BatchNormalization(epsilon=0.001, momentum=0.9, name='norm')"
    assert found["lrn"] == "LocalResponseNorm(3, alpha=0.25, beta=0.75, k=2.0, name='lrn')"
    assert found["pool_scale"] == "WindowScale((3, 3), [[3, 3, 2], [2, 3, 1]], name='pool_scale')"
    assert "flatten_order" not in found, "the rows of the dense layer are permuted instead"
    assert "LowestPadding" not in written.source


def test_the_keras_layouts() -> None:
    weights = weights_of(MODEL)
    arrays = npz(export_keras(MODEL, weights).weights)
    norm = ["norm/gamma", "norm/beta", "norm/moving_mean", "norm/moving_variance"]
    assert sorted(arrays) == sorted(["conv/kernel", "conv/bias", *norm, "out/kernel", "out/bias"])
    np.testing.assert_array_equal(arrays["conv/kernel"], np.einsum("oihw->hwio", weights["conv.weight"]))
    # 4 channels of 3 x 3 after the pool.
    flat = np.einsum("ochw->hwco", weights["out.weight"].reshape(3, 4, 3, 3)).reshape(36, 3)
    np.testing.assert_array_equal(arrays["out/kernel"], flat)


@pytest.mark.parametrize(("between", "permuted"), [
    ([Relu("relu"), Dropout("drop", 0.5), Flatten("again")], True),
    ([BatchNorm("norm", 1e-3)], False),
])  # fmt: skip
def test_what_may_stand_between_flatten_and_dense_in_keras(between: list[Layer], permuted: bool) -> None:
    model = network(Flatten("flatten"), *between, Dense("one", 4), Dense("out", 3))
    weights = weights_of(model)
    written = export_keras(model, weights)
    arrays = npz(written.weights)
    assert ("flatten_order" in written.source) != permuted
    assert (arrays["one/kernel"] == weights["one.weight"].T).all() != permuted
    assert (arrays["out/kernel"] == weights["out.weight"].T).all()


@pytest.mark.parametrize(("layer", "torch", "keras"), [
    (Pool("one", "max", (3, 3), (2, 2), (0, 0), (0, 0), "ceil"),
     "nn.MaxPool2d((3, 3), (2, 2), (0, 0), ceil_mode=True)", "LowestPadding(((0, 0), (0, 1)), name='one_pad')"),
    (Pool("one", "average", (3, 2), (2, 2), (1, 0), (1, 0), "floor", True),
     "nn.AvgPool2d((3, 2), (2, 2), (1, 0), ceil_mode=False, count_include_pad=True)",
     "keras.layers.ZeroPadding2D(((1, 1), (0, 0)), data_format='channels_last', name='one_pad')"),
    (Pool("one", "max", (3, 3), (1, 1), (2, 0), (0, 0)),
     "nn.ConstantPad2d((0, 0, 2, 0), float('-inf'))", "LowestPadding(((2, 0), (0, 0)), name='one_pad')"),
])  # fmt: skip
def test_pools(layer: Pool, torch: str, keras: str) -> None:
    model = network(layer, Flatten("flatten"), Dense("out", 3))
    weights = weights_of(model)
    assert torch in constructors(export_torch(model, weights).source).values()
    assert keras in constructors(export_keras(model, weights).source).values()


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 9)])
def test_response_norm_within_a_channel(shape: tuple[int, ...]) -> None:
    norm = LocalResponseNorm("one", 3, 0.25, 0.75, 2.0, "within_channel")
    model = network(norm, Flatten("flatten"), Dense("out", 3), shape=shape)
    weights = weights_of(model)
    torch, keras = export_torch(model, weights).source, export_keras(model, weights).source
    assert constructors(torch)["one"] == f"SpatialResponseNorm({len(shape) - 1}, 3, alpha=0.25, beta=0.75, k=2.0)"
    assert constructors(keras)["one"] == "SpatialResponseNorm(3, alpha=0.25, beta=0.75, k=2.0, name='one')"
    assert "import torch\n" not in torch and torch.count("class SpatialResponseNorm") == 1
    assert 'CUSTOM_OBJECTS = {"SpatialResponseNorm": SpatialResponseNorm}' in keras
    assert "class LocalResponseNorm" not in keras


def test_names_that_pytorch_uses_itself() -> None:
    layers = Flatten("flatten"), Relu("train"), Dense("train_", 4), Dense("input", 3)
    model = network(*layers)
    assert {"train", "forward"} <= RESERVED
    weights = weights_of(model)
    assert list(constructors(export_torch(model, weights).source)) == ["flatten", "train__", "train_", "input"]
    keras = {"input_", "flatten", "train", "train_", "input"}
    assert set(constructors(export_keras(model, weights).source)) == keras


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(("layer", "words"), [
    (BatchNorm("one"), "'one' cannot be exported: its epsilon"),
    (LocalResponseNorm("one", 4, 0.1, 0.75, 1.0), "'one' cannot be exported: a window of an even number"),
    (Relu('x"), (os.remove("y")'), "cannot be exported: its name"),
])  # fmt: skip
def test_what_cannot_be_expressed_is_named(export: type, layer: Layer, words: str) -> None:
    model = network(layer, Flatten("flatten"), Dense("out", 3))
    with pytest.raises(CrosstrainError, match=words) as caught:
        export(model, weights_of(model))
    assert caught.value.reason == "INVALID_MODEL"


@pytest.mark.parametrize("export", EXPORTS)
def test_weights_that_do_not_fit(export: type) -> None:
    whole = weights_of(MODEL, "float64")
    cases = [
        ({name: value for name, value in whole.items() if "running" not in name}, "running_mean"),
        ({**whole, "out.bias": np.zeros(4)}, "out.bias"),
        ({**whole, "out.bias": np.full(3, 1e39)}, "out.bias.*float32"),
    ]
    for weights, words in cases:
        with pytest.raises(CrosstrainError, match=words) as caught:
            export(MODEL, weights)
        assert caught.value.reason == "INVALID_WEIGHTS"
    assert export(MODEL, whole).weights, "float64 is rounded"


@pytest.mark.parametrize("export", EXPORTS)
def test_equal_input_gives_equal_files(export: type) -> None:
    assert export(MODEL, weights_of(MODEL)) == export(MODEL, weights_of(MODEL))


@pytest.mark.parametrize("export", EXPORTS)
def test_a_hostile_model_name_stays_in_the_docstring(export: type) -> None:
    model = Model('a"""\nimport os', MODEL.input_shape, 3, MODEL.layers)
    source = export(model, weights_of(MODEL)).source
    assert ast.get_docstring(ast.parse(source)) and "import os" not in source
