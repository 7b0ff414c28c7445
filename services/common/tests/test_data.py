"""Data sets of every type and shape, the batches of a feed, and reading ahead."""

import itertools
import threading
import time

import numpy as np
import pytest
from local import MODEL_1D

from crosstrain_protos.v1 import data_pb2
from crosstrain_service import streams
from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.data import Feed, FeedEpoch, Prefetch, Samples, StepClock
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Dense, Flatten, Model
from crosstrain_service.training import EarlyStopping, Rule, Training
from support import MODEL, npy


def samples(folder, pixels, labels=None, classes=3, divisor=255.0, **announced):
    store = ArtifactStore(str(folder))
    labels = np.zeros(len(pixels), "<i8") if labels is None else labels
    message = data_pb2.Dataset(pixels_digest=store.put(npy(pixels)), labels_digest=store.put(npy(labels)),
                               samples=len(pixels), input_shape=pixels.shape[1:], classes=classes, divisor=divisor)
    for name, value in announced.items():
        setattr(message, name, value)
    return Samples(store, message, "spec.train")


def training(**changes):
    settings = dict(epochs=2, batch_size=4, seed=3, rule=Rule("sgd", momentum=0.0, nesterov=False),
                    learning_rates=np.linspace(0.1, 0.2, 100))
    settings.update(changes)
    return Training(**settings)


RANDOM = np.random.RandomState(0)
BYTES = RANDOM.randint(0, 256, (10, 2, 6)).astype(np.uint8)


@pytest.mark.parametrize("pixels, divisor", [
    (BYTES, 255.0), (BYTES, 3.7), (BYTES.astype("<f4"), 255.0), (RANDOM.randn(7, 1, 5, 4).astype("<f4"), 1.0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inputs_are_exactly_that_division(tmp_path, pixels, divisor, order):
    data = samples(tmp_path, np.asarray(pixels, order=order), divisor=divisor)
    rows = np.array([3, 0, 3])
    for wanted in (rows, slice(1, 4)):
        x = data.inputs(wanted)
        assert x.dtype == np.float32 and x.flags.c_contiguous
        assert (x == pixels[wanted].astype(np.float32) / np.float32(divisor)).all()


@pytest.mark.parametrize("pixels, labels, words", [
    (BYTES.astype(np.int16), None, "pixels are int16"),
    (BYTES.astype(">f4"), None, "pixels are"),
    (BYTES, np.zeros(10, "<i4"), "labels are int32"),
    (BYTES, np.zeros(9, "<i8"), "labels are"),
    (BYTES, np.array([0] * 9 + [-1], "<i8"), "sample 9 has the label -1"),
])
def test_other_types_and_labels_are_refused(tmp_path, pixels, labels, words):
    with pytest.raises(CrosstrainError, match=words) as caught:
        samples(tmp_path, pixels, labels)
    assert caught.value.reason == "INVALID_DATA"


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((\n", npy(BYTES)[:-1]])
def test_broken_arrays_are_refused(tmp_path, data):
    store = ArtifactStore(str(tmp_path))
    with pytest.raises(CrosstrainError) as caught:
        store.array(store.put(data), "field")
    assert caught.value.reason == "INVALID_DATA" and caught.value.field == "field"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batches_follow_the_order_and_begin_anywhere(tmp_path, dtype):
    data = samples(tmp_path, BYTES, np.arange(10) % 3)
    feed = Feed(data, MODEL_1D, training(), dtype)
    assert (feed.steps_per_epoch, feed.total_steps) == (3, 6)
    order = streams.EpochOrders(10, 3).order(1)
    whole = list(feed.batches(1, 0, 3))
    assert [batch.step for batch in whole] == [3, 4, 5] and [len(batch.labels) for batch in whole] == [4, 4, 2]
    assert (np.concatenate([batch.x for batch in whole]) == data.inputs(order).astype(dtype)).all()
    assert np.concatenate([batch.labels for batch in whole]).tolist() == (order % 3).tolist()
    assert [batch.learning_rate for batch in whole] == list(np.linspace(0.1, 0.2, 100)[3:6])
    assert whole[2].masks["drop"].shape == (2, 15)
    assert all(array.dtype == dtype for batch in whole for array in [batch.x] + list(batch.masks.values()))
    part = list(Feed(data, MODEL_1D, training(), dtype).batches(1, 1, 1))[0]
    assert (part.x == whole[1].x).all() and (part.masks["drop"] == whole[1].masks["drop"]).all()


def test_file_order_without_the_held_out_rows_and_the_partial_batch(tmp_path):
    data = samples(tmp_path, BYTES, np.arange(10) % 3)
    feed = Feed(data, MODEL_1D, training(keep_order=True, drop_last=True, max_steps=3,
                                         early_stopping=EarlyStopping(0.1, 1)), np.float32)
    assert (feed.steps_per_epoch, feed.total_steps, len(feed.held_out)) == (2, 3, 1)
    rows = np.delete(np.arange(10), feed.held_out)
    x = np.concatenate([batch.x for batch in feed.batches(1, 0, 2)])
    assert (x == data.inputs(rows[:8])).all()


@pytest.mark.parametrize("changes, words", [
    ({"batch_size": 11}, "batch_size 11 is larger"), ({"batch_size": 11, "drop_last": True}, "give no batch of 11"),
    ({"learning_rates": np.ones(5)}, "5 learning rates for 6 steps"),
    ({"early_stopping": EarlyStopping(0.99, 1)}, "no sample is left"),
])
def test_settings_that_leave_nothing_to_train_on(tmp_path, changes, words):
    with pytest.raises(CrosstrainError, match=words):
        Feed(samples(tmp_path, BYTES), MODEL_1D, training(**changes), np.float32)


def test_many_steps_cost_nothing_in_advance(tmp_path):
    rates = np.lib.stride_tricks.as_strided(np.array([0.1]), (10 ** 9,), (0,))
    feed = Feed(samples(tmp_path, BYTES), MODEL_1D, training(epochs=1 << 24, learning_rates=rates), np.float32)
    assert feed.total_steps == 3 << 24
    assert next(feed.batches(5, 2, 1)).step == 17


@pytest.mark.parametrize("depth", [1, 3])
def test_reading_ahead_gives_the_same_batches(tmp_path, depth):
    pixels = RANDOM.randint(0, 256, (20,) + MODEL.input_shape).astype(np.uint8)
    feed = Feed(samples(tmp_path, pixels, classes=4), MODEL, training(), np.float32)
    clock = StepClock()
    ahead = list(FeedEpoch(feed, 0, 1, 4, depth, clock).batches())
    for one, other in zip(ahead, feed.batches(0, 1, 4)):
        assert one.step == other.step and one.x.tobytes() == other.x.tobytes()
    assert len(ahead) == 4 and clock.take(1)[0] == 4
    with pytest.raises(KeyError):
        clock.take(1)


@pytest.mark.parametrize("changes", [{}, {"drop_last": True}, {"keep_order": True},
                                     {"early_stopping": EarlyStopping(0.2, 1)}])
def test_rows_are_the_batches(tmp_path, changes):
    data = samples(tmp_path, BYTES, np.arange(10) % 3)
    network = Model("plain", (2, 6), 3, (Flatten("flatten"), Dense("dense", 3))).validate()
    feed = Feed(data, network, training(batch_size=3, **changes), np.float32)
    for first, count in ((0, feed.steps_per_epoch), (1, feed.steps_per_epoch - 1), (1, 1)):
        clock = StepClock()
        epoch = FeedEpoch(feed, 1, first, count, 0, clock)
        rows = epoch.rows()
        assert rows.pixels is data.pixels and rows.labels is data.labels and rows.divisor == np.float32(255)
        parts = streams.batch_rows(rows.order, rows.batch_size)
        expected = list(feed.batches(1, first, count))
        assert len(parts) == len(expected) == epoch.steps
        for part, batch in zip(parts, expected):
            assert part.dtype == np.int64 and (rows.labels[part] == batch.labels).all()
            assert (rows.pixels[part].astype(np.float32) / rows.divisor).tobytes() == batch.x.tobytes()
            assert clock.take(batch.step) == (len(part), 0.0)
        for step in (expected[0].step - 1, expected[-1].step + 1):
            with pytest.raises(KeyError):
                clock.take(step)


def test_rows_may_be_asked_for_and_not_used(tmp_path):
    """Waiting for batches is recorded if they come from the generator in the end."""
    network = Model("plain", (2, 6), 3, (Flatten("flatten"), Dense("dense", 3))).validate()
    clock = StepClock()
    epoch = FeedEpoch(Feed(samples(tmp_path, BYTES), network, training(), np.float32), 0, 0, 3, 0, clock)
    epoch.rows()
    assert len(list(epoch.batches())) == 3
    assert [clock.take(step)[0] for step in range(3)] == [4, 4, 2]
    assert clock.take(0) == (4, 0.0)


def test_batches_with_masks_are_no_rows(tmp_path):
    clock = StepClock()
    epoch = FeedEpoch(Feed(samples(tmp_path, BYTES), MODEL_1D, training(), np.float32), 0, 0, 3, 0, clock)
    assert epoch.rows() is None
    with pytest.raises(KeyError):
        clock.take(0)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_reader_that_stops_early_ends_the_thread():
    ahead = Prefetch(itertools.count(), 2)
    assert list(itertools.islice(ahead, 5)) == [0, 1, 2, 3, 4]
    begin = time.time()
    ahead.close()
    assert not threads() and time.time() - begin < 2
    ahead.close()


def test_error_while_reading_ahead_comes_after_what_was_read():
    def source():
        yield 1
        raise ValueError("broken")

    ahead, found = Prefetch(source(), 4), []
    with pytest.raises(ValueError, match="broken"):
        for item in ahead:
            found.append(item)
    ahead.close()
    assert found == [1] and not threads()


def test_no_more_than_asked_for_is_read_ahead():
    read = []
    ahead = Prefetch((read.append(index) or index for index in range(100)), 3)
    deadline = time.time() + 5
    while len(read) < 4 and time.time() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(read) == 4  # three in the queue and one in hand
    ahead.close()
