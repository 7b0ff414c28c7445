"""A published run: cnn2 on 5,000 digits, batch 64, SGD 0.05 with momentum 0.9, fifteen steps."""

import numpy as np

from crosstrain_reference import Convolution, Dense, Flatten, Network, Optimizer, Pool, Relu, decision_flips

LOSSES = [
    2.298471045841, 2.282676527561, 2.259146261557, 2.227036756546, 2.220651500448,
    2.230145733738, 2.224316819106, 2.104331521549, 2.036768722234, 1.978830424007,
    1.868746006306, 1.647551688171, 1.706679956918, 1.160843284174, 1.26266933304,
]  # fmt: skip


def cnn2(classes=10):
    def convolution(name, channels):
        return Convolution(name, channels, (3, 3), (1, 1), (1, 1), (1, 1))

    def pool(name):
        return Pool(name, "max", (2, 2), (2, 2), (0, 0), (0, 0))

    return Network([
        convolution("conv1", 32), Relu("relu1"), pool("pool1"),
        convolution("conv2", 64), Relu("relu2"), pool("pool2"),
        Flatten("flatten"), Dense("dense1", 128), Relu("relu3"), Dense("dense2", classes),
    ])  # fmt: skip


def initial_parameters(dtype):
    rng = np.random.RandomState(1)

    def draw(fans, shape):
        return (rng.uniform(-1, 1, shape) * np.sqrt(6 / sum(fans))).astype(np.float32).astype(dtype)

    params = {}
    params["conv1.weight"] = draw((9, 288), (32, 1, 3, 3))
    params["conv2.weight"] = draw((288, 576), (64, 32, 3, 3))
    params["dense1.weight"] = draw((3136, 128), (3136, 128)).T.copy()
    params["dense2.weight"] = draw((128, 10), (128, 10)).T.copy()
    for layer, count in (("conv1", 32), ("conv2", 64), ("dense1", 128), ("dense2", 10)):
        params[layer + ".bias"] = np.zeros(count, dtype)
    return params


def train(digits, dtype, steps):
    images, labels = digits
    order = np.random.RandomState(0).permutation(5000)
    network = cnn2()
    optimizer = Optimizer("sgd", momentum=0.9)
    params = initial_parameters(dtype)
    state = optimizer.init_state(params)
    losses = []
    for step in range(steps):
        rows = order[64 * step : 64 * step + 64]
        result = network.loss_and_gradients(images[rows].astype(dtype), labels[rows], params)
        assert result.loss.dtype == dtype
        losses.append(float(result.loss))
        params, state = optimizer.update(params, result.gradients, state, 0.05, step + 1)
        assert all(value.dtype == dtype for value in params.values())
    return losses


def test_shapes():
    network = cnn2()
    shapes = {name: value.shape for name, value in initial_parameters(np.float64).items()}
    assert network.parameter_shapes((1, 28, 28)) == shapes
    assert network.output_shapes((1, 28, 28))["pool2"] == (64, 7, 7)
    assert network.output_shapes((1, 28, 28))["dense2"] == (10,)


def test_float64_losses(digits):
    losses = train(digits, np.float64, 15)
    difference = np.abs(np.array(losses) - LOSSES)
    # The published values carry 12 decimals, so half a unit of the last is expected; rounding grows from there.
    assert difference.max() < 1e-10, difference


def test_float32_losses(digits):
    """The first steps are within rounding; later ones only until two runs decide differently somewhere."""
    difference = np.abs(np.array(train(digits, np.float32, 4)) - LOSSES[:4])
    assert difference.max() < 5e-7, difference


def test_float32_takes_the_same_decisions(digits):
    """Thousands of pooling windows hold equal values: none of these ties may break by rounding."""
    images, labels = digits
    rows = np.random.RandomState(0).permutation(5000)[64:128]
    network, results, decisions = cnn2(), [], []
    params = initial_parameters(np.float32)
    # Biases that are not 0 keep the blank borders alive.
    rng = np.random.RandomState(4)
    params.update(
        {n: rng.rand(*v.shape).astype(np.float32) for n, v in params.items() if n.endswith(".bias")}
    )
    for dtype in (np.float32, np.float64):
        x = images[rows].astype(dtype)
        own = {name: value.astype(dtype) for name, value in params.items()}
        results.append(network.loss_and_gradients(x, labels[rows], own))
        decisions.append(network.decisions(x, results[-1].forward.outputs))
    assert tied_windows(results[1].forward.outputs["relu2"]) > 20000
    flips = {name: len(found) for name, found in decision_flips(*decisions).items()}
    assert flips == {"relu1": 0, "pool1": 0, "relu2": 0, "pool2": 0, "relu3": 0}
    for name, gradient in results[1].gradients.items():
        assert np.abs(results[0].gradients[name] - gradient).max() <= 1e-6 * np.abs(gradient).max(), name


def tied_windows(x):
    n, c, h, w = x.shape
    windows = np.sort(x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 4))
    return np.count_nonzero((windows[:, 3] == windows[:, 2]) & (windows[:, 3] > 0))
