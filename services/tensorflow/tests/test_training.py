"""Training: the published job, epochs, tracing, waiting for data, reported losses."""

import time

import numpy as np
import oracle
import pytest

from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service.capabilities import FEATURES, UNSUPPORTED
from crosstrain_service.engine import Batch, Epoch, Loop
from crosstrain_service.testing import DIGITS_LOSSES, ListLoop, cnn2, digits_batches, make_batches
from crosstrain_service.weights import initial_parameters

SMALL = cnn2((1, 8, 8), 3, (2, 3), 4)
SETTINGS = oracle.training(oracle.RULES["momentum"], (0.05,) * 20)


@pytest.mark.parametrize("precision, tolerance", [("float32", 1e-6), ("float64", 1e-11)])
def test_published_losses(kind, digits, precision, tolerance):
    model = cnn2()
    engines = [kind(model, SETTINGS, oracle.Execution(precision=precision)),
               ReferenceEngine(model, SETTINGS, oracle.Execution(precision="float64"))]
    batches = [oracle.cast(batch, precision) for batch in digits_batches(digits, 10)]
    for engine in engines:
        engine.load_parameters(initial_parameters(model, 0))
        loop = ListLoop([oracle.cast(batches[0], "float64") if engine is engines[1] else batches[0]])
        engine.train(loop)
    expected = engines[1].parameters()
    for name, value in engines[0].parameters().items():
        assert np.abs(value - expected[name]).max() < tolerance, name
    losses = loop_losses(engines[0], batches[1:])
    assert np.abs(np.array(losses) - DIGITS_LOSSES[1:10]).max() < tolerance


def loop_losses(engine, batches, per_epoch=None):
    loop = ListLoop(batches, per_epoch)
    engine.train(loop)
    return loop.losses


def traces(engine):
    """How often the training step was traced."""
    step = getattr(engine, "_step", None)
    if step is not None:
        return step.experimental_get_tracing_count()
    model = engine._network.training
    counted = []
    original = model.train_step

    def counting(data):
        counted.append(1)
        return original(data)

    model.train_step = counting
    return counted


def test_epochs_with_a_smaller_last_batch_trace_once_per_shape(kind):
    engine = oracle.build(kind, SMALL, SETTINGS)
    counted = traces(engine)
    batches = make_batches(SMALL, 12, 6)
    batches = [Batch(b.step, b.x[:2], b.labels[:2], b.learning_rate) if b.step % 4 == 3 else b for b in batches]
    losses = loop_losses(engine, batches, per_epoch=4)
    reference = oracle.build(ReferenceEngine, SMALL, SETTINGS, precision="float64")
    expected = loop_losses(reference, [oracle.cast(batch, "float64") for batch in batches])
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    total = len(counted) if isinstance(counted, list) else traces(engine)
    assert 1 <= total <= 2
    loop_losses(engine, batches[:3])
    assert (len(counted) if isinstance(counted, list) else traces(engine)) == total


def test_rates_and_new_loops_do_not_trace_again(kind):
    engine = oracle.build(kind, SMALL, SETTINGS)
    counted = traces(engine)
    for batch in make_batches(SMALL, 5, 6):
        loop_losses(engine, [Batch(batch.step, batch.x, batch.labels, 0.1 / (1 + batch.step))])
    assert (len(counted) if isinstance(counted, list) else traces(engine)) == 1


class Watched(Loop):
    """Notes how many batches were pulled before each step was done, and keeps losses unconverted."""

    def __init__(self, batches, fail_at=None, announced=None):
        self.step = 0
        self.rows = batches
        self.pulled = 0
        self.closed = False
        self.ahead, self.losses, self.waits = [], [], []
        self.fail_at = fail_at
        self.announced = announced or len(batches)

    def epochs(self):
        loop = self

        class Only(Epoch):
            steps = loop.announced

            def batches(self):
                try:
                    for batch in loop.rows:
                        if loop.pulled == loop.fail_at:
                            raise KeyError("from the batches")
                        loop.pulled += 1
                        yield batch
                finally:
                    loop.closed = True

        yield Only()

    def step_done(self, loss, correct=None, sync_seconds=0.0, copy_seconds=0.0):
        self.ahead.append(self.pulled - self.step)
        self.losses.append(loss)
        self.step += 1

    def learning_rate(self, step):
        return self.rows[step].learning_rate


def test_batches_are_pulled_when_needed_and_losses_stay(kind):
    batches = make_batches(SMALL, 8, 6)
    engine = oracle.build(kind, SMALL, SETTINGS)
    loop = Watched(batches)
    engine.train(loop)
    # Beside that of the step, one may wait in the queue to ``fit`` and one at it.
    allowed = 3 if kind.name == "keras-tensorflow" else 1
    assert all(1 <= pulled <= allowed for pulled in loop.ahead) and len(loop.ahead) == 8
    assert loop.closed
    # Converted only now, as in mode "speed".
    late = [float(loss) for loss in loop.losses]
    assert late == loop_losses(oracle.build(kind, SMALL, SETTINGS), batches)
    assert len(set(late)) == 8


@pytest.mark.parametrize("fail_at", [0, 3])
def test_errors_of_batches_arrive(kind, fail_at):
    engine = oracle.build(kind, SMALL, SETTINGS)
    with pytest.raises(KeyError, match="from the batches"):
        engine.train(Watched(make_batches(SMALL, 5, 6), fail_at))
    assert len(loop_losses(engine, make_batches(SMALL, 2, 6))) == 2


def test_fit_does_not_wait_for_batches_that_never_come():
    engine = oracle.build(oracle.engine_class("keras-tensorflow"), SMALL, SETTINGS)
    with pytest.raises(RuntimeError, match="3 elements of 5"):
        engine.train(Watched(make_batches(SMALL, 3, 6), announced=5))
    assert len(loop_losses(engine, make_batches(SMALL, 2, 6))) == 2


def test_errors_of_the_loop_arrive(kind):
    class Stop(Exception):
        pass

    class Stopping(Watched):
        def step_done(self, loss, correct=None, sync_seconds=0.0, copy_seconds=0.0):
            super().step_done(loss)
            if self.step == 2:
                raise Stop()

    engine = oracle.build(kind, SMALL, SETTINGS)
    loop = Stopping(make_batches(SMALL, 5, 6))
    with pytest.raises(Stop):
        engine.train(loop)
    assert loop.step == 2
    assert len(loop_losses(engine, make_batches(SMALL, 2, 6))) == 2


def test_probing_changes_nothing(kind):
    layers = oracle.plain.BatchNorm("norm", 1e-3), oracle.plain.Dropout("drop", 0.5)
    model = oracle.single(*layers, input_shape=(1, 4, 4))
    for semantics in ("canonical", "native"):
        engine = oracle.build(kind, model, SETTINGS, semantics=semantics)
        batch = make_batches(model, 1, 6)[0]
        engine.train(ListLoop([batch]))
        before = engine.state()
        first, second = engine.intermediates(batch), engine.intermediates(batch)
        for name, value in engine.state().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        assert first.loss == second.loss
        # The step that follows draws what the probe has seen.
        assert loop_losses(engine, [batch])[0] == pytest.approx(first.loss, rel=1e-5)


def test_predicting_in_parts_is_predicting_at_once(kind):
    engine = oracle.build(kind, SMALL, SETTINGS, precision="float64")
    x = make_batches(SMALL, 1, 7)[0].x.astype(np.float64)
    whole = engine.predict(x)
    assert whole.shape == (7, 3) and whole.dtype == np.float64
    np.testing.assert_allclose(np.concatenate([engine.predict(x[:4]), engine.predict(x[4:])]), whole, rtol=1e-12)


def test_features(kind):
    info = kind.info()
    assert info.name == kind.name
    assert set(info.features) <= set(FEATURES)
    for name, feature in info.features.items():
        assert feature.support != UNSUPPORTED or feature.note, name
        assert feature.support != "emulated" or feature.note, name
    assert info.features["device.cpu"].support == "exact"
    assert info.features["compiler.xla"].support == "exact"


def test_fingerprint_and_close(kind):
    engine = oracle.build(kind, SMALL, SETTINGS)
    facts = engine.fingerprint()
    assert facts["threads.intra"] == "1"
    assert facts["deterministic"] == facts["op_determinism"] == "true"
    assert facts["tf32"] == "false" and facts["compiler"] == "none"
    assert facts["env.TF_ENABLE_ONEDNN_OPTS"] == facts["onednn"]
    assert all(isinstance(value, str) for value in facts.values())
    assert engine.allocator_peak_bytes() is None
    engine.synchronize()
    engine.close()


def test_adapter_adds_little_time_per_step(kind):
    """A nearly empty network: what is left is calling TensorFlow, a few milliseconds even on a busy machine."""
    engine = oracle.build(kind, SMALL, SETTINGS)
    batches = make_batches(SMALL, 60, 6)
    loop_losses(engine, batches[:2])
    begin = time.process_time()
    loop_losses(engine, batches)
    assert (time.process_time() - begin) / 60 < 0.02
