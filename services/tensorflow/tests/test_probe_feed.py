"""A probe of ``keras-tensorflow`` is fed as training is, and what ``tf.data`` gathers is the recorded input."""

import dataclasses
import io

import numpy as np
import oracle
import pytest

from crosstrain_protos.v1 import data_pb2
from crosstrain_service import data
from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.model import Convolution, Dense, Dropout, Flatten, Model, Relu
from crosstrain_service.probe import record_steps
from crosstrain_tensorflow.keras.engine import KerasEngine
from crosstrain_tensorflow.keras.feed import Feed
from crosstrain_tensorflow.keras.gather import Gather
from crosstrain_tensorflow.keras.layers import RecordedLoss

LAYERS = (Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1)), Relu("relu"), Flatten("flatten"), Dense("dense", 3))
MODEL = Model("probed", (2, 4, 6), 3, LAYERS).validate()
DROPPED = Model("dropped", (2, 4, 6), 3, LAYERS[:2] + (Dropout("drop", 0.5),) + LAYERS[2:]).validate()
RANDOM = np.random.RandomState(6)
BYTES = RANDOM.randint(0, 256, (13,) + MODEL.input_shape).astype(np.uint8)
LABELS = RANDOM.randint(0, 3, len(BYTES)).astype("<i8")
#: Two epochs of 5, 5 and 3 rows.
STEPS = 6


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def platform_feed(folder, model, pixels, divisor, settings, dtype):
    """The batches of a run whose data set lies in an artifact store, as in a service."""
    store = ArtifactStore(str(folder))
    message = data_pb2.Dataset(pixels_digest=store.put(npy(pixels)), labels_digest=store.put(npy(LABELS)),
                               samples=len(pixels), input_shape=model.input_shape, classes=3, divisor=divisor)
    return data.Feed(data.Samples(store, message, "train"), model, settings, dtype)


def probe(folder, model=MODEL, pixels=BYTES, divisor=255, precision="float32", gathers=True):
    """Records of all steps by step; ``gathers=False`` offers no rows, so that the generator feeds them."""
    settings = dataclasses.replace(oracle.training(oracle.RULES["momentum"]), epochs=2, batch_size=5)
    feed = platform_feed(folder, model, pixels, divisor, settings, precision)
    assert feed.total_steps == STEPS
    engine = oracle.build(KerasEngine, model, settings, precision=precision)
    batches = [batch for epoch in range(2) for batch in feed.batches(epoch, 0, 3)]
    return dict(record_steps(engine, batches, range(STEPS), feed.step_rows if gathers else None))


@pytest.fixture
def seen(monkeypatch):
    """What happens while a probe runs: pipelines built, batches gathered, traces, and what ``fit`` is fed."""
    found = {"built": 0, "gathered": 0, "traced": 0, "fed": []}

    def counted(kind, method, name):
        plain = getattr(kind, method)

        def call(*items, **named):
            found[name] += 1
            return plain(*items, **named)

        monkeypatch.setattr(kind, method, call)

    start, init, begin = Feed.start, Gather.__init__, Gather.start
    counted(Gather, "__init__", "built")
    counted(Gather, "start", "gathered")
    counted(RecordedLoss, "__call__", "traced")

    def fed(self, epoch):
        dataset = start(self, epoch)
        if self._gather is not None:
            rows = epoch.rows()
            # A second one from the same rows: an element can be taken once.
            again = Gather.__new__(Gather)
            init(again, rows, self._dtype, 0)
            begin(again, rows)
            found["fed"] += list(again.dataset.take(1).as_numpy_iterator())
        return dataset

    monkeypatch.setattr(Feed, "start", fed)
    return found


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_probe_of_bytes_is_gathered_and_what_is_gathered_is_the_recorded_input(tmp_path, seen, precision):
    records = probe(tmp_path, precision=precision)
    # Every recording pass computes the loss eagerly; training traces it once.
    assert (seen["built"], seen["gathered"], seen["traced"]) == (1, STEPS, STEPS + 1)
    assert [len(labels) for _, labels in seen["fed"]] == [5, 5, 3] * 2
    for (x, labels), record in zip(seen["fed"], (records[step] for step in range(STEPS))):
        assert x.dtype == record["input"].dtype == precision
        assert x.tobytes() == record["input"].tobytes() and labels.tolist() == record["labels"].tolist()
    for record in records.values():
        assert abs(record["loss"] - record["probe_loss"]) < 1e-6


def test_probe_by_both_ways_of_feeding_is_the_same(tmp_path, seen):
    gathered, generated = probe(tmp_path), probe(tmp_path, gathers=False)
    assert seen["gathered"] == STEPS
    for step in range(STEPS):
        assert set(gathered[step]) == set(generated[step])
        for name, value in gathered[step].items():
            assert value.tobytes() == generated[step][name].tobytes(), (step, name)


@pytest.mark.parametrize("wrong", [256, 254])
def test_wrong_divisor_while_gathering_shows_in_the_recorded_loss(tmp_path, monkeypatch, wrong):
    """The recording pass is given the platform's batch, so the two losses of a record differ."""
    plain = Gather.__init__

    def mistaken(self, rows, *others):
        plain(self, dataclasses.replace(rows, divisor=np.float32(wrong)), *others)

    right = probe(tmp_path)
    monkeypatch.setattr(Gather, "__init__", mistaken)
    found = probe(tmp_path)
    assert found[0]["input"].tobytes() == right[0]["input"].tobytes()
    assert found[0]["probe_loss"] == right[0]["probe_loss"]
    for step in range(STEPS):
        assert abs(right[step]["loss"] - right[step]["probe_loss"]) < 1e-6
        assert abs(found[step]["loss"] - found[step]["probe_loss"]) > 1e-5


@pytest.mark.parametrize("model, pixels", [
    (DROPPED, BYTES), (MODEL, np.asfortranarray(BYTES)), (MODEL, BYTES.astype("<f4"))])
def test_probe_of_what_training_would_not_gather_is_generated(tmp_path, seen, model, pixels):
    records = probe(tmp_path, model, pixels)
    assert (seen["built"], seen["gathered"]) == (0, 0)
    for record in records.values():
        assert abs(record["loss"] - record["probe_loss"]) < 1e-6
