"""Loss and accuracy in float64, and batch norm statistics of the whole training set."""

import numpy as np
import pytest

from crosstrain_service import evaluation
from crosstrain_service.model import BatchNorm, Convolution, Dense, Flatten, Model

MODEL = Model("norms", (2, 4, 4), 2, (
    BatchNorm("norm", 1e-3), Convolution("conv", 1, (4, 4), (1, 1), (0, 0), (0, 0)), Flatten("flat"),
    BatchNorm("features", 1e-3), Dense("dense", 2))).validate()


class Rows:
    """A data set in memory."""

    def __init__(self, pixels):
        self.pixels = pixels

    def inputs(self, rows):
        return self.pixels[rows]


class Engine:
    """Batch norm statistics of the input by channel and of one feature per sample; remembers batch sizes."""

    def __init__(self):
        self.sizes = []

    def batch_statistics(self, x):
        self.sizes.append(len(x))
        feature = x.sum(axis=(1, 2, 3))
        return {"norm": (x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))),
                "features": (feature.mean(keepdims=True), feature.var(keepdims=True))}

    def predict(self, x):
        self.sizes.append(len(x))
        return x.reshape(len(x), -1)[:, :2]


@pytest.mark.parametrize("batch", [1, 4, 7, 20])
def test_statistics_are_those_of_all_rows_whatever_the_last_batch(batch):
    pixels = np.random.RandomState(0).randn(30, 2, 4, 4) * 3 + 5
    rows = np.arange(3, 26)
    engine = Engine()
    found = evaluation.population_statistics(engine, MODEL, Rows(pixels), rows, batch, np.float64)
    kept = pixels[rows]
    feature = kept.sum(axis=(1, 2, 3))
    np.testing.assert_allclose(found["norm.running_mean"], kept.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found["norm.running_var"], kept.var(axis=(0, 2, 3)), rtol=1e-10)
    np.testing.assert_allclose(found["features.running_mean"], [feature.mean()], rtol=1e-12)
    np.testing.assert_allclose(found["features.running_var"], [feature.var()], rtol=1e-10)
    assert sum(engine.sizes) == 23 and set(engine.sizes[:-1]) <= {batch}


def test_variance_is_never_negative_and_has_the_precision_of_the_run():
    pixels = np.full((8, 2, 4, 4), 1e4, np.float32)
    found = evaluation.population_statistics(Engine(), MODEL, Rows(pixels), np.arange(8), 3, np.float32)
    assert found["norm.running_var"].dtype == np.float32 and (found["norm.running_var"] >= 0).all()
    plain = Model("plain", (2, 4, 4), 32, (Flatten("flat"),)).validate()
    assert evaluation.population_statistics(Engine(), plain, Rows(pixels), np.arange(8), 3, np.float32) == {}


def test_loss_is_stable_and_equal_to_the_definition():
    logits = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    expected = -np.log(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))[[0, 1], [2, 1]]
    np.testing.assert_allclose(evaluation.cross_entropy(logits, np.array([2, 1])), expected, rtol=1e-14)
    huge = evaluation.cross_entropy(np.array([[1e4, -1e4]], np.float32), np.array([1]))
    assert huge.dtype == np.float64 and huge[0] == 2e4


def test_first_of_equal_maxima_counts():
    result = evaluation.score(np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0]]), np.array([0, 1, 1]))
    assert (result.correct, result.samples) == (2, 3)


def test_logits_come_in_the_order_of_the_rows():
    pixels = np.arange(10 * 32, dtype=np.float32).reshape(10, 2, 4, 4)
    engine, rows = Engine(), np.array([9, 0, 4, 4, 7])
    values = evaluation.logits(engine, Rows(pixels), rows, np.float32, 2)
    assert engine.sizes == [2, 2, 1] and (values == pixels.reshape(10, -1)[rows, :2]).all()
