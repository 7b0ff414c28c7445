"""A network and weights that Caffe itself saved, imported and evaluated in Caffe, PyTorch and TensorFlow."""

from __future__ import annotations

import io
import os
import subprocess
from typing import NamedTuple

import numpy as np
import pytest

from crosstrain.compare.numerics.bounds import FLOAT32, Bounded, forward, network_of
from crosstrain.exchange.caffe import import_caffe
from crosstrain.launch.environments import Unavailable
from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service.convert import model_message
from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution
from tests.support import catalogue, messages
from tests.support.service import Service, ServiceUnavailable

#: The engine of each service that evaluates the network.
ENGINES = {
    "caffe": ("caffe",),
    "torch": ("torch",),
    "tensorflow-2.21": ("tensorflow", "keras-tensorflow"),
    "tensorflow-2.12": ("tensorflow",),
}
SAMPLES = 8
#: The bound carried through the layers takes all roundings to add up. Between float32 engines, relative to the largest
#: logit, at most 4e-7 was seen; a different operation shows from 1e-3 on.
MEASURED = 5e-6
NET = """
name: "imported"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 3 dim: 20 dim: 18 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "c1"
  convolution_param { num_output: 8 kernel_h: 5 kernel_w: 3 stride: 1 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "pool1" type: "Pooling" bottom: "c1" top: "p1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "norm1" type: "LRN" bottom: "p1" top: "n1" lrn_param { local_size: 5 alpha: 0.5 beta: 0.75 } }
layer { name: "conv2" type: "Convolution" bottom: "n1" top: "c2"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "c2" top: "c2" }
layer { name: "scale" type: "Scale" bottom: "c2" top: "c2"
  scale_param { bias_term: true filler { type: "uniform" min: 0.5 max: 1.5 } bias_filler { type: "uniform" } } }
layer { name: "pool2" type: "Pooling" bottom: "c2" top: "p2"
  pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "p2" top: "i1"
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "relu2" type: "ReLU" bottom: "i1" top: "i1" }
layer { name: "drop" type: "Dropout" bottom: "i1" top: "i1" }
layer { name: "ip2" type: "InnerProduct" bottom: "i1" top: "i2"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 5'
#: A user's script: statistics from some batches in the training phase, then the saved file and logits of a test pass.
CAFFE = """
import sys
import caffe, numpy as np
folder = sys.argv[1]
x = np.load(folder + "/input.npy")
caffe.set_random_seed(7)
net = caffe.Net(folder + "/net.prototxt", caffe.TRAIN)
random = np.random.RandomState(3)
for _ in range(20):
    net.blobs["data"].data[...] = random.uniform(0, 1, x.shape)
    net.forward()
net.save(folder + "/net.caffemodel")
test = caffe.Net(folder + "/net.prototxt", folder + "/net.caffemodel", caffe.TEST)
test.blobs["data"].data[...] = x
np.save(folder + "/logits.npy", test.forward()["i2"])
"""


class Imported(NamedTuple):
    """What was imported, the samples, Caffe's own logits, and the reference's with their rounding bound."""

    model: Model
    weights: dict[str, np.ndarray]
    x: np.ndarray
    plain: np.ndarray
    wanted: Bounded


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    environment = catalogue.environment("caffe")
    if isinstance(environment, Unavailable):
        pytest.skip(f"caffe: {environment.reason}; to fix it: {environment.remedy}")
    folder = tmp_path_factory.mktemp("imported")
    (folder / "net.prototxt").write_text(NET)
    x = np.random.RandomState(5).randint(0, 2, (SAMPLES, 3, 20, 18)).astype(np.float32)
    x *= np.random.RandomState(6).uniform(0, 1, x.shape).astype(np.float32)
    np.save(folder / "input.npy", x)
    variables = {**os.environ, **environment.variables(), "GLOG_minloglevel": "2", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [str(environment.python), "-c", CAFFE, str(folder)], env=variables, check=True, timeout=120, capture_output=True
    )
    found = import_caffe(NET, SOLVER, (folder / "net.caffemodel").read_bytes())
    assert found.weights is not None
    wanted = reference(found.model, found.weights, x)
    return Imported(found.model, found.weights, x, np.load(folder / "logits.npy"), wanted)


def reference(model: Model, weights: dict[str, np.ndarray], x: np.ndarray) -> Bounded:
    """Logits in float64, with a bound of float32 rounding carried through the network."""
    wide = {name: FLOAT32.wide(value) for name, value in weights.items()}
    norms = [layer.name for layer in model.layers_of(BatchNorm)]
    statistics = {name: (wide[f"{name}.running_mean"], wide[f"{name}.running_var"]) for name in norms}
    value = Bounded(FLOAT32.wide(x))
    for layer in network_of(model).layers:
        value = forward(layer, value, wide, FLOAT32, train=False, statistics=statistics.get(layer.name)).output
    return value


def test_the_reference_agrees_with_plain_caffe(imported: Imported) -> None:
    assert np.all(np.abs(imported.plain - imported.wanted.value) <= imported.wanted.error)
    # The bound is worth something, and the samples are told apart.
    spread = np.ptp(imported.wanted.value, axis=0).min()
    assert imported.wanted.error.max() < 1e-2 * spread


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(ENGINES))
def test_engines_give_the_logits_of_plain_caffe(imported: Imported, name: str) -> None:
    try:
        started = Service(name)
    except ServiceUnavailable as reason:
        pytest.skip(str(reason))
    with started as service:
        data = messages.dataset(service, imported.x, np.zeros(SAMPLES, np.int64), imported.model, 1.0)
        digest = service.upload_tensors(imported.weights)
        for engine in ENGINES[name]:
            request = service_pb2.EvaluateRequest(
                run_id=f"imported-{engine}", engine=engine,
                spec=run_pb2.EvaluateSpec(
                    model=model_message(imported.model), test=data, weights_digests=[digest],
                    execution=messages.execution(Execution()),
                ),
            )  # fmt: skip
            service.training.Evaluate(request, timeout=60)
            events = service.finish(request.run_id, 200)
            (done,) = [event.evaluated for event in events if event.WhichOneof("event") == "evaluated"]
            logits = np.load(io.BytesIO(service.download(done.logits_digest)), allow_pickle=False)
            ratio = np.abs(logits - imported.wanted.value) / imported.wanted.error
            assert ratio.max() <= 1, f"{engine}: {ratio.max()} of the bound"
            gap = np.abs(logits - imported.plain).max() / np.abs(imported.plain).max()
            assert gap <= MEASURED, f"{engine}: {gap} of the largest logit"
            np.testing.assert_array_equal(logits.argmax(axis=1), imported.plain.argmax(axis=1))
