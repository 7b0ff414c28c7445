"""The main job: the first steps of cnn2 on real digits, from the platform's initial weights."""

import numpy as np
import pytest

from crosstrain_service import probe, testing, weights
from support import NAMES, build, train, training


def _batches(digits, count, precision):
    return [testing.cast(batch, precision) for batch in testing.digits_batches(digits, count)]


@pytest.mark.parametrize("name", NAMES)
def test_losses(name, digits):
    """Within 1e-6 over ten steps, as long as no window of a pooling picks another element for rounding."""
    engine = build(name, testing.cnn2(), training(steps=15), precision="float32")
    losses = train(engine, _batches(digits, 15, np.float32))
    np.testing.assert_allclose(losses[:10], testing.DIGITS_LOSSES[:10], rtol=0, atol=1e-6)
    np.testing.assert_allclose(losses, testing.DIGITS_LOSSES, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_first_step(name, digits):
    model = testing.cnn2()
    assert list(model.parameter_shapes()) == list(weights.initial_parameters(model, 0))
    ((_, found),) = probe.record_steps(
        build(name, model, training(steps=1), precision="float32"), _batches(digits, 1, np.float32), [0]
    )
    ((_, expected),) = probe.record_steps(
        build("reference", model, training(steps=1)), _batches(digits, 1, np.float64), [0]
    )
    assert set(found) == set(expected)
    for key, value in expected.items():
        value_found = found[key]
        if key in ("output_grad/conv1", "output_grad/relu1"):
            # Equal windows of the image give outputs of conv1 that differ in the last bit, by their place in the
            # BLAS's blocks, so that another of the equal maxima may be the first; the window's sum is the same.
            value_found, value = _window_sums(value_found), _window_sums(value)
        tolerance = 2e-6 if key.startswith("output/") else 1e-6
        np.testing.assert_allclose(value_found, value, rtol=0, atol=tolerance, err_msg=key)


def _window_sums(array):
    samples, channels, rows, columns = array.shape
    return array.reshape(samples, channels, rows // 2, 2, columns // 2, 2).sum(axis=(3, 5))
