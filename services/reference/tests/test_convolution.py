import numpy as np
import pytest
from numeric import assert_close, numeric_gradient

from crosstrain_reference import ops

CASES = [  # input, kernel, stride, pad_begin, pad_end
    ((2, 3, 7, 5), (4, 3, 3, 2), (2, 1), (1, 0), (0, 2)),
    ((2, 2, 9, 8), (3, 2, 5, 3), (3, 2), (2, 1), (1, 3)),
    ((1, 1, 4, 4), (2, 1, 1, 1), (2, 2), (0, 0), (0, 0)),
    ((3, 2, 11), (2, 2, 4), (3,), (2,), (1,)),
]


def naive(x, w, b, stride, begin, end):
    x = np.pad(x, [(0, 0), (0, 0)] + list(zip(begin, end)), mode="constant")
    size = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], w.shape[2:], stride)]
    y = np.zeros([x.shape[0], w.shape[0]] + size)
    for n, o in np.ndindex(*y.shape[:2]):
        for place in np.ndindex(*size):
            window = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, stride, w.shape[2:]))
            y[(n, o) + place] = b[o] + sum(np.sum(x[(n, i) + window] * w[o, i]) for i in range(w.shape[1]))
    return y


@pytest.mark.parametrize("x_shape, w_shape, stride, begin, end", CASES)
def test_against_loops_and_numeric_gradients(rng, x_shape, w_shape, stride, begin, end):
    x, w, b = rng.randn(*x_shape), rng.randn(*w_shape), rng.randn(w_shape[0])
    y = ops.convolution(x, w, b, stride, begin, end)
    assert_close(y, naive(x, w, b, stride, begin, end), 1e-13)
    assert y.shape == ops.convolution_output_shape(x_shape, w_shape, stride, begin, end)
    dy = rng.randn(*y.shape)
    dx, dw, db = ops.convolution_backward(dy, x, w, stride, begin, end)
    assert_close(dx, numeric_gradient(lambda v: ops.convolution(v, w, b, stride, begin, end), x, dy))
    assert_close(dw, numeric_gradient(lambda v: ops.convolution(x, v, b, stride, begin, end), w, dy))
    assert_close(db, numeric_gradient(lambda v: ops.convolution(x, w, v, stride, begin, end), b, dy))


def test_kernel_is_not_flipped():
    delta = np.zeros((1, 1, 7, 7))
    delta[0, 0, 3, 3] = 1
    w = np.arange(1.0, 10).reshape(1, 1, 3, 3)
    y = ops.convolution(delta, w)
    assert np.array_equal(y[0, 0, 1:4, 1:4], w[0, 0, ::-1, ::-1])


def test_padding_offset_with_stride_two():
    """7x7, stride 2 on 224: padding 2/3 and 3/3 give the same size and different values."""
    assert ops.convolution_output_shape((1, 3, 224, 224), (8, 3, 7, 7), 2, 2, 3) == (1, 8, 112, 112)
    assert ops.convolution_output_shape((1, 3, 224, 224), (8, 3, 7, 7), 2, 3, 3) == (1, 8, 112, 112)
    x = np.arange(224.0).reshape(1, 1, 224)
    w = np.ones((1, 1, 7))
    assert ops.convolution(x, w, None, 2, 2, 3)[0, 0, 1] == 21 + 0  # 0..6
    assert ops.convolution(x, w, None, 2, 3, 3)[0, 0, 1] == 15  # 0..5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_windows_give_equal_bits(rng, dtype):
    """Ties in a pooling layer behind depend on it; the odd count leaves a remainder in any blocking."""
    w, b = rng.randn(50, 20, 5, 5).astype(dtype), rng.randn(50).astype(dtype)
    x = np.broadcast_to(rng.randn(1, 20, 1, 1).astype(dtype), (3, 20, 23, 19))
    y = ops.convolution(x, w, b)
    assert np.array_equal(y, np.broadcast_to(y[:1, :, :1, :1], y.shape))


def test_errors_name_the_sizes():
    x, w = np.zeros((1, 2, 3, 3)), np.zeros((4, 2, 5, 5))
    with pytest.raises(ValueError, match=r"kernel 5 does not fit input 3 with padding 0 \+ 1"):
        ops.convolution(x, w, None, 1, 0, 1)
    with pytest.raises(ValueError, match="input has 2 channels .* takes 3"):
        ops.convolution(x, np.zeros((4, 3, 1, 1)))
    with pytest.raises(ValueError, match=r"stride is \[0, 0\]"):
        ops.convolution(x, w[..., :1, :1], None, 0)
    with pytest.raises(ValueError, match=r"bias has shape \(3,\), expected \(4,\)"):
        ops.convolution(x, w[..., :1, :1], np.zeros(3))
    with pytest.raises(ValueError, match="expected equal ranks"):
        ops.convolution(x, np.zeros((4, 2, 3)))
