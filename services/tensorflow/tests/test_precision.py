"""Mixed precision of the engine tensorflow: products in 16 bits, everything that lasts in float32."""

import logging

import numpy as np
import oracle
import pytest

from crosstrain_service.probe import record_steps
from crosstrain_service.testing import ListLoop, cnn2, make_batches
from crosstrain_service.training import Parallel
from crosstrain_tensorflow.engine import TensorFlowEngine

PRECISIONS = {"mixed_bfloat16": 2.0 ** -8, "mixed_float16": 2.0 ** -11}
SMALL = cnn2((1, 8, 8), 4, (4, 6), 10)


def build(precision, rule="sgd", **execution):
    return oracle.build(TensorFlowEngine, SMALL, oracle.training(oracle.RULES[rule]), precision=precision, **execution)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_are_those_of_float32(precision, ranks):
    batch = make_batches(SMALL, 1, 7, sparse=False)[0]
    found = build(precision, parallel=Parallel(data=ranks)).intermediates(batch)
    expected = build("float32").intermediates(batch)
    for name, value in expected.gradients.items():
        assert found.gradients[name].dtype == np.float32
        error = np.linalg.norm(found.gradients[name] - value) / np.linalg.norm(value)
        assert 0 < error < 16 * PRECISIONS[precision], name


@pytest.mark.parametrize("ranks", [1, 2])
def test_small_gradients_are_recorded_as_the_step_has_them(ranks):
    """Without the factor on the loss, float16 would round most of these to zero."""
    engine = build("mixed_float16", parallel=Parallel(data=ranks))
    weights = engine.parameters()
    weights["dense2.weight"] = weights["dense2.weight"] * np.float32(1e-6)
    engine.load_parameters(weights)
    batch = make_batches(SMALL, 1, 7, sparse=False)[0]
    (_, record), = record_steps(engine, [batch], {0})
    used = (record["parameter/conv1.weight"] - record["parameter_after/conv1.weight"]) / 0.05
    recorded = record["gradient/conv1.weight"]
    assert 0 < np.abs(recorded).max() < 2.0 ** -14
    # The parameters hold a step of this size to a few digits.
    assert np.abs(used - recorded).max() <= 0.5 * 2.0 ** -24 / 0.05 + 2.0 ** -9 * np.abs(recorded).max()
    assert (recorded != 0).mean() > 0.9


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_a_step_that_overflows_is_left_out_told_and_recorded(rule, caplog):
    engine = build("mixed_float16", rule)
    batches = make_batches(SMALL, 3, 5)
    engine.train(ListLoop(batches[:1]))
    batches[1].x[:] = 1e30
    before = engine.state()
    with caplog.at_level(logging.WARNING):
        (_, record), = record_steps(engine, batches[1:2], {1})
    assert "1 of 2 steps left out" in caplog.text
    assert int(record["skipped"]) == 1 and engine.skipped_updates() == 1
    for name, value in record.items():
        if name.startswith("parameter_after/"):
            np.testing.assert_array_equal(value, record[name.replace("_after", "")], err_msg=name)
    assert float(engine.state()["scale/scale"]) == float(before["scale/scale"]) / 2
    (_, record), = record_steps(engine, batches[2:], {2})
    assert "skipped" not in record
    again = build("mixed_float16", rule)
    again.load_state(engine.state())
    assert again.skipped_updates() == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resuming_is_bit_exact(precision):
    batches = make_batches(SMALL, 6, 5)
    whole, first, second = (build(precision, "adam") for _ in range(3))
    whole.train(ListLoop(batches))
    first.train(ListLoop(batches[:3]))
    second.load_state(first.state())
    second.train(ListLoop(batches[3:]))
    for name, value in whole.state().items():
        np.testing.assert_array_equal(value, second.state()[name], err_msg=name)
