"""Caffe's engine and the float64 reference, with the same parameters."""

from crosstrain_caffe.engine import CaffeEngine
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import testing
from crosstrain_service.testing import RULES, parameters, single, training

__all__ = ["RULES", "assert_steps_equal", "engine", "parameters", "reference", "single", "training", "wide"]


def engine(model, settings, **execution):
    return testing.build(CaffeEngine, model, settings, **execution)


def reference(model, settings):
    return testing.build(ReferenceEngine, model, settings, precision="float64")


def wide(batch):
    return testing.cast(batch, "float64")


def assert_steps_equal(built, model, settings, batches, tolerance=2e-6):
    """Every value of every step within ``tolerance`` of the reference, relative to the tensor's largest or 0.01."""
    testing.assert_steps_equal(built, reference(model, settings), batches, tolerance, floor=1e-2)
