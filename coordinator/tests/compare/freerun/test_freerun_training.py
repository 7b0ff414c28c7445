"""A real net, trained in float32 and float64: envelope, perturbation and flips together."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crosstrain.compare.certificate.comparison import NotComparable
from crosstrain.compare.freerun.envelope import envelope, outside_share, stays_inside
from crosstrain.compare.freerun.flips import explains, first_flip, first_flip_of_runs
from crosstrain.compare.freerun.perturbation import perturb
from crosstrain.compare.freerun.traces import LossTrace, difference
from crosstrain_reference import Dense, Dropout, Flatten, Network, Relu

Record = dict[str, NDArray[Any]]
STEPS, BATCH, RATE = 100, 48, 0.3

NETWORK = Network([Flatten("flatten"), Dense("dense1", 96), Relu("relu1"), Dense("dense2", 96), Relu("relu2"),
                   Dense("dense3", 3)])  # fmt: skip


def _start() -> dict[str, NDArray[Any]]:
    """Weights of variance 2 / (fan-in), zero biases."""
    random = np.random.default_rng(2)
    found = {}
    for name, shape in NETWORK.parameter_shapes((1, 4, 4)).items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if name.endswith("weight") else 0.0
        found[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    return found


@cache
def _batches() -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Two batches in turn, with random labels, so that they are learnt by heart and updates stay large. The first
    images are blank: ReLU inputs are exactly the biases there.
    """
    random = np.random.default_rng(3)
    found = []
    for _ in range(2):
        images = random.random((BATCH, 1, 4, 4), np.float32)
        images[:4] = 0
        found.append((images, random.integers(0, 3, BATCH)))
    return found * (STEPS // 2)


def _train(start: dict[str, NDArray[Any]], kind: type) -> tuple[LossTrace, dict[int, Record]]:
    """Plain SGD with momentum 0.9 in one type throughout, with a record of every step."""
    parameters = {name: value.astype(kind) for name, value in start.items()}
    velocity = {name: np.zeros_like(value) for name, value in parameters.items()}
    losses, records = [], {}
    for step, (images, labels) in enumerate(_batches()):
        found = NETWORK.loss_and_gradients(images.astype(kind), labels, parameters)
        records[step] = {
            "input": images.astype(kind),
            **{f"output/{name}": value for name, value in found.forward.outputs.items()},
            **{f"parameter/{name}": value for name, value in parameters.items()},
        }
        losses.append(float(found.loss))
        for name, gradient in found.gradients.items():
            velocity[name] = (kind(0.9) * velocity[name] + kind(RATE) * gradient).astype(kind)
            parameters[name] = parameters[name] - velocity[name]
    return LossTrace(np.arange(STEPS), np.array(losses)), records


@cache
def _runs() -> tuple[tuple[LossTrace, dict[int, Record]], tuple[LossTrace, dict[int, Record]]]:
    return _train(_start(), np.float32), _train(_start(), np.float64)


def test_float32_is_inside_the_envelope_of_its_perturbed_runs() -> None:
    (narrow, _), (wide, _) = _runs()
    perturbed = [_train(perturb(_start(), seed), np.float32)[0] for seed in range(4)]
    found = envelope(narrow, perturbed)
    assert difference(narrow, wide).departed_step > 0, "the net is meant to leave rounding"
    share = outside_share(narrow, wide, found)
    assert share is not None
    assert stays_inside(share, 4, None) is True


def test_moving_zeros_would_make_another_envelope() -> None:
    """The reason why zeros stay: biases moved off 0 by the least possible switch blank regions on."""
    (narrow, _), _ = _runs()
    moved = _start()
    moved = {name: np.where(value == 0, np.float32(1e-45), value) for name, value in moved.items()}
    early = _train(moved, np.float32)[0].losses[1:6] - narrow.losses[1:6]
    right = _train(perturb(_start(), 0), np.float32)[0].losses[1:6] - narrow.losses[1:6]
    assert np.abs(early).max() > 1e3 * np.abs(right).max()


def test_a_run_has_no_flip_against_itself() -> None:
    (_, records), _ = _runs()
    assert first_flip_of_runs(NETWORK, records, records) is None


def test_another_function_flips_outside_the_bound() -> None:
    (_, records), _ = _runs()
    turned = dict(_start())
    turned["dense1.weight"] = turned["dense1.weight"][:, ::-1]
    flip = first_flip_of_runs(NETWORK, _train(turned, np.float32)[1], records)
    assert flip is not None
    assert flip.step == 0
    assert not flip.is_rounding
    assert not explains(flip, STEPS)


def _with_a_flip(step: int, gap: float, kind: type) -> tuple[dict[int, Record], dict[int, Record]]:
    """Records of four steps, alike but for one unit at one step: it is on in the first and off in the second."""
    mine, others = {}, {}
    for number, (images, _) in enumerate(_batches()[:4]):
        parameters = {name: value.astype(kind) for name, value in _start().items()}
        found = NETWORK.forward(images.astype(kind), parameters)
        for into, side in ((mine, 1), (others, -1)):
            outputs = {name: value.copy() for name, value in found.outputs.items()}
            if number == step:
                outputs["dense1"][7, 5] = side * gap
                outputs["relu1"][7, 5] = max(0.0, side * gap)
            into[number] = {
                "input": images.astype(kind),
                **{f"output/{name}": value for name, value in outputs.items()},
                **{f"parameter/{name}": value for name, value in parameters.items()},
            }
    return mine, others


@pytest.mark.parametrize("kind, gap", [(np.float32, 1e-8), (np.float64, 1e-17)])
def test_a_departure_is_traced_to_a_flip_before_it(kind: type, gap: float) -> None:
    flip = first_flip_of_runs(NETWORK, *_with_a_flip(2, gap, kind))
    assert flip is not None
    assert (flip.step, flip.layer, flip.count, flip.coordinates) == (2, "relu1", 1, (7, 5))
    assert flip.gap == pytest.approx(gap)
    assert flip.is_rounding, str(flip)
    assert explains(flip, 2) and explains(flip, 9)
    assert not explains(flip, 1)
    assert not explains(flip, -1)
    assert not explains(None, 9)


@pytest.mark.parametrize("kind, gap", [(np.float32, 1e-4), (np.float64, 1e-8)])
def test_a_flip_beyond_the_bound_of_its_type_explains_nothing(kind: type, gap: float) -> None:
    flip = first_flip_of_runs(NETWORK, *_with_a_flip(0, gap, kind))
    assert flip is not None and not flip.is_rounding
    assert not explains(flip, 9)


def test_dropout_scales_the_bound_as_it_scales_the_values() -> None:
    """A layer of ReLU behind dropout at rate 0.75: kept values, and their rounding, are four times as large."""
    network = Network([Dense("dense", 4), Dropout("dropout", 0.75), Relu("relu")])
    parameters = {"dense.weight": np.eye(4, dtype=np.float32), "dense.bias": np.zeros(4, np.float32)}
    x = np.ones((1, 4), np.float32)
    mask = np.array([[4, 0, 4, 4]], np.float32)
    plain = np.array([[1e-8, 1, 1, 1]])
    engine = {"dense": plain, "dropout": plain * mask, "relu": np.maximum(plain * mask, 0)}
    other = {name: value * np.array([[-1, 1, 1, 1]]) for name, value in engine.items()}
    other["relu"] = np.maximum(other["dropout"], 0)
    flip = first_flip(network, 0, x, parameters, engine, other, masks={"dropout": mask})
    assert flip is not None and flip.coordinates == (0, 0)
    # The floor of 8 u for so few products, of |W| |x| = 1, times 4.
    assert flip.bound == pytest.approx(4 * 8 * 2.0**-24)
    without = first_flip(network, 0, x, parameters, engine, other)
    assert without is not None and without.bound == pytest.approx(flip.bound), "1 / (1 - rate) where no mask is given"


def test_records_that_do_not_belong_together() -> None:
    (_, records), (_, others) = _runs()
    with pytest.raises(NotComparable, match="no step"):
        first_flip_of_runs(NETWORK, {0: records[0]}, {1: others[1]})
    with pytest.raises(NotComparable, match="different batches"):
        first_flip_of_runs(NETWORK, {0: records[0]}, {0: others[1]})
    short = {name: value for name, value in records[0].items() if name != "output/relu1"}
    with pytest.raises(NotComparable, match="output/relu1 of the engine is not recorded"):
        first_flip_of_runs(NETWORK, {0: short}, {0: others[0]})
    half = {**records[0], "output/relu2": records[0]["output/relu2"][:3]}
    with pytest.raises(NotComparable, match="shapes"):
        first_flip_of_runs(NETWORK, {0: half}, {0: others[0]})
    with pytest.raises(NotComparable, match="type"):
        first_flip_of_runs(NETWORK, {0: {**records[0], "input": records[0]["input"].astype(np.int64)}}, {0: others[0]})
