import numpy as np
import pytest
from numeric import assert_close, numeric_gradient, spaced

from crosstrain_reference import ops

CASES = [  # input, kernel, stride, pad_begin, pad_end
    ((2, 2, 7, 5), (3, 2), (2, 2), (1, 0), (0, 1)),
    ((1, 2, 8, 9), (2, 3), (3, 1), (0, 2), (1, 1)),
    ((1, 1, 4, 4), (2, 2), (2, 2), (0, 0), (0, 0)),
    ((2, 3, 11), (4,), (3,), (2,), (1,)),
]


def naive_windows(x, kernel, stride, begin, end, round_mode):
    """Yield place, and the window's slices in the input without padding, and clipped by input and padding."""
    counts = []
    for n, k, s, b, e in zip(x.shape[2:], kernel, stride, begin, end):
        starts = [i for i in range(-b, n + e, s) if i + k <= n + e or (round_mode == "ceil" and i < n)]
        if round_mode == "ceil":  # only the first window that reaches the end
            full = [i for i in starts if i + k < n + e]
            starts = starts[: len(full) + 1]
        counts.append(starts)
    for place in np.ndindex(*[len(c) for c in counts]):
        first = [c[p] for c, p in zip(counts, place)]
        inside = tuple(slice(max(i, 0), min(i + k, n)) for i, k, n in zip(first, kernel, x.shape[2:]))
        clipped = np.prod([min(i + k, n + e) - i for i, k, n, e in zip(first, kernel, x.shape[2:], end)])
        yield place, inside, clipped


@pytest.mark.parametrize("round_mode", ["floor", "ceil"])
@pytest.mark.parametrize("x_shape, kernel, stride, begin, end", CASES)
def test_max(rng, x_shape, kernel, stride, begin, end, round_mode):
    x = spaced(rng, x_shape)
    window = (kernel, stride, begin, end, round_mode)
    y, indices = ops.max_pool(x, *window)
    assert y.shape == ops.pool_output_shape(x_shape, *window)
    places = 0
    for place, inside, _ in naive_windows(x, *window):
        block = x[(slice(None), slice(None)) + inside]
        assert np.array_equal(
            y[(slice(None), slice(None)) + place], block.reshape(x_shape[:2] + (-1,)).max(2)
        )
        places += 1
    assert places == np.prod(y.shape[2:])
    flat = x.reshape(x_shape[:2] + (-1,))
    assert np.array_equal(
        np.take_along_axis(flat, indices.reshape(x_shape[:2] + (-1,)), 2).ravel(), y.ravel()
    )
    dy = rng.randn(*y.shape)
    dx = ops.max_pool_backward(dy, indices, x_shape, *window)
    assert_close(dx, numeric_gradient(lambda v: ops.max_pool(v, *window)[0], x, dy))


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("round_mode", ["floor", "ceil"])
@pytest.mark.parametrize("x_shape, kernel, stride, begin, end", CASES)
def test_average(rng, x_shape, kernel, stride, begin, end, round_mode, include):
    x = rng.randn(*x_shape)
    window = (kernel, stride, begin, end, round_mode)
    y = ops.average_pool(x, *window, count_include_pad=include)
    places = 0
    for place, inside, clipped in naive_windows(x, *window):
        block = x[(slice(None), slice(None)) + inside].reshape(x_shape[:2] + (-1,))
        expected = block.sum(2) / (clipped if include else block.shape[2])
        assert_close(y[(slice(None), slice(None)) + place], expected, 1e-14)
        places += 1
    assert places == np.prod(y.shape[2:])
    dy = rng.randn(*y.shape)
    dx = ops.average_pool_backward(dy, x_shape, *window, count_include_pad=include)
    expected = numeric_gradient(lambda v: ops.average_pool(v, *window, count_include_pad=include), x, dy)
    assert_close(dx, expected)


def row(*values):
    return np.array(values, dtype=np.float64).reshape(1, 1, -1)


def test_first_of_equal_maxima_takes_the_gradient():
    y, indices = ops.max_pool(row(1, 2, 2, 2), 4, 4)
    assert (y.item(), indices.item()) == (2.0, 1)
    assert np.array_equal(ops.max_pool_backward(row(1), indices, (1, 1, 4), 4, 4), row(0, 1, 0, 0))
    blank = np.zeros((1, 1, 4, 4))
    _, indices = ops.max_pool(blank, 2, 2)
    assert indices.ravel().tolist() == [0, 2, 8, 10]
    tied = np.array([[[[1.0, 5.0], [5.0, 5.0]]]])
    assert ops.max_pool(tied, 2, 2)[1].item() == 1  # row-major: (0, 1) before (1, 0)


def test_origin_of_the_first_window():
    assert np.array_equal(ops.max_pool(row(1, 2, 3, 4), 2, 2)[0], row(2, 4))
    assert np.array_equal(ops.max_pool(row(1, 2, 3, 4), 2, 2, 1, 0)[0], row(1, 3))


def test_floor_and_ceil_sizes():
    def size(n, k, s, begin, end, mode):
        return ops.pool_output_shape((1, 1, n), k, s, begin, end, mode)[2]

    assert size(112, 3, 2, 0, 0, "floor") == 55
    assert size(112, 3, 2, 0, 0, "ceil") == 56
    assert size(4, 2, 2, 1, 1, "ceil") == 3
    assert size(5, 2, 2, 1, 1, "ceil") == 3  # a fourth window would start in the trailing padding
    assert size(4, 1, 3, 0, 0, "ceil") == 2
    assert size(4, 2, 4, 0, 0, "ceil") == 1  # a second window would start after the input


def test_padding_in_the_divisor():
    ones = np.ones((1, 1, 4, 4))
    with_padding = ops.average_pool(ones, 3, 1, 1, 1, count_include_pad=True)[0, 0]
    assert np.allclose(with_padding[0], [4 / 9, 6 / 9, 6 / 9, 4 / 9], atol=1e-15)
    assert np.allclose(with_padding[1], [6 / 9, 1, 1, 6 / 9], atol=1e-15)
    assert np.array_equal(ops.average_pool(ones, 3, 1, 1, 1, count_include_pad=False), ones)
    # Rounded up: the last window holds one input and one padding element; beyond that nothing counts.
    last = ops.average_pool(np.ones((1, 1, 4)), 3, 2, 0, 1, "ceil", count_include_pad=True)
    assert last.ravel().tolist() == [1.0, 2 / 3]
    last = ops.average_pool(np.ones((1, 1, 6)), 3, 2, 0, 0, "ceil", count_include_pad=True)
    assert last.ravel().tolist() == [1.0, 1.0, 1.0]


def test_padding_is_never_chosen():
    lowest = row(-np.inf, -np.inf, -3)
    y, indices = ops.max_pool(lowest, 2, 2, 1, 0)
    assert y.ravel().tolist() == [-np.inf, -3.0]
    assert indices.ravel().tolist() == [0, 2]


def test_nan_is_kept():
    y, indices = ops.max_pool(row(1, np.nan, 3, np.nan), 4, 4)
    assert np.isnan(y.item()) and indices.item() == 1


def test_errors():
    x = row(1, 2, 3)
    with pytest.raises(ValueError, match=r"kernel 4 does not fit input 3 with padding 0 \+ 0"):
        ops.max_pool(x, 4, 1)
    with pytest.raises(ValueError, match=r"padding 2 \+ 0 must be smaller than the kernel 2"):
        ops.max_pool(x, 2, 1, 2, 0)
    with pytest.raises(ValueError, match="round_mode is 'up'"):
        ops.max_pool(x, 2, 1, 0, 0, "up")
    with pytest.raises(ValueError, match="1 of 2 indices lie outside their window"):
        ops.max_pool_backward(row(1, 1), np.array([[[0, 0]]]), (1, 1, 3), 2, 1)
