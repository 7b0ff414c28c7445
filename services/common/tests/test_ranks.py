"""Runs with several ranks: they compute what one computes, and end together, naming the rank, whatever happens."""

import itertools
import os
import signal
import time

import grpc
import numpy as np
import psutil
import pytest

from crosstrain_protos.v1 import errors_pb2, run_pb2, service_pb2, training_pb2
from crosstrain_service import weights
from support import Service, curve

STATE = run_pb2.RUN_STATE_SUCCEEDED
#: The oldest Python takes a part of what another one takes as a whole.
SHORT = "CROSSTRAIN_FAULT_POINTS" in os.environ


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("state") / "state", "crosstrain_ranks")
    yield running
    running.close()


def parallel(spec, data, **settings):
    """The same specification on so many ranks."""
    found = run_pb2.TrainSpec()
    found.CopyFrom(spec)
    found.execution.parallel.data = data
    found.execution.precision = training_pb2.PRECISION_FLOAT64
    for name, value in settings.items():
        setattr(found.execution.parallel, name, value)
    return found


def finished(service, run_id):
    events = list(service.watch(run_id))
    assert events[-1].state_changed.state == STATE, events[-1]
    return events


def result(events):
    return next(event.result for event in events if event.WhichOneof("event") == "result")


def tensors(service, events):
    return weights.from_bytes(service.get(result(events).weights_digest))[0]


def ranks_of(service, run_id):
    """Processes of a run's ranks."""
    launcher = psutil.Process(service.child_pid(run_id))
    return launcher.children(recursive=True)


def steps_done(service, run_id, at_least, attempt=1):
    """Waits until an attempt has done so many steps."""
    for event in service.watch(run_id):
        if event.attempt >= attempt and event.WhichOneof("event") == "steps" and (
                event.steps.first_step + len(event.steps.loss) >= at_least):
            return


def loss(service, run_id, number):
    """Waits for the loss of that number, from 1, of a rank."""
    found = (event.rank_lost for event in service.watch(run_id) if event.WhichOneof("event") == "rank_lost")
    return next(itertools.islice(found, number - 1, None))


def starts_of(events):
    return [event.attempt_started for event in events if event.WhichOneof("event") == "attempt_started"]


@pytest.fixture(scope="module")
def same(service):
    """Events of the same training on 1, 2, 3 and 5 ranks, in double precision: 60 samples in batches of 19, the last
    one 3."""
    spec = service.spec(10, batch=19)
    found = {}
    for count in (1, 2, 3, 5):
        service.train("same-%d" % count, "ranks", parallel(spec, count))
    for count in (1, 2, 3, 5):
        found[count] = finished(service, "same-%d" % count)
    return found


def test_ranks_compute_what_one_computes(service, same):
    """Also with a last batch smaller than the number of ranks."""
    one, parameters = curve(same[1]), tensors(service, same[1])
    for count in (2, 3, 5):
        assert result(same[count]).ranks == count
        found = curve(same[count])
        assert sorted(found) == list(range(10))
        np.testing.assert_allclose(list(found.values()), list(one.values()), rtol=1e-12)
        for name, value in tensors(service, same[count]).items():
            atol = 1e-12 * np.abs(parameters[name]).max()
            np.testing.assert_allclose(value, parameters[name], rtol=0, atol=atol)


def test_records_hold_the_times_of_every_rank(service, same):
    events = same[2]
    for event in events:
        if event.WhichOneof("event") == "steps":
            assert [len(times.step_seconds) for times in event.steps.ranks] == [len(event.steps.loss)] * 2
            for index, samples in enumerate(event.steps.samples):
                assert sum(times.samples[index] for times in event.steps.ranks) == samples
            assert min(min(times.step_seconds) for times in event.steps.ranks) >= 0.01
    weights_bytes = sum(value.nbytes for value in tensors(service, events).values())
    assert result(events).reduced_bytes_per_step == weights_bytes
    assert result(events).resources.memory_peak_bytes > 2 * 20e6  # both ranks


def test_a_probe_records_the_whole_batch(service):
    spec = service.spec(6, batch=13)
    records = []
    for count in (1, 3):
        request = service_pb2.ProbeRequest(run_id="probe-%d" % count, engine="ranks")
        request.spec.execution.CopyFrom(parallel(spec, count).execution)
        case = request.spec.cases.add(case_id="case", model=spec.model, train=spec.train, training=spec.training,
                                      initial_weights_digest=spec.initial_weights_digest, steps=[0, 4], test=spec.test)
        case.training.max_steps = 5
        service.training.Probe(request)
        events = finished(service, "probe-%d" % count)
        records.append({event.probe_recorded.step: weights.from_bytes(service.get(event.probe_recorded.digest))[0]
                        for event in events if event.WhichOneof("event") == "probe_recorded"})
    assert sorted(records[0]) == sorted(records[1]) == [-1, 0, 4]
    for step, one in records[0].items():
        assert sorted(one) == sorted(records[1][step])
        for name, value in one.items():
            scale = 1e-12 * max(1e-30, np.abs(value).max())
            np.testing.assert_allclose(records[1][step][name], value, rtol=0, atol=scale, err_msg=name)


def test_all_ranks_stop_early_at_the_same_epoch(service):
    spec = parallel(service.spec(400, batch=13, epochs=8), 1)
    spec.training.early_stopping.validation_share = 0.3
    spec.training.early_stopping.patience = 1
    spec.training.early_stopping.min_delta = 100.0  # nothing is such an improvement
    ended = []
    for count in (1, 2):
        service.train("early-%d" % count, "ranks", parallel(spec, count))
        events = finished(service, "early-%d" % count)
        assert result(events).stopped_early
        ended.append([event.epoch_ended for event in events if event.WhichOneof("event") == "epoch_ended"])
    assert len(ended[0]) == len(ended[1]) < 8
    for one, two in zip(*ended):
        assert (one.last_step, one.test_accuracy, one.validation_accuracy) == (
            two.last_step, two.test_accuracy, two.validation_accuracy)
        for field in ("train_loss", "validation_loss", "test_loss"):
            assert getattr(two, field) == pytest.approx(getattr(one, field), rel=1e-12)


def test_ranks_agree_on_a_checkpoint_that_is_asked_for(service):
    spec = parallel(service.spec(220, batch=1), 1)
    spec.train.CopyFrom(service.dataset(samples=400))  # the epoch does not end, so nothing is saved by itself
    spec.training.batch_size = 2
    service.train("asked", "ranks", parallel(spec, 2))
    steps_done(service, "asked", 10)
    os.kill(service.child_pid("asked"), signal.SIGUSR1)
    events = finished(service, "asked")
    saved = [event.checkpoint_saved.next_step for event in events if event.WhichOneof("event") == "checkpoint_saved"]
    assert any(10 < step < 200 for step in saved), saved


def test_an_engine_may_drive_its_ranks_from_one_process(service):
    service.train("single", "one-process", parallel(service.spec(3), 4))
    events = finished(service, "single")
    assert not any(event.steps.ranks for event in events if event.WhichOneof("event") == "steps")
    assert result(events).ranks == 4


def test_an_error_of_one_rank_ends_all_and_names_it(service):
    begin = time.time()
    service.train("raises", "raising-rank", parallel(service.spec(300), 2))
    events = list(service.watch("raises"))
    error = events[-1].state_changed.error
    assert events[-1].state_changed.state == run_pb2.RUN_STATE_FAILED
    assert error.message.startswith("rank 1: ") and "kernel image is invalid" in error.message
    assert time.time() - begin < 15
    assert max(event.attempt for event in events) == 1


def test_ranks_that_drift_apart_are_found_at_the_next_checkpoint(service):
    spec = parallel(service.spec(30), 2)
    spec.execution.checkpoint_every_steps = 3
    service.train("drifts", "drifting-rank", spec)
    events = list(service.watch("drifts"))
    last = events[-1].state_changed
    assert last.state == run_pb2.RUN_STATE_FAILED and last.error.reason == errors_pb2.ERROR_REASON_RANK_DIVERGED
    assert "after step 5, rank 1 holds other values of dense2.bias than rank 0" in last.error.message
    saved = [event.checkpoint_saved for event in events if event.WhichOneof("event") == "checkpoint_saved"]
    assert [item.next_step for item in saved] == [3]


def test_lost_ranks_are_noticed_and_the_run_goes_on(service):
    losses = [(signal.SIGKILL, 1), (signal.SIGSTOP, 0), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)]
    losses = losses[:2] if SHORT else losses
    steps = 40 + 40 * len(losses)
    spec = parallel(service.spec(steps), 2)
    spec.execution.checkpoint_every_steps = 5
    service.train("lost", "ranks", spec)
    seen = []
    for attempt, (number, victim) in enumerate(losses, 1):
        steps_done(service, "lost", 40 * attempt - 23, attempt)
        processes = ranks_of(service, "lost")
        seen += processes
        os.kill(processes[victim].pid, number)
        begin = time.time()
        noticed = loss(service, "lost", attempt)
        assert time.time() - begin < 10
        assert noticed.rank == victim and noticed.reason
    events = finished(service, "lost")
    assert sorted(curve(events)) == list(range(steps))
    starts = starts_of(events)
    assert [start.ranks for start in starts] == [2] * (len(losses) + 1)
    assert all(start.resume_step >= 40 * attempt - 28 for attempt, start in enumerate(starts[1:], 1))
    for process in seen:
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_run_may_shrink_to_what_is_left(service):
    spec = parallel(service.spec(16), 3, on_rank_loss=training_pb2.RANK_LOSS_SHRINK)
    spec.execution.checkpoint_every_steps = 5
    service.train("shrinks", "killed-rank", spec)
    service.train("alone", "ranks", parallel(service.spec(16), 1))
    events = finished(service, "shrinks")
    starts = starts_of(events)
    assert [start.ranks for start in starts] == [3, 2] and starts[1].resume_step == 5
    assert result(events).ranks == 2
    np.testing.assert_allclose(list(curve(events).values()), list(curve(finished(service, "alone")).values()),
                               rtol=1e-12)


def test_a_run_fails_when_fewer_ranks_are_left_than_the_job_allows(service):
    """That it may fail at once, the ranks that hang show (test_stall)."""
    settings = {"on_rank_loss": training_pb2.RANK_LOSS_SHRINK, "min_data": 3}
    service.train("fewest", "killed-rank", parallel(service.spec(10), 3, **settings))
    last = list(service.watch("fewest"))[-1]
    assert last.state_changed.state == run_pb2.RUN_STATE_FAILED
    assert last.state_changed.error.message.startswith("rank 1: ended by signal SIGKILL")


def test_ranks_listen_on_loopback_only_and_cancelling_leaves_none(service):
    service.train("cancelled", "ranks", parallel(service.spec(5000), 3))
    steps_done(service, "cancelled", 3)
    processes = ranks_of(service, "cancelled")
    assert len(processes) == 3
    for process in processes:
        connections = getattr(process, "net_connections", None) or process.connections  # renamed in psutil 6
        for connection in connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1"
    begin = time.time()
    assert service.cancel("cancelled").state == run_pb2.RUN_STATE_CANCELLED
    assert time.time() - begin < 3
    deadline = time.time() + 2
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.time() < deadline
        time.sleep(0.02)


def test_ranks_do_not_outlive_their_launcher(service):
    spec = parallel(service.spec(40), 2)
    spec.execution.checkpoint_every_steps = 5
    service.train("orphans", "ranks", spec)
    steps_done(service, "orphans", 15)
    processes = ranks_of(service, "orphans")
    os.kill(service.child_pid("orphans"), signal.SIGKILL)
    events = finished(service, "orphans")
    assert sorted(curve(events)) == list(range(40))
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_what_ranks_leave_behind_does_not_keep_the_run(service):
    service.train("left", "leaving-rank", parallel(service.spec(10), 2))
    events = finished(service, "left")
    assert sorted(curve(events)) == list(range(10)) and max(event.attempt for event in events) == 2


def test_the_front_may_die_and_adopts_the_ranks(service):
    service.train("adopted", "ranks", parallel(service.spec(150), 2))
    steps_done(service, "adopted", 10)
    service.kill()
    service.start()
    events = finished(service, "adopted")
    assert sorted(curve(events)) == list(range(150))
    assert max(event.attempt for event in events) == 1


@pytest.mark.parametrize("change, words", [
    ({"data": 7}, "7 ranks cannot share batches of 6 samples"),
    ({"tensor": 2}, "parallel.tensor"),
    ({"backend": "horovod", "data": 2}, "parallel.horovod"),
    ({"backend": "smoke", "data": 2}, "'smoke' is none of native, horovod, mpi"),
    ({"data": 2000}, "2000"),
])
def test_what_cannot_be_done_is_refused_before_anything_starts(service, change, words):
    spec = parallel(service.spec(3), **dict({"data": 1}, **change))
    with pytest.raises(grpc.RpcError) as caught:
        service.train("refused", "ranks", spec)
    assert words in caught.value.details()
    with pytest.raises(grpc.RpcError):
        service.run("refused")


def test_the_package_itself_may_refuse_a_combination(service):
    spec = parallel(service.spec(3), 5)
    spec.training.clip_norm = 1.0
    with pytest.raises(grpc.RpcError) as caught:
        service.train("clipped", "ranks", spec)
    assert "clipping on 5 ranks" in caught.value.details()
