"""Data parallel on several devices of one process computes what one device computes."""

import numpy as np
import oracle
import pytest

from crosstrain_service import model as plain
from crosstrain_service.engine import Batch
from crosstrain_service.probe import record_steps
from crosstrain_service.testing import ListLoop, cnn2, make_batches
from crosstrain_service.training import Parallel, WeightDecay

SMALL = cnn2((1, 8, 8), 3, (2, 3), 4)
DROPPED = cnn2((1, 8, 8), 3, (2, 3), 4, dropout=0.5)
NORMED = oracle.chain(plain.BatchNorm("norm", 1e-3), plain.Relu("relu"), plain.Convolution(
    "second", 4, (3, 3), (1, 1), (1, 1), (1, 1)), plain.BatchNorm("again", 1e-3), input_shape=(2, 5, 5))
EVERYTHING = {"weight_decay": WeightDecay(0.01), "clip_norm": 0.5}


def engine_class():
    return oracle.engine_class("tensorflow")


def rows(batch, count):
    masks = {name: mask[:count] for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x[:count], batch.labels[:count], batch.learning_rate, masks)


def batches_of(model, precision="float64", size=13, count=5, last=1):
    batches = make_batches(model, count, size)
    batches[-1] = rows(batches[-1], last)
    return [oracle.cast(batch, precision) for batch in batches]


def build(model, settings, ranks, precision="float64", **execution):
    parallel = Parallel(**ranks) if isinstance(ranks, dict) else Parallel(data=ranks)
    return oracle.build(engine_class(), model, settings, precision=precision, parallel=parallel, **execution)


def distance(one, other):
    """Largest difference of any value, relative to the largest of its tensor's kind."""
    assert set(one) == set(other)
    groups = {}
    for name, value in one.items():
        key = name.split("/")[0]
        groups[key] = max(groups.get(key, 1e-3), np.abs(value).max() if value.size else 0)
    return max(np.abs(other[name] - value).max() / groups[name.split("/")[0]] for name, value in one.items())


def deviation(model, settings, ranks, precision="float64", **execution):
    """Largest deviation of any value recorded in any step from one rank's."""
    batches = batches_of(model, precision)
    found = []
    for count in (1, ranks):
        engine = build(model, settings, count, precision, **execution)
        records = [record for _, record in record_steps(engine, batches, {batch.step for batch in batches})]
        records.append({"parameter/" + name: value for name, value in engine.parameters().items()})
        records.append({"logits": engine.predict(batches[0].x)})
        found.append(records)
    return max(distance(one, other) for one, other in zip(*found))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("model", [SMALL, DROPPED, NORMED], ids=["cnn2", "dropout", "norm"])
def test_ranks_compute_what_one_computes(model, ranks):
    assert deviation(model, oracle.training(oracle.RULES["momentum"]), ranks) < 1e-12


@pytest.mark.parametrize("model", [SMALL, NORMED], ids=["cnn2", "norm"])
def test_single_precision(model):
    assert deviation(model, oracle.training(oracle.RULES["momentum"]), 3, "float32") < 2e-6


@pytest.mark.parametrize("rule", ["adam", "adadelta"])
def test_rules_with_clipping_and_decay(rule):
    assert deviation(DROPPED, oracle.training(oracle.RULES[rule], **EVERYTHING), 2) < 1e-12
