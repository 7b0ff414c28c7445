import numpy as np
import pytest
from numeric import assert_close, numeric_gradient

from crosstrain_reference import (
    accuracy_count,
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_per_sample,
    softmax,
)


def test_gradient_and_mean(rng):
    logits, labels = rng.randn(5, 4), np.array([0, 3, 1, 1, 2])
    expected = [-np.log(np.exp(row[k]) / np.exp(row).sum()) for row, k in zip(logits, labels)]
    assert_close(cross_entropy_per_sample(logits, labels), np.array(expected), 1e-14)
    assert abs(cross_entropy(logits, labels) - np.mean(expected)) < 1e-15
    numeric = numeric_gradient(lambda v: np.array([cross_entropy(v, labels)]), logits, np.ones(1))
    assert_close(cross_entropy_gradient(logits, labels), numeric)
    assert_close(softmax(logits).sum(axis=1), np.ones(5), 1e-15)


def test_large_logits_are_not_clipped():
    logits, labels = np.array([[14.4, 50.1, 3.5]]), np.array([0])
    assert abs(cross_entropy(logits, labels) - 35.7) < 1e-12
    gradient = cross_entropy_gradient(logits, labels)
    assert_close(gradient, np.array([[-1.0, 1.0, 0.0]]), 1e-14)
    assert cross_entropy(np.array([[1000.0, -1000.0]]), np.array([1])) == 2000.0


def test_accuracy_takes_the_first_maximum():
    logits = np.array([[1.0, 1.0], [0.0, 2.0], [3.0, 1.0]])
    assert accuracy_count(logits, np.array([0, 1, 1])) == 2
    assert accuracy_count(logits, np.array([1, 1, 1])) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(dtype):
    logits, labels = np.ones((2, 3), dtype), np.array([0, 2], np.int32)
    for function in (cross_entropy, cross_entropy_gradient, cross_entropy_per_sample):
        assert function(logits, labels).dtype == dtype
    assert softmax(logits).dtype == dtype


def test_labels_are_checked():
    logits = np.zeros((3, 5))
    with pytest.raises(ValueError, match=r"row 1 has label 5, expected 0\.\.4"):
        cross_entropy(logits, np.array([0, 5, 7]))
    with pytest.raises(ValueError, match="row 2 has label -1"):
        cross_entropy_gradient(logits, np.array([0, 1, -1]))
    with pytest.raises(ValueError, match="labels have type float64"):
        cross_entropy(logits, np.zeros(3))
    with pytest.raises(ValueError, match=r"logits have shape \(3, 5\) and labels \(2,\)"):
        accuracy_count(logits, np.zeros(2, int))
