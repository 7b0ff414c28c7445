"""Mixed precision: products in 16 bits, everything that lasts in float32."""

import logging

import numpy as np
import oracle
import pytest
import ranks
from test_engine import assert_same

from crosstrain_service.model import Convolution, LocalResponseNorm, Pad, Pool, Relu
from crosstrain_service.probe import record_steps
from crosstrain_service.testing import ListLoop, cnn2, make_batches
from crosstrain_service.training import Execution, Parallel, WeightDecay
from crosstrain_torch.engine import TorchEngine

PRECISIONS = {"mixed_bfloat16": 2.0 ** -8, "mixed_float16": 2.0 ** -11}
LAYERS = {
    "average": Pool("p", "average", (3, 3), (2, 2), (1, 1), (0, 0), "ceil", True),
    "max": Pool("p", "max", (3, 3), (2, 2), (1, 1), (0, 0)),
    "across": LocalResponseNorm("l", 3, 1e-2, 0.75, 1.0),
    "within": LocalResponseNorm("l", 3, 1e-2, 0.75, 1.0, "within_channel"),
    "pad": Pad("p", (1, 0), (0, 2)), "relu": Relu("r"),
    "convolution": Convolution("c", 5, (3, 3), (1, 1), (1, 0), (0, 1)),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_are_those_of_float32(layer, precision):
    model = oracle.single(LAYERS[layer], input_shape=(2, 8, 8))
    batch = make_batches(model, 1, 5, sparse=False)[0]
    low = oracle.engine(model, oracle.training(oracle.RULES["sgd"]), precision=precision)
    wide = oracle.engine(model, oracle.training(oracle.RULES["sgd"]))
    found, expected = low.intermediates(batch), wide.intermediates(batch)
    for name, value in expected.gradients.items():
        assert found.gradients[name].dtype == np.float32
        error = np.linalg.norm(found.gradients[name] - value) / np.linalg.norm(value)
        assert 0 < error < 16 * PRECISIONS[precision], name
    assert all(value.dtype == np.float32 for value in low.parameters().values())
    assert (low.fingerprint()["precision"], wide.fingerprint()["precision"]) == (precision, "float32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resuming_is_bit_exact(precision):
    model = oracle.everything()
    settings = oracle.training(oracle.RULES["adam"], weight_decay=WeightDecay(0.01, True), clip_norm=0.5)
    batches = make_batches(model, 6, 5)
    whole = oracle.engine(model, settings, precision=precision)
    whole.train(ListLoop(batches))
    first = oracle.engine(model, settings, precision=precision)
    first.train(ListLoop(batches[:3]))
    second = TorchEngine(model, settings, Execution(precision=precision))
    second.load_state(first.state())
    second.train(ListLoop(batches[3:]))
    assert_same(whole.state(), second.state())


@pytest.mark.parametrize("rule", ["momentum", "adam", "rmsprop"])
def test_a_step_that_overflows_is_left_out_and_told(rule, caplog):
    model = cnn2((1, 8, 8), 4, (4, 6), 10)
    settings = oracle.training(oracle.RULES[rule], weight_decay=WeightDecay(0.01, True), clip_norm=0.5)
    built = oracle.engine(model, settings, precision="mixed_float16")
    batches = make_batches(model, 3, 5)
    built.train(ListLoop(batches[:1]))
    before, counted = built.parameters(), built.optimizer_state()
    batches[1].x[:] = 1e30
    with caplog.at_level(logging.WARNING):
        (_, record), = record_steps(built, batches[1:2], {1})
    assert int(record["skipped"]) == 1 and built.skipped_updates() == 1
    assert "step 1: gradients are not finite in float16, no update (1 steps so far)" in caplog.text
    assert_same(before, built.parameters())
    assert_same(counted, built.optimizer_state())
    assert float(built.state()["precision/scale"]) == 2.0 ** 15
    (_, record), = record_steps(built, batches[2:], {2})
    assert "skipped" not in record
    assert built.skipped_updates() == int(built.state()["precision/skipped"]) == 1
    assert all(np.isfinite(value).all() for value in built.parameters().values())
    assert any(np.any(value != before[name]) for name, value in built.parameters().items())


@pytest.mark.parametrize("precision, parallel", [
    ("mixed_float16", Parallel(data=2)), ("mixed_bfloat16", Parallel(data=2)), ("mixed_bfloat16", Parallel(tensor=2)),
    ("mixed_bfloat16", Parallel(pipeline=2)),
], ids=lambda value: value if isinstance(value, str) else "%d-%d-%d" % (value.data, value.tensor, value.pipeline))
def test_several_ranks(precision, parallel):
    model = cnn2((1, 8, 8), 4, (4, 6), 10) if parallel.pipeline > 1 else oracle.everything()
    settings, batches = oracle.training(oracle.RULES["sgd"]), make_batches(model, 2, 13, sparse=False)
    one = ranks.train(Execution(precision=precision), model, settings, batches)
    several = ranks.run(ranks.train, parallel, model, settings, batches, precision=precision)
    assert 0 < ranks.deviation(one.parameters, several[0].parameters) < 8 * PRECISIONS[precision]
    assert ranks.deviation(several[0].parameters, several[1].parameters) == 0
