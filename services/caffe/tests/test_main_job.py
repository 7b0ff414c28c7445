"""The published run: cnn2 on 5,000 digits, batch 64, SGD 0.05 with momentum 0.9, against float64."""

from typing import List, NamedTuple, Tuple

import numpy as np
import pytest

from crosstrain_caffe.engine import CaffeEngine
from crosstrain_reference import Forward, Network, cross_entropy_gradient, decision_flips
from crosstrain_reference.engine import ReferenceEngine, _layer
from crosstrain_service.engine import Batch
from crosstrain_service.probe import SingleStep
from crosstrain_service.testing import DIGITS_LOSSES, cnn2, digits_batches
from crosstrain_service.training import Execution, Rule, Training
from crosstrain_service.weights import initial_parameters

LOSSES = DIGITS_LOSSES[:10]
STEPS = len(LOSSES)
SETTINGS = Training(1, 64, 0, Rule("sgd", momentum=0.9, nesterov=False), np.full(STEPS, 0.05))
UNIT = 2.0 ** -24


def wide(arrays):
    return {name: value.astype(np.float64) for name, value in arrays.items()}


def relative_error(found, expected):
    """Largest error of any tensor, relative to its largest element."""
    return max(float(np.abs(found[name] - value).max() / np.abs(value).max()) for name, value in expected.items())


def gradients_by_decisions_of(network, x, labels, params, outputs):
    """The reference's gradients with every ReLU and max pool deciding as the recorded outputs did."""
    traces, before = {}, x
    for layer in network.layers:
        traces[layer.name] = layer.forward(before, params)[1]
        before = outputs[layer.name]
    forward = Forward(x, outputs, traces)
    return network.backward(cross_entropy_gradient(before, labels), forward, params).params


class Flip(NamedTuple):
    """A window of a max pool in which Caffe chose another element than the reference.

    ``gap``: by how much the two elements differ in the reference; ``bound``: 4 sqrt(n) u (|W| * |x| + |b|), what
    rounding may move each of them, the larger of the two.
    """

    layer: str
    window: Tuple[int, ...]
    gap: float
    bound: float


def flips_of(network, x, params, expected, found):
    """All flips of decisions; ReLU units that flip have no place here and fail."""
    first, second = (network.decisions(x, outputs) for outputs in (expected, found))
    absolute = {name: np.abs(value) for name, value in params.items()}
    flips = []
    for name, places in decision_flips(first, second).items():
        if name.startswith("relu"):
            assert len(places) == 0, (name, places)
            continue
        convolution = network.layer(name.replace("pool", "conv"))
        before = {"pool1": x, "pool2": expected["pool1"]}[name]
        scale, _ = convolution.forward(np.abs(before), absolute)
        length = params[convolution.name + ".weight"][0].size
        values = expected[name.replace("pool", "relu")]
        for sample, channel, row, column in places:
            window = (sample, channel, slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
            mine = values[window].ravel()
            chosen = found[name.replace("pool", "relu")][window].ravel().argmax()
            flips.append(Flip(
                name, (int(sample), int(channel), int(row), int(column)), float(mine.max() - mine[chosen]),
                float(4 * np.sqrt(length) * UNIT * scale[window].max())))
    return flips


class Step(NamedTuple):
    """What one step showed, with Caffe from the reference's parameters ("locked") and running free."""

    exact_loss: float
    loss: float
    parameter_error: float
    locked_error: float
    locked_error_by_decisions: float
    locked_flips: List[Flip]
    flips: List[Flip]


def run(digits):
    model = cnn2()
    initial = initial_parameters(model, 0)
    exact, same = (ReferenceEngine(model, SETTINGS, Execution(precision="float64")) for _ in range(2))
    free, locked = (CaffeEngine(model, SETTINGS, Execution()) for _ in range(2))
    exact.load_parameters(wide(initial))
    free.load_parameters(initial)
    network = Network([_layer(layer) for layer in model.layers])
    for number, batch in enumerate(digits_batches(digits, STEPS)):
        x = batch.x.astype(np.float64)
        rounded = {name: value.astype(np.float32) for name, value in exact.parameters().items()}
        params = wide(rounded)
        same.load_parameters(params)
        locked.load_parameters(rounded)
        expected = same.intermediates(Batch(number, x, batch.labels, 0.05))
        truth = exact.intermediates(Batch(number, x, batch.labels, 0.05))
        inside, outside = locked.intermediates(batch), free.intermediates(batch)
        by_decisions = gradients_by_decisions_of(network, x, batch.labels, params, wide(inside.outputs))
        flips = flips_of(network, x, exact.parameters(), truth.outputs, wide(outside.outputs))
        loops = [SingleStep(Batch(number, x, batch.labels, 0.05)), SingleStep(batch)]
        for engine, loop in zip((exact, free), loops):
            engine.train(loop)
        after = exact.parameters()
        yield Step(
            loops[0].loss, loops[1].loss,
            max(float(np.abs(value - after[name]).max()) for name, value in free.parameters().items()),
            relative_error(inside.gradients, expected.gradients),
            relative_error(inside.gradients, by_decisions),
            flips_of(network, x, params, expected.outputs, wide(inside.outputs)), flips)


@pytest.fixture(scope="module")
def steps(digits):
    return list(run(digits))


def decisive(flips):
    """Flips between elements that differ: those between equal ones lead to the same gradients."""
    return [flip for flip in flips if flip.gap > 0]


def test_reference_gives_the_published_losses(steps):
    assert np.abs(np.array([step.exact_loss for step in steps]) - LOSSES).max() < 1e-10


def test_first_steps_are_within_rounding(steps):
    difference = np.abs(np.array([step.loss for step in steps]) - LOSSES)
    assert difference[:5].max() < 1e-6, difference
    assert steps[0].parameter_error < 1e-6


def test_gradients_in_lock_step(steps):
    """From the reference's parameters all gradients agree, where Caffe's own decisions are followed.

    Without that condition they agree as well, at every step on which no decision flips.
    """
    for number, step in enumerate(steps):
        assert step.locked_error_by_decisions < 1e-6, number
        assert decisive(step.locked_flips) or step.locked_error < 1e-6, number


def test_decisions_flip_only_inside_the_rounding_bound(steps):
    """Drift is born here: a window whose two largest values differ by less than rounding may move them.

    At step 2 there is one of 200,704 windows of the second pool, number (17, 13, 4, 4), whose two largest values
    differ by 1e-6 of themselves. Which of them Caffe takes depends on the processor's kernels and on
    whether it starts from its own parameters or the reference's; gradients of the convolutions then jump from 4e-7
    to 2e-3 apart.
    """
    for number, step in enumerate(steps):
        for flip in step.locked_flips + step.flips:
            assert flip.gap <= flip.bound, (number, flip)
        second = [flip.window for flip in decisive(step.locked_flips) if flip.layer == "pool2"]
        if number <= 2:
            assert set(second) <= {(17, 13, 4, 4)} and (number == 2 or not second)


def test_equal_elements_of_the_first_pool_flip(steps):
    """Caffe's matrix product rounds equal patches differently, depending on where they are: ties break by rounding.

    The patches being equal, so are the gradients of the weights; a difference of gradients needs a decisive flip.
    """
    ties = [flip for step in steps for flip in step.locked_flips if flip.gap == 0]
    assert ties and {flip.layer for flip in ties} == {"pool1"}


def test_a_departure_of_the_free_run_follows_a_flip(steps):
    flipped = False
    for step, published in zip(steps, LOSSES):
        assert flipped or abs(step.loss - published) < 1e-6
        flipped = flipped or bool(decisive(step.flips))
