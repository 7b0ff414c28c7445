"""Exported sources in the real PyTorch and TensorFlow: the reference's logits, and the canonical arrays back."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from crosstrain.compare.numerics.bounds import network_of
from crosstrain.exchange.caffe import import_caffe
from crosstrain.exchange.caffe_export import export_caffe
from crosstrain.exchange.exporting import Export
from crosstrain.exchange.keras_export import export_keras
from crosstrain.exchange.torch_export import RESERVED, export_torch
from crosstrain.launch.environments import Unavailable
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
from tests.support import catalogue

Arrays = dict[str, np.ndarray]
#: Relative to the largest logit; float32 rounding of these small networks is below 1e-6.
ROUNDING = 1e-5
KERAS_VERSIONS = {"tensorflow-2.12": "2", "tensorflow-2.21": "3"}

#: Loads every network of the folder; its logits and arrays go into npz files. No module of Crosstrain is in sight.
TORCH = '''
import importlib.util, json, sys
import numpy as np
import torch

torch.set_num_threads(1)
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("network", folder + "/network.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network = module.load()
    assert not network.training
    with torch.no_grad():
        logits = network(torch.from_numpy(np.load(folder + "/input.npy")))
    state = {"state/" + name: value for name, value in network.state_dict().items()}
    np.savez(folder + "/found.npz", logits=logits, **state)
print(json.dumps([name for name in dir(torch.nn.Sequential()) if not name.startswith("_")]))
assert not [name for name in sys.modules if name.startswith("crosstrain")]
'''
KERAS = '''
import importlib.util, json, os, sys
import numpy as np
import tensorflow as tf
from tensorflow import keras

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
for folder in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("network", folder + "/network.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.load()
    x = np.ascontiguousarray(np.moveaxis(np.load(folder + "/input.npy"), 1, -1))
    assert x.shape[1:] == module.INPUT_SHAPE
    arrays = {}
    for layer in model.layers:
        for index, value in enumerate(layer.get_weights()):
            arrays["state/" + layer.name + "/" + module.PARTS[layer.name][index]] = value
    logits = np.array(model(x, training=False))
    # As Keras itself stores it.
    model.save(folder + "/saved.keras")
    custom = getattr(module, "CUSTOM_OBJECTS", None)
    again = keras.models.load_model(folder + "/saved.keras", custom_objects=custom, compile=False)
    np.testing.assert_array_equal(np.array(again(x, training=False)), logits)
    np.savez(folder + "/found.npz", logits=logits, **arrays)
print(json.dumps(keras.__version__))
assert not [name for name in sys.modules if name.startswith("crosstrain")]
'''


def flat(name: str, kind: str, kernel: int, *others: object) -> Pool:
    """A pool over one dimension."""
    stride, begin, end = others[:3]
    return Pool(name, kind, (kernel,), (stride,), (begin,), (end,), *others[3:])  # type: ignore[arg-type]


def networks() -> dict[str, Model]:
    """Every kind of layer, in forms that the frameworks have no single operation for."""
    conv = Convolution("conv", 6, (3, 2), (1, 2), (0, 1), (2, 0))
    lrn = LocalResponseNorm("lrn", 3, 0.3, 0.75, 1.5)
    head: tuple[Layer, ...] = (Flatten("flatten"), Relu("relu_flat"), Dropout("drop", 0.4), Dense("dense", 7))
    tail: tuple[Layer, ...] = (BatchNorm("norm_flat", 1e-3), Dense("out", 4, False))
    pools = {
        "max": Pool("pool", "max", (3, 2), (2, 2), (0, 0), (0, 0), "ceil"),
        "max_uneven": Pool("pool", "max", (3, 3), (2, 1), (2, 0), (0, 1)),
        "average_same": Pool("pool", "average", (3, 3), (1, 1), (1, 1), (1, 1)),
        "average": Pool("pool", "average", (3, 3), (2, 2), (1, 1), (1, 1), "ceil", True),
        "average_uneven": Pool("pool", "average", (3, 2), (2, 1), (0, 1), (2, 0), "ceil"),
        "average_counting": Pool("pool", "average", (4, 3), (3, 2), (1, 0), (3, 1), "ceil", True),
    }
    found = {
        name: Model(name, (3, 9, 8), 4, (conv, BatchNorm("norm", 1e-3, 0.9), Relu("relu"), lrn, pool, *head, *tail))
        for name, pool in pools.items()
    }
    pad = Pad("pad", (1, 0), (0, 2))
    found["flatten_before_norm"] = Model("other", (3, 5, 4), 4, (pad, Flatten("flatten"), *tail))
    within = LocalResponseNorm("within", 3, 0.3, 0.75, 1.5, "within_channel")
    found["within_channel"] = Model("within", (3, 9, 8), 4, (conv, lrn, within, pools["max"], *head, Dense("out", 4)))
    # Without a ReLU, behind or before which zeros would do for minus infinity.
    found["max_negative"] = Model("max", (3, 9, 8), 4, (pools["max_uneven"], Flatten("flatten"), Dense("dense", 4)))
    # Names that PyTorch or Keras use themselves.
    own = Flatten("forward"), Dense("input", 4), Relu("train"), Dense("type", 3)
    found["names"] = Model("names", (2, 3, 2), 3, own)
    line: list[Layer] = [
        Pad("pad", (0,), (1,)), Convolution("conv", 5, (3,), (1,), (2,), (0,)), BatchNorm("norm", 1e-4), lrn,
        LocalResponseNorm("within", 5, 0.3, 0.75, 1.5, "within_channel"),
        flat("one", "max", 3, 2, 2, 0), flat("two", "average", 2, 2, 1, 0, "ceil"), *head, *tail,
    ]  # fmt: skip
    found["one_dimension"] = Model("line", (2, 17), 4, tuple(line))
    return {name: model.validate() for name, model in found.items()}


LENET = """
name: "LeNet"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 1 dim: 28 dim: 28 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "c1" convolution_param { num_output: 8 kernel_size: 5 } }
layer { name: "pool1" type: "Pooling" bottom: "c1" top: "p1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "norm1" type: "LRN" bottom: "p1" top: "n1" lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 } }
layer { name: "conv2" type: "Convolution" bottom: "n1" top: "c2"
  convolution_param { num_output: 12 kernel_h: 5 kernel_w: 3 pad_h: 0 pad_w: 1 } }
layer { name: "bn" type: "BatchNorm" bottom: "c2" top: "c2" }
layer { name: "scale" type: "Scale" bottom: "c2" top: "c2" scale_param { bias_term: true } }
layer { name: "pool2" type: "Pooling" bottom: "c2" top: "p2"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "ip1" type: "InnerProduct" bottom: "p2" top: "i1" inner_product_param { num_output: 20 } }
layer { name: "relu1" type: "ReLU" bottom: "i1" top: "i1" }
layer { name: "drop" type: "Dropout" bottom: "i1" top: "i1" }
layer { name: "ip2" type: "InnerProduct" bottom: "i1" top: "i2" inner_product_param { num_output: 10 } }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 5'


class Case(NamedTuple):
    """A network, canonical arrays, samples, and the reference's logits in float64."""

    model: Model
    arrays: Arrays
    x: np.ndarray
    logits: np.ndarray


def arrays_of(model: Model) -> Arrays:
    random = np.random.RandomState(1)
    arrays = {}
    for name, shape in {**model.parameter_shapes(), **model.statistics_shapes()}.items():
        low = 0.5 if name.endswith(("gamma", "running_var")) else -0.5
        arrays[name] = random.uniform(low, low + 1, shape).astype(np.float32)
    return arrays


def case_of(model: Model, arrays: Arrays) -> Case:
    x = np.random.RandomState(2).uniform(-1, 1, (5, *model.input_shape)).astype(np.float32)
    wide = {name: value.astype(np.float64) for name, value in arrays.items()}
    norms = [layer.name for layer in model.layers_of(BatchNorm)]
    statistics = {name: (wide[f"{name}.running_mean"], wide[f"{name}.running_var"]) for name in norms}
    done = network_of(model).forward(x.astype(np.float64), wide, train=False, statistics=statistics)
    return Case(model, arrays, x, done.outputs[model.layers[-1].name])


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    found = {name: case_of(model, arrays_of(model)) for name, model in networks().items()}
    lenet = import_caffe(LENET, SOLVER).model
    text, data = export_caffe(lenet, arrays_of(lenet))
    imported = import_caffe(text, SOLVER, data)
    assert imported.weights is not None
    found["lenet"] = case_of(imported.model, imported.weights)
    return found


def run(
    service: str, folder: Path, script: str, exports: dict[str, Export], weights: str, cases: dict[str, Case]
) -> object:
    """Loads all exports in one process of a service's environment; returns what it printed."""
    environment = catalogue.environment(service)
    if isinstance(environment, Unavailable):
        pytest.skip(f"{service}: {environment.reason}; to fix it: {environment.remedy}")
    folders = []
    for name, export in exports.items():
        place = folder / name
        place.mkdir()
        (place / "network.py").write_text(export.source)
        (place / weights).write_bytes(export.weights)
        np.save(place / "input.npy", cases[name].x)
        folders.append(str(place))
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables = {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [str(environment.python), "-c", script, *folders]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def found_in(folder: Path) -> tuple[np.ndarray, Arrays]:
    """Logits and the framework's arrays."""
    with np.load(folder / "found.npz", allow_pickle=False) as held:
        return held["logits"], {name.removeprefix("state/"): held[name] for name in held if name != "logits"}


def check_logits(name: str, case: Case, logits: np.ndarray) -> None:
    assert logits.dtype == np.float32 and logits.shape == case.logits.shape
    gap = np.abs(logits - case.logits).max() / np.abs(case.logits).max()
    assert gap <= ROUNDING, f"{name}: {gap}"


@pytest.mark.timeout(300)
def test_pytorch(cases: dict[str, Case], tmp_path: Path) -> None:
    exports = {name: export_torch(case.model, case.arrays, 255.0) for name, case in cases.items()}
    attributes = run("torch", tmp_path, TORCH, exports, "weights.safetensors", cases)
    assert isinstance(attributes, list) and set(attributes) <= RESERVED
    for name, case in cases.items():
        logits, state = found_in(tmp_path / name)
        check_logits(name, case, logits)
        # Layers in order; of each the weight, bias, mean and variance.
        held = [value for key, value in state.items() if not key.endswith("num_batches_tracked")]
        back = dict(zip(in_order(case.model), held, strict=True))
        assert back.keys() == case.arrays.keys()
        for key, value in case.arrays.items():
            assert back[key].tobytes() == value.tobytes(), f"{name}: {key}"


def in_order(model: Model) -> list[str]:
    """Names of all arrays, those of a layer together."""
    every = [*model.parameter_shapes(), *model.statistics_shapes()]
    return [name for layer in model.layers for name in every if name.rsplit(".", 1)[0] == layer.name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", list(KERAS_VERSIONS))
def test_keras(service: str, cases: dict[str, Case], tmp_path: Path) -> None:
    exports = {name: export_keras(case.model, case.arrays) for name, case in cases.items()}
    version = run(service, tmp_path, KERAS, exports, "weights.npz", cases)
    assert isinstance(version, str) and version[0] == KERAS_VERSIONS[service]
    for name, case in cases.items():
        logits, state = found_in(tmp_path / name)
        check_logits(name, case, logits)
        assert len(state) == len(case.arrays)
        for key, value in case.arrays.items():
            assert canonical(case.model, key, state).tobytes() == value.tobytes(), f"{name}: {key}"


def canonical(model: Model, key: str, state: Arrays) -> np.ndarray:
    """A canonical array from Keras's, element by element as their indices say."""
    layer, part = key.rsplit(".", 1)
    if part != "weight":
        named = {"running_mean": "moving_mean", "running_var": "moving_variance"}
        return state[f"{layer}/{named.get(part, part)}"]
    kernel = state[f"{layer}/kernel"]
    if kernel.ndim == 4:
        return np.ascontiguousarray(np.einsum("hwio->oihw", kernel))
    if kernel.ndim == 3:
        return np.ascontiguousarray(np.einsum("lio->oil", kernel))
    before = list(model.layers[: [item.name for item in model.layers].index(layer)])
    if any(isinstance(item, (Dense, BatchNorm)) for item in before[_flatten(before):]):
        return np.ascontiguousarray(kernel.T)
    # The number that a value has channels first, at each place channels last.
    shape = model.input_shapes()[before[_flatten(before)].name]
    order = np.moveaxis(np.arange(len(kernel)).reshape(shape), 0, -1).reshape(-1)
    weight = np.empty(kernel.shape[::-1], np.float32)
    weight[:, order] = kernel.T
    return weight


def _flatten(layers: list[Layer]) -> int:
    return next(index for index, layer in enumerate(layers) if isinstance(layer, Flatten))
