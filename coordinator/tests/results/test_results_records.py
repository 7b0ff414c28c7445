"""Records of runs from events: superseded ones are left out, sequence numbers seen before ignored."""

from __future__ import annotations

import numpy as np
import pytest

from crosstrain.results import JobRecord, compare_with_reference
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from doubles.recorded import Recording, full_recording


def record_of(recording: Recording) -> JobRecord:
    return JobRecord(recording.job).add_all(recording.events)


def test_an_attempt_voids_steps_and_epochs_from_its_first_step_on() -> None:
    recording = Recording()
    run = recording.add_run("torch", "2")
    recording.start(run)
    recording.steps(run, 0, [1.0, 2.0, 3.0, 4.0])
    recording.epoch(run, 0, 3)
    recording.steps(run, 4, [5.0, 6.0, 7.0])
    recording.start(run, resume_step=3, attempt=2)
    record = record_of(recording).runs[run]
    assert record.steps()["loss"].tolist() == [1.0, 2.0, 3.0]
    assert record.epochs == []
    assert record.last_step == 2
    recording.steps(run, 3, [40.0, 50.0], attempt=2)
    recording.epoch(run, 0, 3, attempt=2, loss=7.0)
    record = record_of(recording).runs[run]
    assert record.steps()["step"].tolist() == [0, 1, 2, 3, 4]
    assert record.steps()["loss"].tolist() == [1.0, 2.0, 3.0, 40.0, 50.0]
    assert [epoch.train_loss for epoch in record.epochs] == [7.0]
    assert record.attempts == 2


def test_an_epoch_that_ended_before_the_resumed_step_stays() -> None:
    recording = Recording()
    run = recording.add_run("torch", "2")
    recording.start(run)
    recording.steps(run, 0, [1.0] * 4)
    recording.epoch(run, 0, 3)
    recording.start(run, resume_step=4, attempt=2)
    record = record_of(recording).runs[run]
    assert len(record.epochs) == 1
    assert record.last_step == 3


def test_a_restart_from_the_beginning_voids_everything() -> None:
    recording = Recording()
    run = recording.add_run("torch", "2")
    recording.start(run)
    recording.steps(run, 0, [1.0] * 4)
    recording.epoch(run, 0, 3)
    recording.start(run, resume_step=0, attempt=2)
    record = record_of(recording).runs[run]
    assert (record.last_step, record.last_loss, record.epochs) == (-1, None, [])
    assert len(record.steps()["step"]) == 0


def test_evaluations_of_an_earlier_attempt_are_void() -> None:
    recording = Recording()
    run = recording.add_run("torch", "2", kind=run_pb2.RUN_KIND_EVALUATE)
    recording.start(run)
    recording.evaluated(run, "d" * 64, np.zeros((2, 3), np.float32), np.zeros(2))
    recording.start(run, attempt=2)
    recording.evaluated(run, "d" * 64, np.ones((2, 3), np.float32), np.zeros(2))
    assert len(record_of(recording).runs[run].evaluations) == 1


def test_events_seen_before_are_ignored() -> None:
    recording = full_recording()
    once = record_of(recording)
    twice = record_of(recording).add_all(recording.events)
    for run_id, run in once.runs.items():
        assert twice.runs[run_id].steps()["loss"].tolist() == run.steps()["loss"].tolist()
        assert len(twice.runs[run_id].epochs) == len(run.epochs) == 2


def test_states_and_speed() -> None:
    recording = full_recording()
    recording.end(coordinator_pb2.JOB_STATE_SUCCEEDED)
    record = record_of(recording)
    assert record.ended
    for run in record.training_runs():
        assert run.succeeded
        assert run.samples_per_second() == pytest.approx(16.0)
        assert run.seconds_per_step() == pytest.approx(0.5)


def test_comparison_with_the_reference() -> None:
    differences = {item.label: item for item in compare_with_reference(record_of(full_recording()).training_runs())}
    assert set(differences) == {"torch@2.13.0", "keras-tensorflow@2.12.0", "keras-tensorflow@3.15.1"}
    torch = differences["torch@2.13.0"]
    assert torch.steps == 8
    assert torch.largest == pytest.approx(1e-5, rel=1e-6)
    assert torch.first_above == 4
    same = differences["keras-tensorflow@2.12.0"]
    assert (same.early, same.largest, same.first_above) == (0.0, 0.0, None)


def test_early_steps_are_the_first_ten() -> None:
    recording = Recording()
    for engine, extra in (("reference", 0.0), ("torch", 1e-3)):
        run = recording.add_run(engine, "1")
        recording.steps(run, 0, [1.0] * 10 + [1.0 + extra] * 2)
    (difference,) = compare_with_reference(record_of(recording).training_runs())
    assert difference.early == 0.0
    assert difference.largest == pytest.approx(1e-3)
    assert (difference.step_of_largest, difference.first_above) == (10, 10)


def test_a_loss_that_is_not_finite_is_infinitely_far_away() -> None:
    recording = Recording()
    for engine, loss in (("reference", 1.0), ("torch", float("nan"))):
        recording.steps(recording.add_run(engine, "1"), 0, [1.0, loss])
    (difference,) = compare_with_reference(record_of(recording).training_runs())
    assert difference.largest == float("inf")
    assert difference.first_above == 1


def test_without_the_reference_nothing_is_compared() -> None:
    recording = Recording()
    recording.steps(recording.add_run("torch", "1"), 0, [1.0])
    assert compare_with_reference(record_of(recording).training_runs()) == []
