"""Batches that ``tf.data`` gathers from the data set are the platform's, bit for bit."""

import dataclasses

import numpy as np
import oracle
import pytest
import tensorflow as tf

from crosstrain_service import streams
from crosstrain_service.engine import Batch, Epoch, Rows
from crosstrain_service.model import Convolution, Dense, Dropout, Flatten, Model, Relu
from crosstrain_service.testing import ListLoop, make_batches
from crosstrain_tensorflow.keras.engine import KerasEngine
from crosstrain_tensorflow.keras.feed import Feed
from crosstrain_tensorflow.keras.gather import Gather, can_gather
from crosstrain_tensorflow.keras.layers import RecordedLoss

MODEL = Model("gathered", (2, 4, 6), 3, (
    Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1)), Relu("relu"), Flatten("flatten"),
    Dense("dense", 3))).validate()
RANDOM = np.random.RandomState(4)
BYTES = RANDOM.randint(0, 256, (23,) + MODEL.input_shape).astype(np.uint8)
BYTES.ravel()[:256] = np.arange(256)
FLOATS = RANDOM.randn(*BYTES.shape).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def configured():
    """TensorFlow's settings come before its first operation."""
    oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["sgd"]))


def aligned(array, offset=0):
    """A copy that begins ``offset`` bytes behind a multiple of 64."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    found = memory[start:start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


LABELS = aligned(RANDOM.randint(0, 3, len(BYTES)).astype(np.int64))


def stored(folder, array):
    """``array`` as a run gets it: memory-mapped, read-only."""
    np.save(str(folder / "array.npy"), array)
    return np.load(str(folder / "array.npy"), mmap_mode="r")


class RowEpoch(Epoch):
    """Some batches of an epoch by both ways; counts the batches that were taken from the generator."""

    def __init__(self, rows, first_step, dtype):
        self._rows, self._first, self._dtype = rows, first_step, dtype
        self.steps = -(-len(rows.order) // rows.batch_size)
        self.pulled = 0

    def rows(self):
        return self._rows

    def batches(self):
        source = self._rows
        for index, chosen in enumerate(streams.batch_rows(source.order, source.batch_size)):
            self.pulled += 1
            x = np.asarray(source.pixels[chosen], np.float32) / source.divisor
            yield Batch(self._first + index, np.ascontiguousarray(x, self._dtype), source.labels[chosen], 0.05)


class GeneratedEpoch(RowEpoch):
    def rows(self):
        return None


class RowLoop(ListLoop):
    """Two epochs, the first from its second batch on, as after a resume; every last batch is smaller."""

    def __init__(self, kind, pixels, divisor, dtype="float32"):
        super().__init__([])
        self.step = 1
        self.taken = []
        for epoch in range(2):
            order = np.random.RandomState(epoch).permutation(len(pixels))[5 * (1 - epoch):]
            rows = Rows(pixels, LABELS, np.float32(divisor), order, 5)
            self.taken.append(kind(rows, 1 if epoch == 0 else 5, dtype))

    def epochs(self):
        return iter(self.taken)

    def learning_rate(self, step):
        return 0.05 / (1 + step)


@pytest.mark.parametrize("pixels, divisor, dtype", [
    (BYTES, 255, "float32"), (BYTES, 3.7, "float32"), (BYTES, 1, "float32"), (BYTES, 255, "float64"),
    (FLOATS, 1, "float32"), (FLOATS, 1, "float64")])
def test_gathered_batches_are_the_platforms(tmp_path, pixels, divisor, dtype):
    loop = RowLoop(RowEpoch, stored(tmp_path, pixels), divisor, dtype)
    feed = Feed(MODEL, dtype, {}, 2)
    for epoch in loop.epochs():
        iterator = iter(feed.start(epoch))
        found = [[part.numpy() for part in next(iterator)] for _ in range(epoch.steps)]
        assert epoch.pulled == 0
        expected = list(epoch.batches())
        assert [len(labels) for _, labels in found] == [len(batch.labels) for batch in expected] == [5] * (
            len(expected) - 1) + [3]
        for (x, labels), batch in zip(found, expected):
            assert x.dtype == dtype and x.tobytes() == batch.x.tobytes()
            assert labels.tolist() == batch.labels.tolist()


def test_quotients_of_all_bytes_are_the_platforms():
    column, labels = aligned(np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1)), aligned(np.zeros(256, np.int64))
    for divisor in np.float32([1, 2, 3, 3.7, 10, 49, 127.5, 128.1, 255, 256, 1e-3, 12345.678]):
        rows = Rows(column, labels, divisor, np.arange(256), 256)
        assert can_gather(rows)
        gather = Gather(rows, "float32", 0)
        gather.start(rows)
        (x, _), = gather.dataset.take(1).as_numpy_iterator()
        assert x.tobytes() == (column.astype(np.float32) / divisor).tobytes(), divisor


def test_training_is_the_same(tmp_path):
    pixels = stored(tmp_path, BYTES)
    outcomes = []
    for kind in (RowEpoch, GeneratedEpoch):
        engine = oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["momentum"]))
        loop = RowLoop(kind, pixels, 255)
        engine.train(loop)
        assert [epoch.pulled for epoch in loop.taken] == ([0, 0] if kind is RowEpoch else [4, 5])
        assert loop.step == 10 and len(set(loop.losses)) == 9
        outcomes.append((loop.losses, engine.parameters()))
    assert outcomes[0][0] == outcomes[1][0]
    for name, value in outcomes[0][1].items():
        assert value.tobytes() == outcomes[1][1][name].tobytes(), name


def test_other_data_and_generated_batches_in_turn(tmp_path, monkeypatch):
    """A second loop may bring other arrays, or batches that cannot be gathered; nothing is traced again."""
    plain, traced = RecordedLoss.__call__, []
    monkeypatch.setattr(RecordedLoss, "__call__", lambda *items, **named: traced.append(1) or plain(*items, **named))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    loops = [(RowEpoch, stored(tmp_path / "a", BYTES)), (RowEpoch, np.asfortranarray(BYTES)), (GeneratedEpoch, BYTES),
             (RowEpoch, stored(tmp_path / "b", 255 - BYTES))]
    losses = []
    for generate in (False, True):
        engine = oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["sgd"]))
        losses.append([])
        for kind, pixels in loops:
            loop = RowLoop(GeneratedEpoch if generate else kind, pixels, 255)
            engine.train(loop)
            losses[-1] += loop.losses
            assert len(traced) == len(losses)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("drop_last, rows", [(False, None), (True, 5)])
def test_shapes_of_a_step_are_known_where_all_batches_are_full(tmp_path, monkeypatch, drop_last, rows):
    shapes, plain = [], RecordedLoss.__call__
    monkeypatch.setattr(RecordedLoss, "__call__", lambda self, labels, logits, *others, **named: shapes.append(
        logits.shape[0]) or plain(self, labels, logits, *others, **named))
    settings = dataclasses.replace(oracle.training(oracle.RULES["sgd"]), batch_size=5, drop_last=drop_last)
    losses = []
    for kind in (RowEpoch, GeneratedEpoch):
        engine = oracle.build(KerasEngine, MODEL, settings)
        loop = RowLoop(kind, stored(tmp_path, BYTES), 255)
        if drop_last:
            for epoch in loop.taken:
                epoch.steps -= 1
                epoch._rows = dataclasses.replace(epoch._rows, order=epoch._rows.order[:5 * epoch.steps])
        engine.train(loop)
        losses.append(loop.losses)
    assert shapes == [rows] * 2 and losses[0] == losses[1] and len(losses[0]) == 9 - 2 * drop_last


def test_fit_does_not_wait_for_rows_that_are_not_there(tmp_path):
    loop = RowLoop(RowEpoch, stored(tmp_path, BYTES), 255)
    loop.taken[1].steps += 1
    with pytest.raises(RuntimeError, match="23 rows for 6 steps of 5"):
        oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["sgd"])).train(loop)


@pytest.mark.parametrize("kind", [RowEpoch, GeneratedEpoch])
def test_all_epochs_go_on_with_one_iterator_until_one_fails(tmp_path, monkeypatch, kind):
    made = []
    plain = tf.data.Dataset.__iter__
    monkeypatch.setattr(tf.data.Dataset, "__iter__", lambda self: made.append(1) or plain(self))
    engine = oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["sgd"]))
    pixels = stored(tmp_path, BYTES)
    for _ in range(3):
        loop = RowLoop(kind, pixels, 255)
        engine.train(loop)
    assert len(loop.losses) == 9 and len(made) == 1
    loop = RowLoop(kind, pixels, 255)
    # In the middle of an epoch, while others wait in the queue.
    monkeypatch.setattr(loop, "step_done", lambda *items, **named: 1 / (loop.step - 3) and setattr(
        loop, "step", loop.step + 1))
    with pytest.raises(ZeroDivisionError):
        engine.train(loop)
    state, losses = engine.state(), []
    for again in (engine, oracle.build(KerasEngine, MODEL, oracle.training(oracle.RULES["sgd"]))):
        again.load_state(state)
        loop = RowLoop(kind, pixels, 255)
        again.train(loop)
        losses.append(loop.losses)
    assert len(losses[0]) == 9 and losses[0] == losses[1] and len(made) == 3


@pytest.mark.parametrize("pixels, divisor", [
    (np.asfortranarray(BYTES), 255), (aligned(BYTES, 4), 255), (aligned(FLOATS, 4), 1),
    # TensorFlow might flush such quotients to zero.
    (aligned(FLOATS), 255), (aligned(BYTES), 1e38), (aligned(BYTES), 1e-40),
])
def test_what_tensorflow_cannot_gather(pixels, divisor):
    rows = Rows(pixels, LABELS, np.float32(divisor), np.arange(5), 5)
    assert not can_gather(rows)
    assert can_gather(dataclasses.replace(rows, pixels=aligned(BYTES), divisor=np.float32(255)))
    assert not can_gather(dataclasses.replace(rows, pixels=aligned(BYTES), labels=aligned(LABELS, 8)))


def test_masks_come_from_the_generator():
    assert not can_gather(None)
    model = Model("dropped", MODEL.input_shape, 3, MODEL.layers[:2] + (Dropout("drop", 0.5),) + MODEL.layers[2:])
    engine = oracle.build(KerasEngine, model.validate(), oracle.training(oracle.RULES["sgd"]))
    loop = ListLoop(make_batches(model, 3, 4))
    engine.train(loop)
    assert len(loop.losses) == 3
