"""PyTorch's engine and the float64 reference, with the same parameters."""

from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import testing
from crosstrain_service.testing import RULES, cast, parameters, single, training
from crosstrain_torch.engine import TorchEngine

__all__ = ["RULES", "assert_steps_equal", "cast", "engine", "parameters", "reference", "single", "training"]


def engine(model, settings, **execution):
    return testing.build(TorchEngine, model, settings, **execution)


def reference(model, settings):
    return testing.build(ReferenceEngine, model, settings, precision="float64")


def assert_steps_equal(built, model, settings, batches, tolerance):
    """Every value of every step within ``tolerance`` of the reference, relative to the tensor's largest."""
    precision = "float64" if tolerance < 1e-9 else "float32"
    testing.assert_steps_equal(built, reference(model, settings), batches, tolerance, precision)
