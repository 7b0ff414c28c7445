"""What the platform draws is frozen: a changed digest means that old runs cannot be repeated any more."""

import hashlib

import numpy as np
import pytest
from local import MODEL_1D

from crosstrain_service import streams, testing, weights


def digest(*arrays):
    checksum = hashlib.sha256()
    for array in arrays:
        checksum.update((array.dtype.str + str(array.shape)).encode() + np.ascontiguousarray(array).tobytes())
    return checksum.hexdigest()


def test_orders_are_frozen():
    orders = streams.EpochOrders(5, 7)
    assert [orders.order(epoch).tolist() for epoch in range(2)] == [[0, 3, 2, 1, 4], [2, 1, 0, 4, 3]]
    orders = streams.EpochOrders(1000, 7)
    assert digest(*[orders.order(epoch).astype("<i8") for epoch in range(3)]) == (
        "5ff4d4c48c011b4b541daf26ae04996679dfb0f9b8c529f9eceb858a4468e058")


def test_validation_split_is_frozen():
    assert [part.tolist() for part in streams.validation_split(8, 0.25, 7)] == [[0, 2, 3, 4, 5, 6], [1, 7]]
    assert digest(*[part.astype("<i8") for part in streams.validation_split(1000, 0.15, 7)]) == (
        "cbe144863247e95a06b64a39eb64bc9d0324a4043e0df42ab9dc2e60e2a7a1e6")


def test_masks_are_frozen():
    model = testing.cnn2((1, 28, 28), dropout=0.5)
    assert digest(streams.dropout_masks(model, 16, 1234567, 7)["dropout1"]) == (
        "9e1d31489536e1824d76878586336ea8c6d36fe8b9f9e3f4a5e18f647a6b08c9")
    assert digest(*streams.dropout_masks(MODEL_1D, 5, 0, 2 ** 31 - 1).values()) == (
        "52f1288e2b7c05a11bae38bdd6dc6273027100033992e1b031d5961347edc440")


@pytest.mark.parametrize("model, seed, expected", [
    (testing.cnn2((1, 28, 28)), 7, "cb78f1bf6646979f4607a3a393b8ba20cd3bd5e9b08ec8ebdeaf0221dbd874e2"),
    (MODEL_1D, 0, "5bc16b864f6bbf214f25a43e4172b397dd02614dd0e9907016f58e363dbccda6"),
])
def test_initial_parameters_are_frozen(model, seed, expected):
    parameters = weights.initial_parameters(model, seed)
    assert digest(*[parameters[name] for name in sorted(parameters)]) == expected


def test_orders_may_be_asked_for_in_any_order():
    ascending = streams.EpochOrders(50, 3)
    expected = [ascending.order(epoch).tolist() for epoch in range(6)]
    jumping = streams.EpochOrders(50, 3)
    for epoch in (4, 1, 1, 5, 0, 3):
        assert jumping.order(epoch).tolist() == expected[epoch]


@pytest.mark.parametrize("samples, share", [(2, 0.01), (10, 0.25), (11, 0.999), (1000, 1 / 3)])
def test_split_is_a_partition(samples, share):
    kept, held_out = streams.validation_split(samples, share, 1)
    assert sorted(kept.tolist() + held_out.tolist()) == list(range(samples))
    assert len(held_out) == max(1, round(samples * share))


def test_masks_are_scaled_and_differ_between_steps_and_layers():
    masks = streams.dropout_masks(MODEL_1D, 200, 3, 9)["drop"]
    assert masks.shape == (200, 15) and masks.dtype == np.float32
    assert set(np.unique(masks).tolist()) == {0.0, float(np.float32(1) / np.float32(0.75))}
    assert 0.7 < (masks > 0).mean() < 0.8
    assert (masks != streams.dropout_masks(MODEL_1D, 200, 4, 9)["drop"]).any()
    assert streams.dropout_masks(MODEL_1D, 1, 10 ** 9, 2 ** 31 - 1)["drop"].shape == (1, 15)


@pytest.mark.parametrize("samples, batch, drop, sizes", [
    (10, 4, False, [4, 4, 2]), (10, 4, True, [4, 4]), (8, 4, True, [4, 4]), (3, 4, False, [3]), (3, 4, True, [])])
def test_batches_of_an_epoch(samples, batch, drop, sizes):
    rows = streams.batch_rows(np.arange(samples), batch, drop)
    assert [len(part) for part in rows] == sizes and streams.steps_per_epoch(samples, batch, drop) == len(sizes)
    assert np.concatenate(rows + [np.arange(0)]).tolist() == list(range(sum(sizes)))
