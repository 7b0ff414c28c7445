"""Engines, models and comparisons for the tests."""

import importlib

import numpy as np

from crosstrain_keras_theano import ENGINES
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import probe, testing, weights
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
from crosstrain_service.training import Execution, Rule, Training

NAMES = sorted(ENGINES)
SGD = Rule("sgd", momentum=0.9, nesterov=False)


def engine_class(name):
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def training(rule=SGD, steps=6, **settings):
    return Training(1, 4, 3, rule, np.full(steps, 0.05), **settings)


def build(name, model, settings=None, parameters=None, **execution):
    """An engine (or the reference) holding ``parameters``, or the initial ones."""
    kind = ReferenceEngine if name == "reference" else engine_class(name)
    execution.setdefault("precision", "float64")
    engine = kind(model, settings or training(), Execution(**execution))
    engine.load_parameters(parameters or weights.initial_parameters(model, 0))
    return engine


def batches(model, count=4, size=4, last=3, rates=(0.05, 0.05, 0.01), dtype=np.float64):
    """Batches with blank borders and many exact zeros; the last one is smaller and the learning rate changes."""
    found = []
    for batch in testing.make_batches(model, count, size, seed=5):
        rows = last if batch.step == count - 1 else size
        masks = {name: mask[:rows].astype(dtype) for name, mask in batch.masks.items()}
        rate = rates[min(batch.step, len(rates) - 1)]
        found.append(Batch(batch.step, batch.x[:rows].astype(dtype), batch.labels[:rows], rate, masks))
    return found


def train(engine, steps):
    loop = testing.ListLoop(steps)
    engine.train(loop)
    return loop.losses


def assert_same(name, model, settings, steps, tolerance=1e-10, parameters=None):
    """Asserts that an engine computes in every step what the reference computes, layer by layer."""
    engine, reference = (build(kind, model, settings, parameters) for kind in (name, "reference"))
    every = range(len(steps))
    pairs = zip(probe.record_steps(engine, steps, every), probe.record_steps(reference, steps, every))
    for (step, found), (_, expected) in pairs:
        assert set(found) == set(expected)
        for key, value in expected.items():
            assert found[key].shape == value.shape, key
            scale = max(1.0, float(np.abs(value).max()))
            difference = float(np.abs(found[key] - value).max())
            assert difference <= tolerance * scale, "step %d, %s: %g" % (step, key, difference)
    return engine, reference


def tiny(input_shape=(1, 6, 6)):
    """One convolution, ReLU, pooling and two dense layers."""
    return testing.cnn2(input_shape, classes=3, channels=(2,), units=4)


def everything_2d():
    """Every layer, with odd sizes, strides, padding that differs before and after, and rounding up."""
    layers = (
        Pad("pad", (0, 1), (1, 0)),
        Convolution("conv1", 4, (3, 2), (2, 1), (1, 0), (2, 1)),
        BatchNorm("bn1", 1e-3),
        Relu("relu1"),
        Pool("max1", "max", (3, 2), (2, 1), (1, 0), (0, 1), "ceil"),
        LocalResponseNorm("lrn", 3, 0.2, 0.75, 1.5),
        LocalResponseNorm("within", 3, 0.2, 0.75, 1.5, "within_channel"),
        Pool("included", "average", (2, 3), (1, 2), (1, 1), (0, 2), "ceil", True),
        Pool("excluded", "average", (2, 2), (1, 1), (1, 1), (1, 1), "floor", False),
        Convolution("conv2", 3, (3, 3), (1, 1), (1, 1), (1, 1), bias=False),
        Relu("relu2"),
        Pool("max2", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        Pool("plain", "average", (2, 1), (1, 1), (0, 0), (0, 0)),
        Flatten("flatten"),
        Dropout("dropout", 0.5),
        Dense("dense1", 5, bias=False),
        BatchNorm("bn2", 1e-5),
        Relu("relu3"),
        Dense("dense2", 3),
    )
    return Model("everything", (2, 11, 8), 3, layers).validate()


def everything_1d():
    """The same over (C, L)."""
    layers = (
        Convolution("conv1", 3, (4,), (1,), (1,), (2,)),
        BatchNorm("bn", 1e-3),
        Relu("relu1"),
        Pool("max1", "max", (3,), (2,), (1,), (1,)),
        LocalResponseNorm("lrn", 3, 0.2, 0.5, 1.0),
        LocalResponseNorm("within", 5, 0.2, 0.5, 1.0, "within_channel"),
        Convolution("conv2", 2, (3,), (2,), (1,), (1,)),
        Relu("relu2"),
        Pool("average", "average", (2,), (1,), (1,), (0,), "floor", False),
        Pad("pad", (1,), (0,)),
        Pool("max2", "max", (2,), (2,), (0,), (0,), "ceil"),
        Flatten("flatten"),
        Dense("dense", 3),
    )
    return Model("series", (2, 13), 3, layers).validate()
