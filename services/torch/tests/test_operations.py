"""Every layer forward and backward against the reference, on inputs with blanks, ties and odd sizes."""

import numpy as np
import oracle
import pytest

from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dropout,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
)
from crosstrain_service.testing import make_batches

IMAGE, ROW = (2, 9, 8), (2, 11)


def pool(kind, kernel, stride, begin, end, round_mode="floor", include=False):
    return Pool("op", kind, kernel, stride, begin, end, round_mode, include)


CASES = {
    "convolution, stride 2, asymmetric": Convolution("op", 4, (3, 2), (2, 1), (0, 1), (1, 0)),
    "convolution, wide padding": Convolution("op", 4, (2, 2), (1, 2), (3, 2), (3, 2), bias=False),
    "max": pool("max", (2, 2), (2, 2), (0, 0), (0, 0)),
    "max, overlapping, padded": pool("max", (3, 3), (2, 2), (1, 1), (1, 1)),
    "max, overlapping, ceil": pool("max", (3, 3), (2, 2), (0, 0), (0, 0), "ceil"),
    "max, padded, ceil": pool("max", (2, 3), (2, 3), (1, 1), (1, 1), "ceil"),
    "max, asymmetric": pool("max", (3, 2), (2, 2), (0, 1), (1, 0)),
    "max, asymmetric, ceil": pool("max", (3, 3), (2, 3), (0, 2), (2, 1), "ceil"),
    "max, padding beyond half": pool("max", (3, 3), (1, 2), (2, 2), (2, 2)),
    "max, stride beyond kernel, ceil": pool("max", (2, 2), (3, 5), (0, 0), (0, 1), "ceil"),
    "average": pool("average", (2, 2), (2, 2), (0, 0), (0, 0)),
    "average, ceil": pool("average", (2, 3), (2, 3), (0, 0), (0, 0), "ceil"),
    "average, ceil, include": pool("average", (3, 3), (2, 2), (1, 1), (1, 1), "ceil", True),
    "average, ceil, exclude": pool("average", (3, 3), (2, 2), (1, 1), (1, 1), "ceil", False),
    "average, asymmetric, include": pool("average", (3, 2), (2, 2), (0, 1), (1, 0), "floor", True),
    "average, asymmetric, exclude": pool("average", (3, 2), (2, 2), (0, 1), (1, 0), "floor", False),
    "average, asymmetric, ceil, include": pool("average", (3, 3), (2, 3), (0, 2), (2, 1), "ceil", True),
    "average, asymmetric, ceil, exclude": pool("average", (3, 3), (2, 3), (0, 2), (2, 1), "ceil", False),
    "relu": Relu("op"),
    "pad": Pad("op", (0, 2), (1, 0)),
    "dropout": Dropout("op", 0.3),
    "batch norm": BatchNorm("op", 1e-3),
    "response norm": LocalResponseNorm("op", 3, 0.2, 0.75, 2.0),
    "response norm, wide": LocalResponseNorm("op", 7, 0.2, 0.5, 1.0),
    "response norm within": LocalResponseNorm("op", 3, 0.2, 0.75, 2.0, "within_channel"),
    "response norm within, beyond the input": LocalResponseNorm("op", 23, 0.2, 0.5, 1.0, "within_channel"),
}
ROWS = {
    "convolution": Convolution("op", 4, (3,), (2,), (0,), (1,)),
    "max": pool("max", (3,), (2,), (1,), (1,)),
    "max, asymmetric, ceil": pool("max", (3,), (2,), (0,), (1,), "ceil"),
    "average, ceil, exclude": pool("average", (3,), (2,), (1,), (1,), "ceil", False),
    "average, asymmetric, exclude": pool("average", (4,), (3,), (0,), (2,), "ceil", False),
    "average, asymmetric, include": pool("average", (4,), (3,), (0,), (2,), "ceil", True),
    "pad": Pad("op", (2,), (1,)),
    "batch norm": BatchNorm("op", 1e-3),
    "response norm": LocalResponseNorm("op", 3, 0.2, 0.75, 2.0),
    "response norm within": LocalResponseNorm("op", 5, 0.2, 0.75, 2.0, "within_channel"),
}
SETTINGS = oracle.training(oracle.RULES["momentum"])


def check(model, precision, batch_size=4):
    batches = make_batches(model, 2, batch_size)
    built = oracle.engine(model, SETTINGS, precision=precision)
    oracle.assert_steps_equal(built, model, SETTINGS, batches, 1e-12 if precision == "float64" else 2e-5)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_image_operation(name, precision):
    check(oracle.single(CASES[name], input_shape=IMAGE), precision)


@pytest.mark.parametrize("name", ROWS)
def test_row_operation(name):
    check(oracle.single(ROWS[name], input_shape=ROW), "float64")


def test_relu_gradient_at_zero_is_zero():
    model = oracle.single(Relu("op"), input_shape=IMAGE)
    batch = make_batches(model, 1, 4)[0]
    found = oracle.engine(model, SETTINGS).intermediates(batch)
    blank = found.outputs["first"] == 0
    assert blank.sum() > 100
    assert np.all(found.output_gradients["first"][blank] == 0)
    assert np.all(found.output_gradients["op"][blank] != 0)


@pytest.mark.parametrize("kernel, stride, pad", [(2, 2, 0), (3, 1, 1), (3, 2, 2)])
def test_tied_maxima_send_the_gradient_to_the_first(kernel, stride, pad):
    layer = pool("max", (kernel, kernel), (stride, stride), (pad, pad), (pad, pad))
    model = oracle.single(layer, input_shape=(2, 8, 8))
    batch = make_batches(model, 1, 2)[0]
    batch.x[:] = 0
    found = oracle.engine(model, SETTINGS).intermediates(batch)
    before, after = found.output_gradients["first"], found.output_gradients["op"]
    expected = np.zeros_like(before)
    for row in range(after.shape[2]):
        for column in range(after.shape[3]):
            first = max(row * stride - pad, 0), max(column * stride - pad, 0)
            expected[(slice(None), slice(None)) + first] += after[:, :, row, column]
    np.testing.assert_allclose(before, expected, rtol=1e-5, atol=1e-8)


def test_batch_norm_of_a_single_sample_gives_beta():
    from crosstrain_service.model import Dense, Flatten

    layers = (Flatten("flatten"), Dense("dense", 5), BatchNorm("norm", 1e-3), Relu("relu"), Dense("last", 4))
    model = Model("norm", (1, 4, 4), 4, layers).validate()
    check(model, "float64", batch_size=1)


def test_response_norm_by_sums_equals_the_module():
    import torch

    from crosstrain_torch.layers import ChannelNorm

    layer = LocalResponseNorm("op", 5, 0.2, 0.75, 2.0)
    x = torch.rand(2, 7, 3, 4, dtype=torch.float64)
    own = torch.nn.LocalResponseNorm(5, 0.2 * 5, 0.75, 2.0)(x)
    torch.testing.assert_close(ChannelNorm(layer)(x), own, rtol=1e-12, atol=0)
    row = torch.rand(2, 7, 9, dtype=torch.float64)
    own = torch.nn.LocalResponseNorm(5, 0.2 * 5, 0.75, 2.0)(row)
    torch.testing.assert_close(ChannelNorm(layer)(row), own, rtol=1e-12, atol=0)
