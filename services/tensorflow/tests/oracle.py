"""Comparing an engine with the float64 reference engine, value by value, through probes."""

import importlib

import crosstrain_tensorflow
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import model as plain
from crosstrain_service import testing
from crosstrain_service.engine import Batch
from crosstrain_service.testing import RULES, build, cast, parameters, single
from crosstrain_service.training import Execution

__all__ = ["RULES", "Batch", "Execution", "assert_like_reference", "build", "cast", "engine_class", "parameters",
           "plain", "single", "training"]


def engine_class(name):
    module, attribute = crosstrain_tensorflow.ENGINES[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def training(rule, rates=(0.05,) * 8, **settings):
    return testing.training(rule, rates, seed=5, **settings)


def assert_like_reference(kind, model, settings, batches, tolerance, precision="float64"):
    """Every value of every step within ``tolerance``, relative to the largest of its tensor.

    Gradients of parameters, and optimizer state with them, count relative to the largest of their kind, since a
    sum may cancel (a bias before a norm).
    """
    reference = build(ReferenceEngine, model, settings, precision="float64")
    engine = build(kind, model, settings, precision=precision)
    testing.assert_steps_equal(engine, reference, batches, tolerance, precision, scale_of=_group)


def _group(name):
    prefix = name.split("/")[0]
    if prefix == "gradient":
        return prefix
    return "%s/%s" % (prefix, name.rsplit(".", 1)[1]) if prefix.startswith("state") else name
