"""Numerical gradients."""

import numpy as np


def numeric_gradient(function, x, weights, h=1e-6):
    """Central differences of ``sum(weights * function(x))`` with respect to every element of ``x`` (float64)."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        plus, minus = x.copy(), x.copy()
        plus[index] += h
        minus[index] -= h
        gradient[index] = np.sum(weights * (function(plus) - function(minus))) / (2 * h)
    return gradient


def spaced(rng, shape):
    """Values in random order that are at least 0.01 apart and from 0, so that no decision flips within h."""
    count = int(np.prod(shape))
    values = (np.arange(count) - count // 2 + 0.5) * 0.02
    return rng.permutation(values).reshape(shape)


def assert_close(actual, expected, tolerance=1e-8):
    assert actual.shape == expected.shape
    scale = 1.0 + np.abs(expected).max()
    assert np.abs(actual - expected).max() <= tolerance * scale
