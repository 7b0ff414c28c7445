"""Runs with several ranks: they compute what one computes, and end together, naming the rank, whatever happens."""

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


def steps_done(service, run_id, at_least):
    for event in service.watch(run_id):
        if event.WhichOneof("event") == "steps" and event.steps.first_step + len(event.steps.loss) >= at_least:
            return


def test_ranks_compute_what_one_computes(service):
    """60 samples in batches of 13 (the last one 8) on 1, 2, 3 and 7 ranks; in double precision."""
    spec = service.spec(14, batch=13)
    curves, found = {}, {}
    for count in (1, 2, 3, 7):
        run = "same-%d" % count
        service.train(run, "ranks", parallel(spec, count))
        events = finished(service, run)
        curves[count], found[count] = curve(events), tensors(service, events)
        assert result(events).ranks == count
    for count in (2, 3, 7):
        assert sorted(curves[count]) == list(range(14))
        np.testing.assert_allclose(list(curves[count].values()), list(curves[1].values()), rtol=1e-12)
        for name, value in found[1].items():
            np.testing.assert_allclose(found[count][name], value, rtol=0, atol=1e-12 * np.abs(value).max())


def test_records_hold_the_times_of_every_rank(service):
    service.train("times", "ranks", parallel(service.spec(9, batch=13), 2))
    events = finished(service, "times")
    for event in events:
        if event.WhichOneof("event") == "steps":
            assert [len(times.step_seconds) for times in event.steps.ranks] == [len(event.steps.loss)] * 2
            for index, samples in enumerate(event.steps.samples):
                assert sum(times.samples[index] for times in event.steps.ranks) == samples
            assert min(min(times.step_seconds) for times in event.steps.ranks) >= 0.01
    weights_bytes = sum(value.nbytes for value in tensors(service, events).values())
    assert result(events).reduced_bytes_per_step == weights_bytes
    assert result(events).resources.memory_peak_bytes > 2 * 20e6  # both ranks


def test_a_last_batch_smaller_than_the_ranks(service):
    """60 samples in batches of 59: a last batch of one sample on three ranks."""
    spec = service.spec(4, batch=59)
    curves = []
    for count in (1, 3):
        service.train("small-%d" % count, "ranks", parallel(spec, count))
        curves.append(curve(finished(service, "small-%d" % count)))
    np.testing.assert_allclose(list(curves[1].values()), list(curves[0].values()), rtol=1e-12)


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
    spec = parallel(service.spec(400, batch=1), 1)
    spec.train.CopyFrom(service.dataset(samples=600))  # the epoch does not end, so nothing is saved by itself
    spec.training.batch_size = 2
    service.train("asked", "ranks", parallel(spec, 2))
    steps_done(service, "asked", 10)
    os.kill(service.child_pid("asked"), signal.SIGUSR1)
    events = finished(service, "asked")
    saved = [event.checkpoint_saved.next_step for event in events if event.WhichOneof("event") == "checkpoint_saved"]
    assert any(10 < step < 300 for step in saved), saved


def test_an_engine_may_drive_its_ranks_from_one_process(service):
    service.train("single", "one-process", parallel(service.spec(3), 4))
    events = finished(service, "single")
    assert not any(event.steps.ranks for event in events if event.WhichOneof("event") == "steps")
    assert result(events).ranks == 4


def test_an_error_of_one_rank_ends_all_and_names_it(service):
    begin = time.time()
    service.train("raises", "raising-rank", parallel(service.spec(300), 3))
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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [1] if SHORT else [0, 1])
def test_a_lost_rank_is_noticed_and_the_run_goes_on(service, number, victim):
    run = "lost-%d-%d" % (number, victim)
    spec = parallel(service.spec(80), 2)
    spec.execution.checkpoint_every_steps = 10
    service.train(run, "ranks", spec)
    steps_done(service, run, 25)
    first = ranks_of(service, run)
    pid = first[victim].pid
    os.kill(pid, number)
    begin = time.time()
    noticed = next(event for event in service.watch(run) if event.WhichOneof("event") == "rank_lost")
    assert time.time() - begin < 10
    assert noticed.rank_lost.rank == victim and noticed.rank_lost.reason
    events = finished(service, run)
    assert sorted(curve(events)) == list(range(80))
    starts = [event.attempt_started for event in events if event.WhichOneof("event") == "attempt_started"]
    assert [start.ranks for start in starts] == [2, 2] and starts[1].resume_step >= 20
    for process in first:
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_run_may_shrink_to_what_is_left(service):
    spec = parallel(service.spec(30), 3, on_rank_loss=training_pb2.RANK_LOSS_SHRINK)
    spec.execution.checkpoint_every_steps = 5
    service.train("shrinks", "killed-rank", spec)
    events = finished(service, "shrinks")
    starts = [event.attempt_started for event in events if event.WhichOneof("event") == "attempt_started"]
    assert [start.ranks for start in starts] == [3, 2] and starts[1].resume_step == 5
    assert result(events).ranks == 2
    alone = parallel(service.spec(30), 1)
    service.train("alone", "ranks", alone)
    np.testing.assert_allclose(list(curve(events).values()), list(curve(finished(service, "alone")).values()),
                               rtol=1e-12)


def test_a_run_may_fail_when_a_rank_is_lost(service):
    for run, settings in (("fails", {"on_rank_loss": training_pb2.RANK_LOSS_FAIL}),
                          ("fewest", {"on_rank_loss": training_pb2.RANK_LOSS_SHRINK, "min_data": 3})):
        service.train(run, "killed-rank", parallel(service.spec(30), 3, **settings))
        last = list(service.watch(run))[-1]
        assert last.state_changed.state == run_pb2.RUN_STATE_FAILED
        assert last.state_changed.error.message.startswith("rank 1: ended by signal SIGKILL")


def test_cancelling_leaves_no_process(service):
    service.train("cancelled", "ranks", parallel(service.spec(5000), 3))
    steps_done(service, "cancelled", 3)
    processes = ranks_of(service, "cancelled")
    assert len(processes) == 3
    begin = time.time()
    assert service.cancel("cancelled").state == run_pb2.RUN_STATE_CANCELLED
    assert time.time() - begin < 3
    deadline = time.time() + 2
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.time() < deadline
        time.sleep(0.02)


def test_ranks_do_not_outlive_their_launcher(service):
    spec = parallel(service.spec(100), 2)
    spec.execution.checkpoint_every_steps = 10
    service.train("orphans", "ranks", spec)
    steps_done(service, "orphans", 15)
    processes = ranks_of(service, "orphans")
    os.kill(service.child_pid("orphans"), signal.SIGKILL)
    events = finished(service, "orphans")
    assert sorted(curve(events)) == list(range(100))
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_the_front_may_die_and_adopts_the_ranks(service):
    service.train("adopted", "ranks", parallel(service.spec(150), 2))
    steps_done(service, "adopted", 10)
    service.kill()
    service.start()
    events = finished(service, "adopted")
    assert sorted(curve(events)) == list(range(150))
    assert max(event.attempt for event in events) == 1


def test_all_ranks_listen_on_loopback_only(service):
    service.train("ports", "ranks", parallel(service.spec(300), 2))
    steps_done(service, "ports", 3)
    for process in ranks_of(service, "ports"):
        connections = getattr(process, "net_connections", None) or process.connections  # renamed in psutil 6
        for connection in connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1"
    service.cancel("ports")


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
