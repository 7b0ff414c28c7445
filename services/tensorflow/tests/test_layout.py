"""Layouts and paddings, in NumPy alone."""

import numpy as np
import oracle
import pytest

from crosstrain_service.model import Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.testing import cnn2
from crosstrain_tensorflow.geometry import average_factors, pool_padding, same_padding
from crosstrain_tensorflow.layout import Layout


def flattening(*middle, shape=(3, 4, 5)):
    layers = (Flatten("flatten"),) + middle + (Dense("dense", 6),)
    return Model("flattening", shape, 6, layers).validate()


@pytest.mark.parametrize("model", [cnn2(channels=(3, 5), units=7), flattening(), flattening(shape=(2, 9))])
def test_round_trip(model):
    layout = Layout(model)
    for name, value in oracle.parameters(model).items():
        inside = layout.to_framework(name, value)
        back = layout.to_canonical(name, inside)
        assert back.flags.c_contiguous and back.dtype == value.dtype
        np.testing.assert_array_equal(back, value)


def test_dense_rows_follow_tensorflows_flatten():
    model = flattening(Relu("relu"))
    layout = Layout(model)
    assert not layout.transposed
    x = np.random.RandomState(0).uniform(size=(2, 3, 4, 5))
    w = np.random.RandomState(1).uniform(size=(6, 60))
    inside = x.transpose(0, 2, 3, 1).reshape(2, -1)
    np.testing.assert_allclose(inside @ layout.to_framework("dense.weight", w), x.reshape(2, -1) @ w.T)
    for name in ("flatten", "relu"):
        np.testing.assert_array_equal(layout.output_to_canonical(name, inside), x.reshape(2, -1))


def test_other_layers_behind_flatten_need_canonical_order():
    assert Layout(flattening(Dropout("drop", 0.5))).transposed == {"flatten"}
    assert not Layout(flattening(Dropout("drop", 0.5), shape=(1, 4, 5))).transposed
    assert not Layout(flattening(Dropout("drop", 0.5), shape=(9, 1, 1))).transposed


def test_same_padding_is_uneven_at_the_end():
    assert same_padding(28, 3, 1) == (1, 1)
    assert same_padding(28, 3, 2) == (0, 1)
    assert same_padding(5, 2, 2) == (0, 1)
    assert same_padding(4, 2, 3) == (0, 1)
    assert same_padding(7, 1, 2) == (0, 0)


def test_symmetric_padding_of_a_strided_window_is_explicit():
    pool = Pool("pool", "max", (3, 3), (2, 2), (1, 1), (1, 1))
    assert pool_padding(pool, (7, 7)).mode == "SAME"
    assert pool_padding(pool, (8, 8)) == ("VALID", ((1, 0), (1, 0)), None)


def test_average_factors():
    pool = Pool("pool", "average", (3,), (2,), (1,), (1,), "ceil", False)
    # Windows over 6 values padded by one: [p 0 1] [1 2 3] [3 4 5] [5 p .]; padding does not count.
    np.testing.assert_allclose(average_factors(pool, (6,), (4,))[:, 0], [3 / 2, 1, 1, 3 / 1])
    including = Pool("pool", "average", (3,), (2,), (1,), (1,), "ceil", True)
    np.testing.assert_allclose(average_factors(including, (6,), (4,))[:, 0], [1, 1, 1, 3 / 2])
