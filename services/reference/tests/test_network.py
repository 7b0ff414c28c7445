import numpy as np
import pytest
from numeric import assert_close, numeric_gradient

from crosstrain_reference import (
    LRN,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Network,
    Pad,
    Pool,
    Relu,
    cross_entropy,
    decision_flips,
)


def every_layer():
    return Network(
        [
            Pad("pad", (1, 0), (0, 1)),
            Convolution("conv", 4, (3, 2), (2, 1), (1, 0), (0, 1)),
            BatchNorm("norm", 1e-3),
            Relu("relu"),
            Pool("max", "max", (2, 2), (2, 2), (0, 0), (1, 1), "ceil"),
            LRN("lrn", 3, 0.2, 0.75, 1.0),
            Pool("average", "average", (2, 2), (1, 1), (1, 1), (0, 0), count_include_pad=True),
            Flatten("flatten"),
            Dropout("dropout", 0.5),
            Dense("dense", 3, bias=False),
        ]
    )


INPUT = (2, 9, 7)


def draw_inputs(rng, network, input_shape=INPUT, batch=4, dtype=np.float64):
    params = {n: rng.randn(*s).astype(dtype) for n, s in network.parameter_shapes(input_shape).items()}
    x = rng.randn(*((batch,) + input_shape)).astype(dtype)
    shapes = network.output_shapes(input_shape)
    masks = {
        layer.name: ((rng.rand(*((batch,) + shapes[layer.name])) < 0.5) / 0.5).astype(dtype)
        for layer in network.layers
        if isinstance(layer, Dropout)
    }
    return x, rng.randint(0, 3, batch), params, masks


def test_gradients_through_every_layer(rng):
    network = every_layer()
    x, labels, params, masks = draw_inputs(rng, network)
    result = network.loss_and_gradients(x, labels, params, masks)
    assert list(result.gradients) == ["conv.weight", "conv.bias", "norm.gamma", "norm.beta", "dense.weight"]

    def loss(x, params):
        outputs = network.forward(x, params, masks).outputs
        return np.array([cross_entropy(outputs["dense"], labels)])

    one = np.ones(1)
    assert result.loss == loss(x, params)[0]
    for name, value in params.items():
        numeric = numeric_gradient(lambda v, name=name: loss(x, dict(params, **{name: v})), value, one)
        assert_close(result.gradients[name], numeric, 1e-7)
    assert_close(result.backward.x, numeric_gradient(lambda v: loss(v, params), x, one), 1e-7)


def test_gradient_of_every_output(rng):
    """Each is the gradient of the loss computed from that output onwards."""
    network = every_layer()
    x, labels, params, masks = draw_inputs(rng, network)
    result = network.loss_and_gradients(x, labels, params, masks)
    for position in range(1, len(network.layers)):
        rest = Network(network.layers[position:])
        name = network.layers[position - 1].name
        start = result.forward.outputs[name]
        again = rest.loss_and_gradients(start, labels, params, masks)
        assert again.loss == result.loss
        assert np.array_equal(again.backward.x, result.backward.outputs[name])


def test_shapes_match_the_arrays(rng):
    network = every_layer()
    x, _, params, masks = draw_inputs(rng, network)
    outputs = network.forward(x, params, masks).outputs
    assert {name: y.shape[1:] for name, y in outputs.items()} == network.output_shapes(INPUT)


def test_one_spatial_dimension(rng):
    network = Network(
        [
            Convolution("conv", 3, (4,), (2,), (1,), (2,), bias=False),
            Relu("relu"),
            Pool("pool", "max", (2,), (2,), (0,), (0,)),
            Flatten("flatten"),
            Dense("dense", 3),
        ]
    )
    x, labels, params, _ = draw_inputs(rng, network, (2, 13))
    result = network.loss_and_gradients(x, labels, params)
    numeric = numeric_gradient(
        lambda v: np.array([cross_entropy(network.forward(v, params).outputs["dense"], labels)]),
        x,
        np.ones(1),
    )
    assert_close(result.backward.x, numeric)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(rng, dtype):
    network = every_layer()
    x, labels, params, masks = draw_inputs(rng, network, dtype=dtype)
    result = network.loss_and_gradients(x, labels, params, masks)
    arrays = [result.loss, result.backward.x]
    for group in (result.forward.outputs, result.backward.outputs, result.gradients):
        arrays += list(group.values())
    assert {array.dtype for array in arrays} == {np.dtype(dtype)}


def test_batch_statistics_and_evaluation(rng):
    network = every_layer()
    x, _, params, masks = draw_inputs(rng, network)
    trained = network.forward(x, params, masks)
    assert list(trained.statistics) == ["norm"]
    mean, var = trained.statistics["norm"]
    assert_close(mean, trained.outputs["conv"].mean((0, 2, 3)), 1e-14)
    assert_close(var, trained.outputs["conv"].var((0, 2, 3)), 1e-14)
    evaluated = network.forward(x, params, train=False, statistics=trained.statistics)
    assert np.array_equal(evaluated.outputs["norm"], trained.outputs["norm"])
    assert np.array_equal(evaluated.outputs["dropout"], evaluated.outputs["flatten"])
    alone = network.forward(x[:1], params, train=False, statistics=trained.statistics)
    assert_close(alone.outputs["dense"], evaluated.outputs["dense"][:1], 1e-14)


def test_missing_mask_and_statistics_are_errors(rng):
    network = every_layer()
    x, _, params, _ = draw_inputs(rng, network)
    with pytest.raises(ValueError, match="layer dropout: training with dropout needs a mask"):
        network.forward(x, params)
    with pytest.raises(ValueError, match="layer norm: evaluating batch norm needs a mean"):
        network.forward(x, params, train=False)


def test_decisions():
    network = Network([Relu("relu"), Pool("pool", "max", (2,), (2,), (0,), (0,))])
    first, second = np.array([[[1.0, 0.0, 2.0, 3.0]]]), np.array([[[1.0, 1e-9, 3.0, 3.0]]])
    found = []
    for x in (first, second):
        forward = network.forward(x, {})
        found.append(network.decisions(x, forward.outputs))
        assert np.array_equal(found[-1]["pool"], forward.traces["pool"].indices)
    assert found[0]["relu"].tolist() == [[[True, False, True, True]]]
    assert found[0]["pool"].tolist() == [[[0, 3]]]
    flips = decision_flips(*found)
    assert flips["relu"].tolist() == [[0, 0, 1]]
    assert flips["pool"].tolist() == [[0, 0, 1]]
    partial = network.decisions(first, {"pool": np.zeros((1, 1, 2))})
    assert partial == {}


def test_networks_are_checked():
    with pytest.raises(ValueError, match=r"used more than once: \['a'\]"):
        Network([Relu("a"), Relu("a")])
    with pytest.raises(ValueError, match="no layers"):
        Network([])
    with pytest.raises(ValueError, match=r"layer d: input has shape \(1, 4, 4\), flatten it first"):
        Network([Dense("d", 2)]).output_shapes((1, 4, 4))
    with pytest.raises(ValueError, match="pool kind is 'sum'"):
        Pool("p", "sum", (2,), (2,), (0,), (0,))
    with pytest.raises(ValueError, match="rate is 1.0"):
        Dropout("d", 1.0)
