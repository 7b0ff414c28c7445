"""Shapes of every kind of layer, and what does not fit."""

import itertools

import pytest

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
    output_shape,
    windows,
)


def count(size, kernel, stride, begin, end, ceil):
    """Windows by looking at every start: a partial one counts with ceil if it starts before the end padding."""
    found, start = 0, 0
    if size + begin + end < kernel:
        return 0
    while start + kernel <= size + begin + end:
        found, start = found + 1, start + stride
    covered = start - stride + kernel == size + begin + end
    return found + (1 if ceil and not covered and start < size + begin else 0)


@pytest.mark.parametrize("ceil", [False, True])
def test_number_of_windows(ceil):
    for size, kernel, stride in itertools.product(range(1, 9), range(1, 5), range(1, 6)):
        for begin, end in itertools.product(range(kernel), range(kernel)):
            assert windows(size, kernel, stride, begin, end, "ceil" if ceil else "floor") == count(
                size, kernel, stride, begin, end, ceil), (size, kernel, stride, begin, end)


def test_ceil_clips_a_window_in_the_padding():
    # 3 + 1 + 1 values, windows of 2 every 3: the one at 3 starts inside, the one at 6 would not.
    assert windows(3, 2, 3, 1, 1, "ceil") == 2
    # The third window would start at 4, in the end padding of 3 + 1 values.
    assert windows(3, 2, 2, 1, 1, "floor") == 2 and windows(3, 2, 2, 1, 1, "ceil") == 2


@pytest.mark.parametrize("layer, before, after", [
    (Convolution("c", 5, (3, 2), (2, 1), (1, 0), (1, 1)), (2, 7, 4), (5, 4, 4)),
    (Convolution("c", 5, (3,), (2,), (1,), (0,)), (2, 7), (5, 3)),
    (Pool("p", "max", (2, 2), (2, 2), (0, 0), (0, 0), "ceil"), (3, 5, 4), (3, 3, 2)),
    (Pool("p", "average", (3,), (2,), (0,), (0,)), (3, 8), (3, 3)),
    (Pad("z", (1, 0), (2, 3)), (1, 4, 4), (1, 7, 7)),
    (Flatten("f"), (2, 3, 4), (24,)), (Flatten("f"), (7,), (7,)),
    (Dense("d", 9), (24,), (9,)),
    (Relu("r"), (2, 3), (2, 3)), (Dropout("o", 0.5), (4,), (4,)), (BatchNorm("b", 1e-3), (2, 3, 3), (2, 3, 3)),
    (LocalResponseNorm("l", 5, 1e-4, 0.75, 1.0), (8, 3, 3), (8, 3, 3)),
    (LocalResponseNorm("l", 5, 1e-4, 0.75, 1.0, "within_channel"), (8, 1, 3), (8, 1, 3)),
])
def test_shape_after_a_layer(layer, before, after):
    assert output_shape(layer, before) == after


@pytest.mark.parametrize("layer, before, words", [
    (Convolution("c", 5, (3, 3), (1, 1), (0, 0), (0, 0)), (2, 9), "kernel has 2 values"),
    (Convolution("c", 5, (3,), (1,), (0,), (0,)), (9,), "1 or 2 spatial dimensions"),
    (Convolution("c", 5, (4,), (1,), (0,), (0,)), (1, 3), "does not fit"),
    (Pool("p", "max", (2,), (2,), (2,), (0,)), (1, 9), "must be smaller than the kernel"),
    (Pad("z", (1,), (1,)), (1, 4, 4), "begin and end need 2 values"),
    (Dense("d", 3), (1, 4), "needs a flatten layer"),
    (LocalResponseNorm("l", 3, 1.0, 1.0, 1.0), (4,), "normalises across channels"),
    (LocalResponseNorm("l", 3, 1.0, 1.0, 1.0, "within_channel"), (4,), "normalises within channel"),
    (LocalResponseNorm("l", (1 << 24) - 1, 1.0, 1.0, 1.0, "within_channel"), (1, 4, 4), "with its padding"),
    (Pad("z", (0, 0), (1 << 24, 1 << 24)), (1, 4, 4), "values per sample, more than"),
    (Dense("d", 1 << 24), (1 << 10,), "weights, more than"),
])
def test_layers_that_do_not_fit(layer, before, words):
    with pytest.raises(CrosstrainError, match=words) as caught:
        output_shape(layer, before)
    assert caught.value.reason == "INVALID_MODEL" and layer.name in caught.value.field


def test_parameters_of_a_network_over_one_dimension():
    model = Model("line", (2, 11), 4, (
        Convolution("conv", 3, (4,), (1,), (0,), (0,), bias=False), BatchNorm("norm", 1e-3),
        Pool("pool", "max", (3,), (3,), (0,), (0,), "ceil"), Flatten("flat"), Dense("dense", 4))).validate()
    assert list(model.parameter_shapes().items()) == [
        ("conv.weight", (3, 2, 4)), ("norm.gamma", (3,)), ("norm.beta", (3,)), ("dense.weight", (4, 9)),
        ("dense.bias", (4,))]
    assert model.statistics_shapes() == {"norm.running_mean": (3,), "norm.running_var": (3,)}
    assert list(model.input_shapes().values()) == [(2, 11), (3, 8), (3, 8), (3, 3), (9,)]


@pytest.mark.parametrize("layers, words", [
    ((), "no layers"), ((Flatten("a"), Relu("a")), "used more than once"),
    ((Flatten("a"), Dense("b", 3)), "gives 3 values per sample, but the data has 4 classes")])
def test_models_that_are_none(layers, words):
    with pytest.raises(CrosstrainError, match=words):
        Model("bad", (1, 4), 4, layers).validate()
