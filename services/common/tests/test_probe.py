"""The steps of a probe: what an engine is offered, and that a probe's task offers what training does."""

import types

import numpy as np
import pytest
from local import MODEL_1D

from crosstrain_protos.v1 import data_pb2, run_pb2
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import convert, tasks, testing, weights
from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.data import Feed, FeedEpoch, Samples, StepClock
from crosstrain_service.probe import SingleStep, record_steps
from support import MODEL, npy

OFFERED = []


class OfferedEngine(ReferenceEngine):
    """Notes the rows that every epoch offers beside its batches."""

    def train(self, loop):
        for epoch in loop.epochs():
            OFFERED.append(epoch.rows())
            super().train(testing.ListLoop(list(epoch.batches())))
            assert epoch.steps == 1
            loop.step_done(0.0)


class Events(list):
    def emit(self, **event):
        self.append(run_pb2.RunEvent(**event))


def probe_case(store, model, samples=10, **settings):
    random = np.random.RandomState(1)
    pixels = random.randint(0, 256, (samples,) + model.input_shape).astype(np.uint8)
    labels = random.randint(0, model.classes, samples).astype("<i8")
    case = run_pb2.ProbeCase(
        case_id="case", model=convert.model_message(model), steps=[0, 5],
        initial_weights_digest=store.put(weights.to_bytes(weights.initial_parameters(model, 5))),
        train=data_pb2.Dataset(pixels_digest=store.put(npy(pixels)), labels_digest=store.put(npy(labels)),
                               samples=samples, input_shape=model.input_shape, classes=model.classes, divisor=255))
    training = case.training
    training.epochs, training.batch_size, training.seed = 2, 4, 5
    training.optimizer.sgd.momentum, training.optimizer.sgd.nesterov = 0.0, False
    training.learning_rates_digest = store.put(npy(np.full(6, 0.05)))
    for name, value in settings.items():
        setattr(training, name, value)
    return case


def offered(store, case):
    """Rows that the engine was offered while a probe's task ran the case, step by step, and the recorded steps."""
    request = types.SimpleNamespace(spec=run_pb2.ProbeSpec(cases=[case]))
    events = Events()
    del OFFERED[:]
    tasks.probe(tasks.Work(OfferedEngine, types.SimpleNamespace(request=request), store, events, None, None, 0.0))
    recorded = [event.probe_recorded for event in events if event.WhichOneof("event") == "probe_recorded"]
    assert not any(item.HasField("error") for item in recorded), recorded
    return list(OFFERED), {item.step: weights.from_bytes(store.get(item.digest))[0] for item in recorded}


def platform_feed(store, case, model):
    training = convert.training(case.training, np.full(6, 0.05), False)
    return Feed(Samples(store, case.train, "train"), model, training, np.float32)


@pytest.mark.parametrize("settings", [{}, {"keep_order": True}, {"drop_last": True}])
def test_every_step_of_a_probe_offers_the_rows_that_training_does(tmp_path, settings):
    store = ArtifactStore(str(tmp_path))
    case = probe_case(store, MODEL, **settings)
    feed = platform_feed(store, case, MODEL)
    case.steps[1] = feed.total_steps - 1
    found, recorded = offered(store, case)
    assert len(found) == feed.total_steps == (4 if "drop_last" in settings else 6)
    for epoch in range(2):
        wanted = FeedEpoch(feed, epoch, 0, feed.steps_per_epoch, 0, StepClock()).rows()
        own = found[epoch * feed.steps_per_epoch:(epoch + 1) * feed.steps_per_epoch]
        assert np.concatenate([rows.order for rows in own]).tolist() == wanted.order.tolist()
        for rows in own:
            assert rows.pixels is found[0].pixels and rows.labels is found[0].labels
            assert rows.divisor == wanted.divisor and rows.batch_size == wanted.batch_size
    assert sorted(recorded) == sorted(case.steps)
    for step, record in recorded.items():
        rows = found[step]
        x = rows.pixels[rows.order].astype(np.float32) / rows.divisor
        assert record["input"].tobytes() == x.astype(record["input"].dtype).tobytes()
        assert (record["labels"] == rows.labels[rows.order]).all()


def test_probe_with_dropout_masks_offers_no_rows(tmp_path):
    store = ArtifactStore(str(tmp_path))
    found, recorded = offered(store, probe_case(store, MODEL_1D))
    assert found == [None] * 6 and sorted(recorded) == [0, 5]


def test_batches_of_no_data_set_offer_no_rows():
    batches = testing.make_batches(MODEL, 2, 3)
    (epoch,) = SingleStep(batches[0]).epochs()
    assert epoch.rows() is None and list(epoch.batches()) == batches[:1]
    engine = OfferedEngine(MODEL, tasks._idle_training(), convert.execution(run_pb2.TrainSpec().execution))
    engine.load_parameters(weights.initial_parameters(MODEL, 5))
    del OFFERED[:]
    assert [step for step, _ in record_steps(engine, batches[:1], [0])] == [0] and OFFERED == [None]


def test_order_of_an_epoch_is_drawn_once_however_often_it_is_asked_for(tmp_path, monkeypatch):
    store = ArtifactStore(str(tmp_path))
    feed = platform_feed(store, probe_case(store, MODEL), MODEL)
    drawn, plain = [], feed._orders.order
    monkeypatch.setattr(feed._orders, "order", lambda epoch: drawn.append(epoch) or plain(epoch))
    for step in (0, 1, 2, 3, 4, 5, 0):
        (batch,) = feed.batches(step // 3, step % 3, 1)
        assert (feed.step_rows(step).labels[feed.step_rows(step).order] == batch.labels).all()
    assert drawn == [0, 1, 0]
