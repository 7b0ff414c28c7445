"""Jobs against fake services over real gRPC: order, failures, breaks, cancellation, resumption."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2, service_pb2
from crosstrain_service.errors import CrosstrainError
from doubles.fake_service import FakeService
from doubles.world import World, check_events, document, upload_dataset, wait_for

SUCCEEDED = coordinator_pb2.JOB_STATE_SUCCEEDED
TWO = (("torch", "2.13.0"), ("lasagne", "0.1"))


def test_a_job_runs_to_its_end_and_its_results_can_be_read(world: World) -> None:
    service = world.service(steps=4)
    job = world.finished(world.create(document(), "first").job_id)
    assert job.state == SUCCEEDED
    assert job.HasField("end_time")
    (run,) = job.runs
    assert run.run.run_id == "first.torch-2.13.0.0"
    assert (run.run.state, run.run.attempt, run.result.steps) == (run_pb2.RUN_STATE_SUCCEEDED, 1, 4)
    assert world.client.read(run.result.weights_digest) == b"weights of first.torch-2.13.0.0"
    assert service.executions == {"first.torch-2.13.0.0": 1}
    # Everything that all engines start from is stored.
    assert len(world.client.read(job.initial_weights_digest)) > 1000
    assert len(world.client.read(job.learning_rates_digest)) == 128 + 2 * 8


def test_fifty_equal_submissions_make_one_job(world: World) -> None:
    service = world.service()
    train = upload_dataset(world.client)
    with ThreadPoolExecutor(50) as pool:
        jobs = list(pool.map(lambda _: world.client.create_job(document(), train, None, "same"), range(50)))
    assert {job.job_id for job in jobs} == {"same"}
    assert len(list(world.client.list_jobs())) == 1
    assert world.finished("same").state == SUCCEEDED
    assert sum(service.executions.values()) == 1
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(document(repeats=2), train, None, "same")
    assert (caught.value.reason, caught.value.code) == ("ID_REUSED", "ALREADY_EXISTS")


def test_repeats_go_round_and_one_run_is_at_work_on_a_device(world: World) -> None:
    service = world.service(engines=TWO, delay=0.01)
    job = world.finished(world.create(document("torch", "lasagne", repeats=3), "j").job_id)
    assert job.state == SUCCEEDED
    expected = [f"j.{engine}.{repeat}" for repeat in range(3) for engine in ("torch-2.13.0", "lasagne-0.1")]
    assert service.order == expected
    assert service.most_running == 1


def test_jobs_queue_in_order_also_across_services_of_one_machine(world: World) -> None:
    first = world.service("a", delay=0.02)
    second = world.service("b", engines=(("lasagne", "0.1"),), delay=0.02)
    one = world.create(document("torch", "lasagne", cross_evaluate=True), "one")
    two = world.create(document("lasagne", "torch", cross_evaluate=True), "two")
    for job in (one, two):
        assert world.finished(job.job_id).state == SUCCEEDED
    assert first.most_running == second.most_running == 1
    ends = {job_id: world.client.get_job(job_id).end_time.ToNanoseconds() for job_id in ("one", "two")}
    begins = [run.run.start_time.ToNanoseconds() for run in world.client.get_job("two").runs]
    assert min(begins) > max(run.run.end_time.ToNanoseconds() for run in world.client.get_job("one").runs)
    assert ends["one"] < ends["two"]


def test_services_of_other_machines_work_side_by_side(world: World) -> None:
    first = world.service("a", delay=0.1, steps=6)
    # Another address of this machine stands for another machine.
    second = world.service("b", engines=(("lasagne", "0.1"),), delay=0.1, steps=6, host="127.0.0.2")
    world.create(document("torch", "lasagne"), "j")
    wait_for(lambda: bool(first.running) and bool(second.running))
    assert world.finished("j").state == SUCCEEDED


def test_every_engine_evaluates_the_weights_of_every_engine(world: World) -> None:
    world.service("a")
    world.service("b", engines=(("lasagne", "0.1"),))
    job = world.finished(world.create(document("torch", "lasagne", repeats=2, cross_evaluate=True), "j").job_id)
    assert job.state == SUCCEEDED
    trained = [run for run in job.runs if run.run.kind == run_pb2.RUN_KIND_TRAIN]
    evaluated = [run for run in job.runs if run.run.kind == run_pb2.RUN_KIND_EVALUATE]
    weights = [run.result.weights_digest for run in trained if run.repeat == 0]
    assert [run.run.run_id for run in evaluated] == ["j.torch-2.13.0.evaluate", "j.lasagne-0.1.evaluate"]
    for run in evaluated:
        assert [item.weights_digest for item in run.evaluations] == weights
        for item in run.evaluations:
            assert len(world.client.read(item.logits_digest)) == 32


def test_a_failed_run_fails_the_job_but_the_others_go_on(world: World) -> None:
    service = world.service(engines=TWO)
    service.failing = {"torch"}
    job = world.finished(world.create(document("torch", "lasagne", cross_evaluate=True), "j").job_id)
    assert job.state == coordinator_pb2.JOB_STATE_FAILED
    assert job.error.reason == errors_pb2.ERROR_REASON_ENGINE_FAILED
    assert "j.torch-2.13.0.0" in job.error.message
    states = {run.run.run_id: run.run.state for run in job.runs}
    assert states["j.lasagne-0.1.0"] == run_pb2.RUN_STATE_SUCCEEDED
    # Only what was trained is evaluated.
    assert states["j.lasagne-0.1.evaluate"] == run_pb2.RUN_STATE_SUCCEEDED
    assert len(states) == 3


def test_broken_streams_lose_and_double_nothing(world: World) -> None:
    service = world.service(steps=12)
    service.break_after = 3
    assert world.finished(world.create(document(), "j").job_id).state == SUCCEEDED
    assert service.watches >= 5
    steps = [
        event.run_event.steps.first_step
        for event in world.client.watch_job("j")
        if event.run_event.HasField("steps")
    ]
    assert steps == list(range(12))


def test_a_service_that_restarts_is_found_again(world: World) -> None:
    service = world.service(steps=30, delay=0.05)
    world.create(document(), "j")
    wait_for(lambda: bool(service.running))
    for _ in range(2):
        time.sleep(0.2)
        service.stop()
        time.sleep(0.2)
        service.start()
    assert world.finished("j").state == SUCCEEDED
    assert service.executions == {"j.torch-2.13.0.0": 1}


def test_a_service_that_lost_the_run_gets_it_again_as_another_attempt(world: World) -> None:
    service = world.service(steps=20, delay=0.05)
    world.create(document(), "j")
    wait_for(lambda: len(world.server.store.jobs.run_events("j.torch-2.13.0.0")) > 6)
    service.stop()
    service.lose_runs()
    service.start()
    job = world.finished("j")
    assert job.state == SUCCEEDED
    assert job.runs[0].run.attempt == 2
    assert service.executions == {"j.torch-2.13.0.0": 2}
    attempts = [event.attempt for event in world.server.store.jobs.run_events("j.torch-2.13.0.0")]
    assert attempts == sorted(attempts)
    assert set(attempts) == {1, 2}


def test_a_run_is_not_sent_to_a_service_that_got_the_port_of_another(world: World) -> None:
    first = world.service("a", steps=20, delay=0.05)
    world.create(document(), "j")
    wait_for(lambda: bool(first.running))
    first.stop()
    other = FakeService(world.folder, "b")
    other.port = first.port
    other.start()
    time.sleep(1.0)
    other.stop()
    first.start()
    assert world.finished("j").state == SUCCEEDED
    assert first.executions == {"j.torch-2.13.0.0": 1}
    assert not other.executions


def test_a_full_disk_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    service = world.service(steps=20)
    append, refusals = world.server.store.runs.append, []

    def sometimes_full(run_id: str, events: list[run_pb2.RunEvent]) -> bool:
        if len(refusals) < 3:
            refusals.append(run_id)
            raise CrosstrainError("STORAGE_FULL", "no room")
        return append(run_id, events)

    monkeypatch.setattr(world.server.store.runs, "append", sometimes_full)
    assert world.finished(world.create(document(), "j").job_id).state == SUCCEEDED
    assert len(refusals) == 3
    assert set(service.executions.values()) == {1}


def test_a_run_that_is_given_up_is_ended_at_its_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, patience_seconds=0.5)

    def full(run_id: str, events: list[run_pb2.RunEvent]) -> bool:
        raise CrosstrainError("STORAGE_FULL", "no room")

    try:
        service = world.service(steps=1000, delay=0.05)
        monkeypatch.setattr(world.server.store.runs, "append", full)
        job = world.finished(world.create(document(), "j").job_id)
        assert job.error.reason == errors_pb2.ERROR_REASON_STORAGE_FULL
        wait_for(lambda: not service.running)
    finally:
        world.close()


def test_a_full_service_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    service = world.service()
    submit, refusals = service._submit, []

    def sometimes_full(kind: int, request: object) -> run_pb2.Run:
        if len(refusals) < 6:
            refusals.append(kind)
            raise CrosstrainError("LIMIT_EXCEEDED", "too many runs wait")
        return submit(kind, request)

    monkeypatch.setattr(service, "_submit", sometimes_full)
    assert world.finished(world.create(document(), "j").job_id).state == SUCCEEDED
    assert len(refusals) == 6


def test_a_service_that_stays_away_fails_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, patience_seconds=1.0)
    try:
        service = world.service(steps=100, delay=0.05)
        world.create(document(), "j")
        wait_for(lambda: bool(service.running))
        service.stop()
        job = world.finished("j")
        assert job.state == coordinator_pb2.JOB_STATE_FAILED
        assert job.error.reason == errors_pb2.ERROR_REASON_SERVICE_UNREACHABLE
    finally:
        world.close()


def test_a_cancelled_job_ends_its_runs_and_frees_the_device(world: World) -> None:
    service = world.service(steps=1000, delay=0.05)
    world.create(document(repeats=3), "j")
    wait_for(lambda: bool(service.running))
    begin = time.monotonic()
    world.client.cancel_job("j")
    job = world.finished("j")
    assert time.monotonic() - begin < 3
    assert job.state == coordinator_pb2.JOB_STATE_CANCELLED
    assert {run.run.state for run in job.runs} == {run_pb2.RUN_STATE_CANCELLED}
    assert sum(service.executions.values()) == 1
    service.steps = 2
    assert world.finished(world.create(document(), "next").job_id).state == SUCCEEDED
    # A job that has ended stays as it is.
    assert world.client.cancel_job("next").state == SUCCEEDED


def test_unfinished_jobs_go_on_after_a_restart(world: World) -> None:
    service = world.service(engines=TWO, steps=10, delay=0.05)
    world.create(document("torch", "lasagne", cross_evaluate=True), "j")
    for _ in range(4):
        time.sleep(0.25)
        world.restart()
    assert world.finished("j").state == SUCCEEDED
    assert set(service.executions.values()) == {1}


def test_another_coordinator_takes_over(tmp_path: Path, url: str) -> None:
    shared = {"database_url": url, "artifacts_url": str(tmp_path / "artifacts")}
    first, second = World(tmp_path / "1", **shared), World(tmp_path / "2", **shared)
    try:
        service = first.service(steps=20, delay=0.05)
        first.create(document(), "before")
        # Either one takes jobs and shows events; one of them executes.
        second.create(document(), "after")
        wait_for(lambda: bool(service.running))
        assert len(second.client.list_engines()) == 1
        first.server.stop()
        for name in ("before", "after"):
            assert second.finished(name).state == SUCCEEDED
        assert service.executions == {"before.torch-2.13.0.0": 1, "after.torch-2.13.0.0": 1}
    finally:
        second.close()
        first.close()


def test_a_watcher_that_reconnects_misses_nothing(world: World) -> None:
    world.service(steps=30, delay=0.03)
    world.create(document(), "j")
    events = []
    for event in world.client.watch_job("j"):
        events.append(event)
        if len(events) in (8, 20):
            world.restart()
    check_events(events)
    assert events[-1].state_changed.state == SUCCEEDED


def test_weights_are_evaluated_without_training(world: World) -> None:
    world.service(engines=TWO)
    trained = world.finished(world.create(document("torch"), "j").job_id)
    text = """
name: again
task: evaluate
model: cnn2
engines: [torch, lasagne]
weights: [%s]
"""
    with pytest.raises(CrosstrainError) as caught:
        world.create(text % trained.runs[0].result.weights_digest)
    # The fake's result is no weights file, and that is found before anything starts.
    assert caught.value.reason == "INVALID_WEIGHTS"
    job = world.finished(world.create(text % trained.initial_weights_digest, "e").job_id)
    assert job.state == SUCCEEDED
    assert [len(run.evaluations) for run in job.runs] == [1, 1]


def test_two_versions_of_an_engine_are_compared_in_one_job(world: World) -> None:
    world.service("old", engines=(("tensorflow", "2.12.1"),))
    world.service("new", engines=(("tensorflow", "2.21.0"),))
    job = world.finished(world.create(document("tensorflow@2.12", "tensorflow"), "j").job_id)
    assert [(run.service, run.run.engine_version) for run in job.runs] == [("old", "2.12.1"), ("new", "2.21.0")]
    with pytest.raises(CrosstrainError) as caught:
        world.create(document("tensorflow", "tensorflow@2.21"))
    assert caught.value.reason == "INVALID_JOB"


def test_an_engine_that_lacks_something_is_refused_before_anything_starts(world: World) -> None:
    world.service(engines=TWO, lacking=("layer.convolution2d", "optimizer.sgd"))
    with pytest.raises(CrosstrainError) as caught:
        world.create(document("lasagne"))
    assert (caught.value.reason, caught.value.code) == ("UNSUPPORTED", "FAILED_PRECONDITION")
    for part in ("lasagne@0.1", "layer.convolution2d", "optimizer.sgd"):
        assert part in caught.value.message
    assert list(world.client.list_jobs()) == []


def test_an_unknown_engine_is_answered_with_the_known_ones(world: World) -> None:
    world.service(engines=TWO)
    with pytest.raises(CrosstrainError, match=r"lasagne@0\.1, torch@2\.13\.0") as caught:
        world.create(document("caffe"))
    assert (caught.value.reason, caught.value.code) == ("ENGINE_NOT_FOUND", "NOT_FOUND")


@pytest.mark.parametrize(("change", "reason", "field"), [
    ({"samples": 17}, "INVALID_DATA", "train.pixels_digest"),
    ({"input_shape": (1, 4, 16)}, "INVALID_DATA", "train.pixels_digest"),
    ({"classes": 2}, "INVALID_DATA", "train.labels_digest"),
    ({"divisor": 0.0}, "INVALID_FIELD", "data.train.divisor"),
    ({"pixels_digest": "0" * 64}, "ARTIFACT_NOT_FOUND", "train.pixels_digest"),
    ({"pixels_digest": "../x"}, "INVALID_FIELD", "train.pixels_digest"),
])
def test_wrong_data_is_refused_before_anything_starts(
    world: World, change: dict[str, object], reason: str, field: str
) -> None:
    world.service()
    dataset = upload_dataset(world.client)
    for name, value in change.items():
        dataset.ClearField(name)
        dataset.MergeFrom(type(dataset)(**{name: value}))
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(document(), dataset)
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_zero_steps_are_refused(world: World) -> None:
    world.service()
    with pytest.raises(CrosstrainError) as caught:
        world.create(document().replace("batch_size: 8", "batch_size: 17, drop_last: true"))
    assert caught.value.violations[0].field == "training.batch_size"


def test_runs_are_compared_step_by_step(world: World) -> None:
    world.service(engines=TWO, steps=4)
    world.finished(world.create(document("torch", "lasagne", repeats=2), "j").job_id)
    same = world.client.compare_runs("j.torch-2.13.0.0", "j.torch-2.13.0.1")
    assert (same.steps_compared, same.losses_equal, same.first_different_step) == (4, True, -1)
    other = world.client.compare_runs("j.torch-2.13.0.0", "j.lasagne-0.1.0")
    assert (other.losses_equal, other.first_different_step, other.horizon_step) == (False, 1, -1)
    assert other.max_difference_step == 3
    assert other.max_abs_difference == pytest.approx(3e-9, rel=1e-6)
    assert [(item.name, item.value_b) for item in other.fact_differences] == [("engine", "lasagne")]


def test_the_stored_request_is_sent_again_byte_for_byte(world: World) -> None:
    service = world.service()
    job = world.finished(world.create(document(), "j").job_id)
    run = world.server.store.jobs.run(job.runs[0].run.run_id)
    request = service_pb2.TrainRequest.FromString(run.request)
    sent = service.runs[run.run_id].body
    assert hashlib.sha256(request.SerializeToString(deterministic=True)).digest() == hashlib.sha256(sent).digest()
