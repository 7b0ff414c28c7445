"""Comparing an engine with the float64 reference engine, value by value, through probes."""

import importlib

import numpy as np

import crosstrain_tensorflow
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import model as plain
from crosstrain_service.engine import Batch
from crosstrain_service.model import Model
from crosstrain_service.probe import record_steps
from crosstrain_service.training import Execution, Rule, Training

#: Every update rule with constants that tell the places of epsilon apart.
RULES = {
    "sgd": Rule("sgd", momentum=0.0, nesterov=False),
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "nesterov": Rule("sgd", momentum=0.9, nesterov=True),
    "rmsprop": Rule("rmsprop", rho=0.9, epsilon=1e-3),
    "adagrad": Rule("adagrad", epsilon=1e-3, initial_accumulator=0.1),
    "adam": Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-3),
    "adadelta": Rule("adadelta", rho=0.9, epsilon=1e-3),
}


def engine_class(name):
    module, attribute = crosstrain_tensorflow.ENGINES[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def training(rule, rates=(0.05,) * 8, **settings):
    return Training(1, 8, 5, rule, np.array(rates, np.float64), **settings)


def parameters(model, seed=3):
    """Random values for every parameter, float32, none of them special."""
    random = np.random.RandomState(seed)
    shapes = model.parameter_shapes()
    values = {name: random.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    return {name: (v + 1 if name.endswith("gamma") else v).astype(np.float32) for name, v in values.items()}


def build(kind, model, settings, **execution):
    engine = kind(model, settings, Execution(**execution))
    engine.load_parameters(parameters(model))
    return engine


def cast(batch, precision):
    masks = {name: mask.astype(precision) for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x.astype(precision), batch.labels, batch.learning_rate, masks)


def chain(*layers, input_shape, dense=True):
    """A network around ``layers``: before them a 1x1 convolution without bias, so that blanks stay 0."""
    dims = len(input_shape) - 1
    one, zero = (1,) * dims, (0,) * dims
    first = plain.Convolution("first", 3, one, one, zero, zero, bias=False)
    last = (plain.Flatten("flatten"), plain.Dense("last", 4)) if dense else ()
    return Model("chain", tuple(input_shape), 4, (first,) + layers + last).validate()


def assert_like_reference(kind, model, settings, batches, tolerance, precision="float64"):
    """Every value of every step within ``tolerance``, relative to the largest of its tensor.

    Gradients of parameters, and optimizer state with them, count relative to the largest of their kind, since a
    sum may cancel (a bias before a norm).
    """
    wanted = {batch.step for batch in batches}
    engine = build(kind, model, settings, precision=precision)
    reference = build(ReferenceEngine, model, settings, precision="float64")
    ours = record_steps(engine, [cast(batch, precision) for batch in batches], wanted)
    theirs = record_steps(reference, [cast(batch, "float64") for batch in batches], wanted)
    steps = 0
    for (step, record), (_, expected) in zip(ours, theirs):
        assert set(record) == set(expected), step
        largest = {}
        for name, value in expected.items():
            largest[_group(name)] = max(np.abs(value).max(), largest.get(_group(name), 1e-3))
        for name, value in expected.items():
            found = record[name]
            assert found.shape == value.shape, (step, name)
            error = np.abs(found - value).max() if value.size else 0.0
            assert error <= tolerance * largest[_group(name)], (step, name, error)
        steps += 1
    assert steps == len(batches)


def _group(name):
    prefix = name.split("/")[0]
    if prefix == "gradient":
        return prefix
    return (prefix, name.rsplit(".", 1)[1]) if prefix.startswith("state") else name
