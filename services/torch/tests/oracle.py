"""PyTorch's engine and the float64 reference, with the same parameters."""

from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import testing
from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.testing import RULES, cast, parameters, single, training
from crosstrain_torch.engine import TorchEngine

__all__ = ["RULES", "assert_steps_equal", "cast", "engine", "everything", "parameters", "reference", "single",
           "training"]


def engine(model, settings, **execution):
    return testing.build(TorchEngine, model, settings, **execution)


def reference(model, settings):
    return testing.build(ReferenceEngine, model, settings, precision="float64")


def assert_steps_equal(built, model, settings, batches, tolerance):
    """Every value of every step within ``tolerance`` of the reference, relative to the tensor's largest."""
    precision = "float64" if tolerance < 1e-9 else "float32"
    testing.assert_steps_equal(built, reference(model, settings), batches, tolerance, precision)


def everything():
    """Convolution, batch norm, dropout: all that has state or randomness, or depends on other rows."""
    return Model("everything", (1, 8, 8), 4, (
        Convolution("conv1", 3, (3, 3), (1, 1), (1, 1), (1, 1)),
        BatchNorm("norm1", 1e-3), Relu("relu1"), Pool("pool1", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        Flatten("flatten"), Dense("dense1", 8), BatchNorm("norm2", 1e-3), Relu("relu2"),
        Dropout("dropout1", 0.5), Dense("dense2", 4),
    )).validate()  # fmt: skip
