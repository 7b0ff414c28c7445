"""Several ranks compute what one computes."""

import dataclasses

import numpy as np
import oracle
import pytest
import ranks

from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.testing import cnn2, make_batches
from crosstrain_service.training import Parallel, WeightDecay
from crosstrain_torch.horovod_backend import obstacle

SMALL = cnn2((1, 8, 8), 4, (4, 6), 10)
RATES = (0.05, 0.05, 0.1, 0.02, 0.02, 0.3)


def everything():
    """Convolution, batch norm, dropout: all that depends on other rows or on masks."""
    return Model("everything", (1, 8, 8), 4, (
        Convolution("conv1", 3, (3, 3), (1, 1), (1, 1), (1, 1)),
        BatchNorm("norm1", 1e-3), Relu("relu1"), Pool("pool1", "max", (2, 2), (2, 2), (0, 0), (0, 0)),
        Flatten("flatten"), Dense("dense1", 8), BatchNorm("norm2", 1e-3), Relu("relu2"),
        Dropout("dropout1", 0.5), Dense("dense2", 4),
    )).validate()  # fmt: skip


def batches(model, sizes):
    found = []
    for step, size in enumerate(sizes):
        batch = make_batches(model, step + 1, size)[step]
        found.append(dataclasses.replace(batch, learning_rate=RATES[step]))
    return found


def settings(rule="momentum", **options):
    return oracle.training(oracle.RULES[rule], RATES, **options)


def check(model, rules, given, parallel, tolerance, **execution):
    """Trains with one rank and with several; returns the largest deviation and what the ranks found."""
    parts = execution.pop("accumulation_steps", 1)
    one = ranks.run(ranks.train, Parallel(), model, rules, given, **execution)[0]
    several = ranks.run(ranks.train, parallel, model, rules, given, accumulation_steps=parts, **execution)
    found = max(ranks.deviation(one.parameters, several[0].parameters),
                ranks.deviation(one.optimizer, several[0].optimizer))
    print("deviation %.2e" % found)
    assert found <= tolerance
    return one, several


@pytest.mark.parametrize("size", [2, 3, 4])
def test_data_parallel(size):
    given = batches(SMALL, (13, 13, 13, 1))
    one, several = check(SMALL, settings(), given, Parallel(data=size), 1e-12, precision="float64")
    assert all(rank.bytes == 4 * sum(value.nbytes for value in one.parameters.values()) for rank in several)
    for other in several[1:]:
        assert ranks.deviation(several[0].parameters, other.parameters) == 0


@pytest.mark.parametrize("parallel", [
    Parallel(tensor=2), Parallel(tensor=3), Parallel(pipeline=2), Parallel(pipeline=3, micro_batches=2),
    Parallel(data=2, tensor=2), Parallel(data=2, pipeline=2), Parallel(tensor=2, pipeline=2),
], ids=str)
def test_parts_of_the_network(parallel):
    given = batches(SMALL, (13, 13, 6, 1))
    rules = settings("adam", clip_norm=0.5, weight_decay=WeightDecay(0.01))
    check(SMALL, rules, given, parallel, 1e-12, precision="float64")


@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.parametrize("size", [2, 3])
def test_horovod(size):
    model = everything()
    given = batches(model, (13, 13, 5, 2))
    rules = settings("adam", clip_norm=0.5, weight_decay=WeightDecay(0.01))
    check(model, rules, given, Parallel(data=size, backend="horovod"), 1e-12, precision="float64")
