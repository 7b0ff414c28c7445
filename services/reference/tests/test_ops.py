import numpy as np
import pytest
from numeric import assert_close, numeric_gradient, spaced

from crosstrain_reference import ops


def test_dense(rng):
    x, w, b = rng.randn(3, 5), rng.randn(4, 5), rng.randn(4)
    y = ops.dense(x, w, b)
    assert_close(y, np.array([[sum(x[n] * w[o]) + b[o] for o in range(4)] for n in range(3)]), 1e-14)
    dy = rng.randn(3, 4)
    dx, dw, db = ops.dense_backward(dy, x, w)
    assert_close(dx, numeric_gradient(lambda v: ops.dense(v, w, b), x, dy))
    assert_close(dw, numeric_gradient(lambda v: ops.dense(x, v, b), w, dy))
    assert_close(db, numeric_gradient(lambda v: ops.dense(x, w, v), b, dy))
    with pytest.raises(ValueError, match=r"input has shape \(3, 5\) and weight \(4, 6\)"):
        ops.dense(x, np.zeros((4, 6)))


def test_relu(rng):
    x = spaced(rng, (2, 3, 5))
    dy = rng.randn(*x.shape)
    assert_close(ops.relu_backward(dy, x), numeric_gradient(ops.relu, x, dy))
    assert np.array_equal(ops.relu_backward(dy, x), ops.relu_backward(dy, ops.relu(x)))
    assert np.isnan(ops.relu(np.array([np.nan]))).all()


def test_relu_gradient_at_zero_is_zero():
    """Blank image, zero bias: nothing flows back."""
    blank = ops.convolution(np.zeros((1, 1, 5, 5)), np.ones((2, 1, 3, 3)), np.zeros(2))
    assert not ops.relu_backward(np.ones(blank.shape), blank).any()
    assert ops.relu_backward(np.ones(3), np.array([0.0, -0.0, 1e-300])).tolist() == [0, 0, 1]


def test_flatten_order(rng):
    x = rng.randn(2, 3, 4, 5)
    y = ops.flatten(x)
    assert y[1, 2 * 20 + 3 * 5 + 4] == x[1, 2, 3, 4]
    assert np.array_equal(ops.unflatten(y, x.shape), x)


def test_dropout(rng):
    x, dy = rng.randn(4, 6), rng.randn(4, 6)
    mask = (rng.uniform(size=x.shape) < 0.5) / 0.5
    assert_close(ops.dropout_backward(dy, mask), numeric_gradient(lambda v: ops.dropout(v, mask), x, dy))
    assert np.array_equal(ops.dropout(x, mask), np.where(mask > 0, 2 * x, 0))


@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_pad(rng, value):
    x = rng.randn(2, 2, 3, 4)
    y = ops.pad(x, (1, 0), (0, 2), value)
    assert y.shape == ops.pad_output_shape(x.shape, (1, 0), (0, 2)) == (2, 2, 4, 6)
    assert np.array_equal(y[:, :, 1:, :4], x)
    assert np.count_nonzero(y == value) == y.size - x.size
    dy = rng.randn(*y.shape)
    assert np.array_equal(ops.pad_backward(dy, x.shape, (1, 0), (0, 2)), dy[:, :, 1:, :4])


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 5), (3, 2, 3, 5)])
def test_batch_norm_training(rng, shape):
    x, gamma, beta = rng.randn(*shape), rng.randn(shape[1]), rng.randn(shape[1])
    axes = (0,) + tuple(range(2, len(shape)))

    def function(x, gamma, beta):
        return ops.batch_norm(x, gamma, beta, *ops.batch_statistics(x), eps=1e-3)

    mean, var = ops.batch_statistics(x)
    assert_close(mean, x.mean(axes), 1e-14)
    assert_close(var, x.var(axes, ddof=0), 1e-14)
    plain = ops.batch_norm(x, np.ones(shape[1]), np.zeros(shape[1]), mean, var, 1e-3)
    assert_close(plain.var(axes), var / (var + 1e-3), 1e-13)
    dy = rng.randn(*shape)
    dx, dgamma, dbeta = ops.batch_norm_backward(dy, x, gamma, mean, var, 1e-3)
    assert_close(dx, numeric_gradient(lambda v: function(v, gamma, beta), x, dy))
    assert_close(dgamma, numeric_gradient(lambda v: function(x, v, beta), gamma, dy))
    assert_close(dbeta, numeric_gradient(lambda v: function(x, gamma, v), beta, dy))


def test_batch_norm_with_given_statistics(rng):
    x, gamma, beta, mean = rng.randn(3, 2, 3, 5), rng.randn(2), rng.randn(2), rng.randn(2)
    var = np.array([0.0, 2.0])
    y = ops.batch_norm(x, gamma, beta, mean, var, 1e-2)
    assert_close(y[:, 0], gamma[0] * (x[:, 0] - mean[0]) / 0.1 + beta[0], 1e-14)
    dy = rng.randn(*x.shape)
    dx, dgamma, _ = ops.batch_norm_backward(dy, x, gamma, mean, var, 1e-2, training=False)
    assert_close(dx, numeric_gradient(lambda v: ops.batch_norm(v, gamma, beta, mean, var, 1e-2), x, dy))
    assert_close(dgamma, numeric_gradient(lambda v: ops.batch_norm(x, v, beta, mean, var, 1e-2), gamma, dy))


@pytest.mark.parametrize("channels, size", [(7, 5), (3, 5), (4, 1), (1, 3)])
def test_lrn(rng, channels, size):
    x = rng.randn(2, channels, 3, 2)
    constants = {"size": size, "alpha": 0.3, "beta": 0.75, "k": 2.0}
    expected = np.empty_like(x)
    for c in range(channels):
        near = x[:, max(0, c - size // 2) : c + size // 2 + 1]
        expected[:, c] = x[:, c] / (2.0 + 0.3 * np.square(near).sum(1)) ** 0.75
    assert_close(ops.lrn(x, **constants), expected, 1e-14)
    dy = rng.randn(*x.shape)
    dx = ops.lrn_backward(dy, x, **constants)
    assert_close(dx, numeric_gradient(lambda v: ops.lrn(v, **constants), x, dy))


@pytest.mark.parametrize("spatial, size", [((4, 5), 3), ((5, 2), 5), ((1, 3), 7), ((6,), 3), ((4,), 5), ((3, 3), 1)])
def test_lrn_within_a_channel(rng, spatial, size):
    x = rng.randn(2, 3, *spatial)
    constants = {"size": size, "alpha": 0.3, "beta": 0.75, "k": 2.0, "region": "within_channel"}
    expected = np.empty_like(x)
    for place in np.ndindex(*spatial):
        near = tuple(slice(max(0, p - size // 2), p + size // 2 + 1) for p in place)
        total = np.square(x[(slice(None), slice(None)) + near]).reshape(2, 3, -1).sum(-1)
        at = (slice(None), slice(None)) + place
        expected[at] = x[at] / (2.0 + 0.3 * total) ** 0.75
    assert_close(ops.lrn(x, **constants), expected, 1e-14)
    dy = rng.randn(*x.shape)
    dx = ops.lrn_backward(dy, x, **constants)
    assert_close(dx, numeric_gradient(lambda v: ops.lrn(v, **constants), x, dy))


def test_lrn_constants():
    with pytest.raises(ValueError, match="region is 'between'"):
        ops.lrn(np.zeros((1, 4, 2)), 3, 1.0, 0.75, 1.0, "between")
    assert ops.alpha_sum_from_average(1e-4, 5) == 2e-5
    with pytest.raises(ValueError, match="size is 4"):
        ops.lrn(np.zeros((1, 4, 2)), 4, 1.0, 0.75, 1.0)


def every_operation(dtype):
    rng = np.random.RandomState(0)

    def draw(*shape):
        return rng.rand(*shape).astype(dtype)

    x, w, b, c = draw(2, 3, 6, 5), draw(4, 3, 3, 3), draw(4), draw(3)
    y = ops.convolution(x, w, b, 2, 1, 0)
    yield y
    yield from ops.convolution_backward(y, x, w, 2, 1, 0)
    best, indices = ops.max_pool(x, 2, 2, 1, 0, "ceil")
    assert indices.dtype == np.int64
    yield best
    yield ops.max_pool_backward(best, indices, x.shape, 2, 2, 1, 0, "ceil")
    yield ops.average_pool(x, 2, 2, 1, 0, "ceil", True)
    yield ops.average_pool_backward(best, x.shape, 2, 2, 1, 0, "ceil", True)
    flat = ops.flatten(x)
    yield flat
    yield ops.unflatten(flat, x.shape)
    yield ops.dense(flat, draw(7, 90), draw(7))
    yield from ops.dense_backward(draw(2, 7), flat, draw(7, 90))
    yield ops.relu(x)
    yield ops.relu_backward(x, x)
    yield ops.dropout(x, x)
    yield ops.dropout_backward(x, x)
    yield ops.pad(x, 1, 2, -np.inf)
    yield ops.pad_backward(draw(2, 3, 9, 8), x.shape, 1, 2)
    eps = np.float64(1e-5)  # a NumPy scalar would widen float32 in NumPy 2
    yield from ops.batch_statistics(x)
    yield ops.batch_norm(x, c, c, c, c, eps)
    for training in (True, False):
        yield from ops.batch_norm_backward(x, x, c, c, c, eps, training)
    yield ops.lrn(x, 3, eps, np.float64(0.75), np.float64(1))
    yield ops.lrn_backward(x, x, 3, eps, np.float64(0.75), np.float64(1))
    yield ops.lrn(x, 3, eps, np.float64(0.75), np.float64(1), "within_channel")
    yield ops.lrn_backward(x, x, 3, eps, np.float64(0.75), np.float64(1), "within_channel")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(dtype):
    results = list(every_operation(dtype))
    assert len(results) == 33
    assert [result.dtype for result in results] == [np.dtype(dtype)] * len(results)


def test_float32_and_float64_agree():
    for single, double in zip(every_operation(np.float32), every_operation(np.float64)):
        finite = np.isfinite(double)
        scale = 1 + np.abs(double[finite]).max()
        assert np.abs(single[finite] - double[finite]).max() <= 2e-5 * scale


def test_mixed_types_are_refused():
    x, w = np.zeros((1, 1, 3), np.float32), np.zeros((1, 1, 3))
    with pytest.raises(TypeError, match="x is float32, w is float64"):
        ops.convolution(x, w)
    with pytest.raises(TypeError, match="mask is float64"):
        ops.dropout(x, np.ones(x.shape))
    with pytest.raises(TypeError, match="x has type int64, expected a floating type"):
        ops.relu(np.zeros(3, np.int64))
