"""The training loop: resumed anywhere, with every setting, it gives what an undisturbed run gives."""

import threading
import time

import numpy as np
import pytest
from local import Crash, Local, losses, parts

from crosstrain_protos.v1 import run_pb2
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.events import EventLog
from crosstrain_service.parallel.team import ALONE
from crosstrain_service.records import Writer
from crosstrain_service.spool import SpoolWriter


def crash_at(step):
    """An engine that is gone before it executes a step."""
    class Engine(ReferenceEngine):
        def _step(self, batch):
            if batch.step == step:
                raise Crash
            return super()._step(batch)
    return Engine


def crash_after(count):
    """An event log whose process is gone right after an event was written."""
    class Log(EventLog):
        left = count

        def emit(self, **event):
            sequence = super().emit(**event)
            if "resources" not in event:
                type(self).left -= 1
                if type(self).left < 0:
                    raise Crash
            return sequence
    return Log


def plain(run):
    return run


def with_early_stopping(run):
    run.spec.training.epochs = 6
    stopping = run.spec.training.early_stopping
    # The third epoch at the latest is no improvement by so much.
    stopping.validation_share, stopping.patience, stopping.min_delta = 0.25, 2, 10.0
    return run


def in_mid_epoch(run):
    run.spec.training.max_steps = 10
    run.spec.execution.checkpoint_every_steps = 5
    return run


def dropping_in_file_order(run):
    run.spec.training.drop_last = run.spec.training.keep_order = True
    run.spec.execution.checkpoint_every_steps = 2
    run.spec.execution.prefetch = 2
    return run


def outcome(events):
    """Everything of a finished run that does not depend on time."""
    result = parts(events, "result")[-1]
    epochs = {item.epoch: (item.train_loss, item.validation_loss, item.test_loss, item.last_step)
              for item in parts(events, "epoch_ended")}
    return (losses(events), epochs, result.weights_digest, result.steps, result.epochs, result.test_loss,
            result.test_accuracy, result.stopped_early)


@pytest.mark.parametrize("settings", [plain, with_early_stopping, in_mid_epoch, dropping_in_file_order])
def test_resuming_anywhere_changes_nothing(tmp_path, settings):
    expected = outcome(settings(Local(tmp_path / "calm")).train())
    for step in range(0, len(expected[0]), 3):
        run = settings(Local(tmp_path / ("step%d" % step)))
        with pytest.raises(Crash):
            run.train(crash_at(step))
        run.train()
        assert outcome(run.read()) == expected, "crash before step %d" % step
    for count in range(0, 60, 1 if settings is plain else 3):
        run = settings(Local(tmp_path / ("event%d" % count)))
        try:
            run.train(log=crash_after(count))
        except Crash:
            run.train()
            assert outcome(run.read()) == expected, "crash after event %d" % count
        else:
            assert count > len(expected[1])
            break


def test_epochs_and_steps_of_a_run_that_ends_in_mid_epoch(tmp_path):
    events = in_mid_epoch(Local(tmp_path)).train()
    assert [(item.epoch, item.last_step) for item in parts(events, "epoch_ended")] == [(0, 6), (1, 9)]
    # Step 5 in mid-epoch, step 7 at the end of an epoch, and step 10, once, after the evaluation.
    assert [item.next_step for item in parts(events, "checkpoint_saved")] == [5, 7, 10]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[-3:] == ["epoch_ended", "checkpoint_saved", "result"]
    assert parts(events, "result")[0].epochs == 2


def test_early_stopping_counts_over_a_resume_and_after_it_nothing_is_trained(tmp_path):
    run = with_early_stopping(Local(tmp_path))
    events = run.train()
    assert len(parts(events, "epoch_ended")) == 3 and parts(events, "result")[0].stopped_early
    again = run.train()
    assert not parts(again, "steps") and not parts(again, "epoch_ended")
    first, second = parts(events, "result")[0], parts(again, "result")[0]
    assert (second.weights_digest, second.steps, second.stopped_early, second.test_loss) == (
        first.weights_digest, first.steps, True, first.test_loss)


def test_time_of_an_epoch_counts_all_its_steps_whatever_is_saved_between(tmp_path):
    run = Local(tmp_path)
    run.spec.execution.checkpoint_every_steps = 2
    events = run.train()
    seconds = {}
    for steps in parts(events, "steps"):
        for epoch, value in zip(steps.epoch, steps.step_seconds):
            seconds[epoch] = seconds.get(epoch, 0.0) + value
    for item in parts(events, "epoch_ended"):
        # The time of a checkpoint is in the record of the step after it, once.
        assert item.train_seconds == pytest.approx(seconds[item.epoch], rel=1e-9)
    assert parts(events, "result")[0].train_seconds == pytest.approx(sum(seconds.values()), rel=1e-9)


def test_prefetch_changes_no_bit(tmp_path):
    found = []
    for depth in (0, 1, 5):
        run = Local(tmp_path / str(depth))
        run.spec.execution.prefetch = depth
        found.append(outcome(run.train()))
    assert found[0] == found[1] == found[2]
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


class Lazy(ReferenceEngine):
    """Gives losses that are read late, as a GPU does."""

    read = 0

    def _step(self, batch):
        value = super()._step(batch)

        class Loss:
            def __float__(self):
                Lazy.read += 1
                return float("inf") if batch.step == Lazy.bad else value
        return Loss()


def test_losses_in_speed_mode_are_read_late_and_once(tmp_path):
    expected = losses(Local(tmp_path / "parity").train())
    run = Local(tmp_path / "speed")
    run.spec.execution.mode = 2
    Lazy.bad, Lazy.read = -1, 0
    assert losses(run.train(Lazy)) == expected and Lazy.read == len(expected)


@pytest.mark.parametrize("bad", [0, 3, 6, 20])
def test_loss_that_is_not_finite_stops_before_anything_is_saved(tmp_path, bad):
    run = Local(tmp_path)
    run.spec.execution.mode = 2
    Lazy.bad = bad
    with pytest.raises(CrosstrainError) as caught:
        run.train(Lazy)
    assert caught.value.reason == "NOT_FINITE" and "step %d is inf" % bad in caught.value.message
    assert all(item.next_step <= bad for item in parts(run.events, "checkpoint_saved"))
    assert not parts(run.events, "result")


def test_what_the_writing_thread_found_stops_the_next_flush(tmp_path):
    recorder = Writer(EventLog(SpoolWriter(str(tmp_path / "spool")), "run", 1), np.full(9, 0.1), 9, ALONE)
    recorder.add(0, float("nan"), 0, 0, 0, 0, 0, 0, 4, None)
    recorder._thread.join(10)
    with pytest.raises(CrosstrainError, match="step 0"):
        recorder.flush()
    with pytest.raises(CrosstrainError, match="step 0"):
        recorder.close()


def test_no_record_is_lost_between_the_threads(tmp_path):
    path = str(tmp_path / "spool")
    recorder = Writer(EventLog(SpoolWriter(path), "run", 1), np.full(60000, 0.1), 60000, ALONE)
    stop = threading.Event()

    def flush():
        while not stop.is_set():
            recorder.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    for step in range(30000):
        recorder.add(step, 1.0, 0, 0, 0, 0, 0, 0, 1, None)
    stop.set()
    flushing.join()
    recorder.close()
    assert recorder.take_sums() == (30000.0, 30000)


def test_engine_that_skips_steps_is_found_out_and_leaves_no_thread(tmp_path):
    class Skipping(ReferenceEngine):
        def train(self, loop):
            for epoch in loop.epochs():
                for batch in epoch.batches():
                    loop.step_done(self._step(batch))
                    break

    run = Local(tmp_path)
    run.spec.execution.prefetch = 3
    with pytest.raises(CrosstrainError, match="executed 1 steps of 7 in epoch 0"):
        run.train(Skipping)
    deadline = time.time() + 5
    while [thread for thread in threading.enumerate() if thread.name == "prefetch"] and time.time() < deadline:
        time.sleep(0.01)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_nothing_is_written_after_the_end_of_a_run(tmp_path):
    writer = SpoolWriter(str(tmp_path / "spool"))
    events = EventLog(writer, "run", 1)
    events.state(run_pb2.RUN_STATE_RUNNING)
    events.state(run_pb2.RUN_STATE_FAILED, CrosstrainError("INTERNAL", "x"))
    events.emit(resources=run_pb2.ResourceSample(memory_bytes=1))
    assert writer.last_sequence == 2
