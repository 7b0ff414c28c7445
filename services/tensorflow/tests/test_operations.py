"""Every layer forward and backward against the reference, on inputs with blanks, ties and odd sizes."""

import numpy as np
import oracle
import pytest

from crosstrain_service.engine import Batch
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
)
from crosstrain_service.testing import make_batches


def pool(name, kind, kernel, stride, begin, end, round_mode="floor", include=False):
    return Pool(name, kind, kernel, stride, begin, end, round_mode, include)


# Every value inside the networks is compared, so that several layers can share one.
CHAINS = {
    "convolutions": oracle.single(
        Convolution("strided", 4, (3, 2), (2, 1), (0, 1), (1, 0)), Relu("relu1"),
        Convolution("symmetric", 3, (3, 3), (2, 2), (1, 1), (1, 1)), Relu("relu2"),
        Convolution("wide", 4, (2, 2), (1, 2), (3, 2), (3, 2), bias=False), input_shape=(2, 9, 8)),
    "max pools, ties": oracle.single(
        pool("whole", "max", (2, 2), (2, 2), (0, 0), (0, 0)), input_shape=(2, 9, 8)),
    "max pools, padded": oracle.single(
        Relu("relu"), pool("padded", "max", (3, 3), (2, 2), (1, 1), (1, 1)),
        pool("asymmetric", "max", (3, 2), (1, 1), (0, 1), (2, 0)), input_shape=(2, 9, 8)),
    "max pools, ceil": oracle.single(
        Relu("relu"), pool("overlapping", "max", (3, 3), (2, 2), (0, 0), (0, 0), "ceil"),
        pool("asymmetric", "max", (3, 3), (2, 3), (0, 2), (2, 1), "ceil"), input_shape=(2, 12, 10)),
    "max pools, padding beyond half, strides beyond the kernel": oracle.single(
        Relu("relu"), pool("beyond", "max", (3, 3), (1, 2), (2, 2), (2, 2)),
        pool("jumping", "max", (2, 2), (3, 5), (0, 0), (0, 1), "ceil"), input_shape=(2, 9, 8)),
    "average pools, padding counted": oracle.single(
        pool("plain", "average", (2, 2), (1, 1), (0, 0), (0, 0)),
        pool("padded", "average", (3, 3), (2, 2), (1, 1), (1, 1), "ceil", True),
        pool("asymmetric", "average", (3, 2), (2, 2), (0, 1), (1, 0), "floor", True), input_shape=(2, 12, 9)),
    "average pools, padding not counted": oracle.single(
        pool("ceil", "average", (2, 3), (2, 2), (0, 0), (0, 0), "ceil"),
        pool("padded", "average", (3, 3), (1, 1), (1, 1), (1, 1), "floor", False),
        pool("asymmetric", "average", (3, 3), (2, 3), (0, 2), (2, 1), "ceil", False), input_shape=(2, 12, 9)),
    "norms": oracle.single(
        BatchNorm("norm", 1e-5), Relu("relu"), LocalResponseNorm("narrow", 3, 0.2, 0.75, 2.0),
        LocalResponseNorm("wide", 7, 0.2, 0.5, 1.0), input_shape=(2, 5, 4)),
    "norms within channels": oracle.single(
        LocalResponseNorm("narrow", 3, 0.2, 0.75, 2.0, "within_channel"), Relu("relu"),
        LocalResponseNorm("wide", 11, 0.2, 0.5, 1.0, "within_channel"), input_shape=(2, 5, 4)),
    "pads and masks": oracle.single(
        Pad("pad", (0, 2), (1, 0)), Dropout("drop1", 0.3), Convolution("inner", 2, (2, 3), (1, 1), (0, 0), (0, 0)),
        Flatten("early"), Dropout("drop2", 0.4), Dense("dense", 5, bias=False), BatchNorm("norm", 1e-3),
        Dropout("none", 0.0), Dense("logits", 4), input_shape=(2, 5, 4), dense=False),
    "first layer without parameters": Model("bare", (2, 6, 4), 3, (
        pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0)), Pad("pad", (1, 1), (0, 0)), Flatten("flatten"),
        Relu("relu"), Dense("dense", 3, bias=False))).validate(),
    "no dense layer": Model("convolutional", (2, 3, 4), 6, (
        Convolution("conv", 3, (2, 3), (1, 1), (0, 0), (0, 0)), Relu("relu"), pool(
            "pool", "average", (2, 1), (1, 1), (0, 0), (0, 0)), Flatten("flatten"))).validate(),
    "rows": oracle.single(
        Convolution("conv", 4, (3,), (2,), (0,), (1,)), Relu("relu"), BatchNorm("norm", 1e-3),
        pool("max", "max", (3,), (2,), (1,), (0,), "ceil"), LocalResponseNorm("lrn", 3, 0.2, 0.75, 2.0),
        LocalResponseNorm("within", 3, 0.2, 0.75, 2.0, "within_channel"), Pad("pad", (2,), (1,)),
        pool("average", "average", (4,), (3,), (0,), (2,), "ceil", False), Dropout("drop", 0.5), input_shape=(2, 23)),
}
SETTINGS = oracle.training(oracle.RULES["momentum"])


@pytest.mark.parametrize("name", CHAINS)
def test_chain_in_float64(kind, name):
    model = CHAINS[name]
    oracle.assert_like_reference(kind, model, SETTINGS, make_batches(model, 2, 4), 1e-11)


@pytest.mark.parametrize("name", [
    "convolutions", "max pools, padded", "norms", "norms within channels", "pads and masks", "rows"])
def test_chain_in_float32(kind, name):
    model = CHAINS[name]
    oracle.assert_like_reference(kind, model, SETTINGS, make_batches(model, 2, 4), 3e-5, "float32")


def test_gradients_at_ties_and_zeros(kind):
    """A blank image: every window ties and every ReLU input is exactly 0; then rows that tie at 2."""
    layers = (
        Convolution("conv", 1, (1, 1), (1, 1), (0, 0), (0, 0), bias=False),
        Relu("relu"), pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0)), Flatten("flatten"), Dense("dense", 2))
    model = Model("ties", (1, 4, 4), 2, layers).validate()
    for precision in ("float32", "float64"):
        engine = kind(model, SETTINGS, oracle.Execution(precision=precision))
        ones = {name: np.ones(shape, precision) for name, shape in model.parameter_shapes().items()}
        ones["dense.weight"][1] = [2, 3, 4, 5]
        engine.load_parameters(ones)
        x = np.zeros((2, 1, 4, 4), precision)
        x[1, 0] = [[1, 2, 2, 2], [2, 2, 2, 1], [-1, 0, 0, 0], [0, 0, 3, 3]]
        found = engine.intermediates(Batch(0, x, np.array([0, 0]), 0.1)).output_gradients
        pooled = found["pool"][:, 0]
        # The gradient of the pool's output lands on the first maximum alone ...
        where = np.zeros((2, 4, 4), bool)
        where[0, ::2, ::2] = True
        where[1][[0, 0, 2, 3], [1, 2, 0, 2]] = True
        assert ((found["relu"][:, 0] != 0) == where).all()
        np.testing.assert_array_equal(found["relu"][:, 0][where], pooled.reshape(-1))
        # ... and stops where the ReLU's input is not above 0.
        expected = np.where(x[:, 0] > 0, found["relu"][:, 0], 0)
        np.testing.assert_array_equal(found["conv"][:, 0], expected)


def test_loss_is_not_clipped(kind):
    model = Model("logits", (1, 1, 3), 3, (Flatten("flatten"), Dense("dense", 3))).validate()
    engine = kind(model, SETTINGS, oracle.Execution())
    engine.load_parameters({"dense.weight": np.eye(3, dtype=np.float32), "dense.bias": np.zeros(3, np.float32)})
    x = np.array([[-90, 0, 900]], np.float32).reshape(1, 1, 1, 3)
    found = engine.intermediates(Batch(0, x, np.array([0]), 0.1))
    assert found.loss == 990
    np.testing.assert_allclose(found.output_gradients["dense"], [[-1, 0, 1]], atol=1e-30)


def test_batch_statistics_and_evaluation(kind):
    """Like the reference's on the same network without dropout, which is off in both."""
    from crosstrain_reference.engine import ReferenceEngine

    model = CHAINS["pads and masks"]
    kept = tuple(layer for layer in model.layers if not isinstance(layer, Dropout))
    plain = Model("plain", model.input_shape, model.classes, kept).validate()
    batch = oracle.cast(make_batches(model, 1, 5)[0], "float64")
    engine = oracle.build(kind, model, SETTINGS, precision="float64")
    reference = oracle.build(ReferenceEngine, plain, SETTINGS, precision="float64")
    before = engine.state()
    found, expected = engine.batch_statistics(batch.x), reference.batch_statistics(batch.x)
    assert set(found) == set(expected) == {"norm"}
    for ours, theirs in zip(found["norm"], expected["norm"]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    for name, value in engine.state().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    statistics = {"norm.running_mean": expected["norm"][0], "norm.running_var": expected["norm"][1]}
    for each in (engine, reference):
        each.load_statistics(statistics)
    np.testing.assert_allclose(engine.predict(batch.x), reference.predict(batch.x), rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(engine.statistics()["norm.running_var"], expected["norm"][1])
