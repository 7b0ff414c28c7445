"""Which runs may be at work, ids, and the comparison of two records."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosstrain.jobs.comparison import Recorded, compare, recorded
from crosstrain.jobs.naming import run_id
from crosstrain.jobs.scheduler import startable
from crosstrain.store import JobPlace, RunPlace
from crosstrain_protos.v1 import run_pb2

QUEUED, RUNNING, DONE = run_pb2.RUN_STATE_QUEUED, run_pb2.RUN_STATE_RUNNING, run_pb2.RUN_STATE_SUCCEEDED


def job(name: str, *runs: tuple[str, int], cancelled: bool = False, shared: bool = False) -> JobPlace:
    """A job of runs (device, state)."""
    places = [
        RunPlace(f"{name}{index}", name, run_pb2.RUN_KIND_TRAIN, state, "s", device, int(state != QUEUED))
        for index, (device, state) in enumerate(runs)
    ]
    return JobPlace(name, cancelled, shared, False, places)


def chosen(*jobs: JobPlace) -> list[str]:
    return [run.run_id for run in startable(jobs)]


def test_the_first_unfinished_run_of_each_device_is_at_work() -> None:
    assert chosen(job("a", ("x", DONE), ("x", QUEUED), ("y", QUEUED), ("x", QUEUED), ("y", QUEUED))) == ["a1", "a2"]


def test_a_device_belongs_to_the_oldest_job_until_that_has_ended() -> None:
    first = job("a", ("x", DONE), ("y", RUNNING))
    assert chosen(first, job("b", ("x", QUEUED), ("z", QUEUED))) == ["a1", "b1"]
    assert chosen(job("b", ("x", QUEUED))) == ["b0"]


def test_sharing_jobs_neither_wait_nor_hold_up() -> None:
    shared = job("s", ("x", QUEUED), ("x", QUEUED), shared=True)
    assert chosen(job("a", ("x", RUNNING)), shared) == ["a0", "s0", "s1"]
    assert chosen(shared, job("a", ("x", QUEUED))) == ["s0", "s1", "a0"]


def test_of_a_cancelled_job_only_what_is_at_work_is_followed() -> None:
    assert chosen(job("a", ("x", RUNNING), ("y", QUEUED), cancelled=True)) == ["a0"]


@given(st.lists(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([QUEUED, RUNNING, DONE])), max_size=5)))
def test_no_device_ever_has_two_runs(shape: list[list[tuple[str, int]]]) -> None:
    runs = startable([job(f"j{index}-", *states) for index, states in enumerate(shape)])
    devices = [run.device_key for run in runs]
    assert len(devices) == len(set(devices))
    if shape:
        # The oldest job never waits for another.
        first = next((index for index, (_, state) in enumerate(shape[0]) if state != DONE), None)
        assert first is None or f"j0-{first}" in {run.run_id for run in runs}


@given(st.text("abcXYZ0-_.", min_size=1, max_size=128), st.integers(0, 99))
def test_run_ids_are_short_legal_and_different(job_id: str, repeat: int) -> None:
    name = run_id(job_id, "keras-tensorflow", "2.21.0+cpu.local/x", str(repeat))
    assert len(name) <= 128
    assert "/" not in name
    assert "+" not in name
    assert name != run_id(job_id, "keras-tensorflow", "2.21.0+cpu.local/x", str(repeat + 1))
    assert name != run_id(job_id + "x", "keras-tensorflow", "2.21.0+cpu.local/x", str(repeat))


def event(**fields: object) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(**fields)  # type: ignore[arg-type]


def test_a_later_attempt_replaces_the_steps_it_repeats() -> None:
    found = recorded(iter([
        event(steps=run_pb2.StepRecords(first_step=0, loss=[1.0, 2.0, 3.0])),
        event(attempt_started=run_pb2.AttemptStarted(resume_step=1)),
        event(steps=run_pb2.StepRecords(first_step=1, loss=[5.0])),
        event(fingerprint=run_pb2.Fingerprint(facts={"a": "b"})),
    ]))
    assert found == Recorded({0: 1.0, 1: 5.0}, {"a": "b"})


def test_steps_of_both_runs_are_compared() -> None:
    result = compare(Recorded({0: 1.0, 1: 2.0, 2: 3.0}), Recorded({1: 2.0, 2: 3.0 + 1e-2, 3: 9.0}))
    assert (result.steps_compared, result.first_different_step, result.horizon_step) == (2, 2, 2)
    assert result.max_abs_difference == pytest.approx(1e-2)
    assert not result.losses_equal


def test_losses_that_are_not_finite() -> None:
    result = compare(Recorded({0: math.nan, 1: math.inf, 2: 1.0}), Recorded({0: math.nan, 1: math.inf, 2: math.nan}))
    assert (result.first_different_step, result.max_abs_difference, result.horizon_step) == (2, math.inf, 2)
    same = compare(Recorded({0: math.nan}), Recorded({0: math.nan}))
    assert same.losses_equal


def test_signed_zeros_differ_in_bits_but_not_in_size() -> None:
    result = compare(Recorded({0: 0.0}), Recorded({0: -0.0}))
    assert (result.losses_equal, result.max_abs_difference, result.horizon_step) == (False, 0.0, -1)


def test_runs_without_common_steps() -> None:
    result = compare(Recorded({0: 1.0}), Recorded({1: 1.0}))
    assert (result.steps_compared, result.max_difference_step, result.first_different_step) == (0, -1, -1)
