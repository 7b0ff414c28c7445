"""Which runs may be at work, ids, and what the events of a run tell."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from crosstrain.jobs.naming import run_id
from crosstrain.jobs.scheduler import startable
from crosstrain.judging.reading import recorded
from crosstrain.store import JobPlace, RunPlace
from crosstrain_protos.v1 import coordinator_pb2, run_pb2

QUEUED, RUNNING, DONE = run_pb2.RUN_STATE_QUEUED, run_pb2.RUN_STATE_RUNNING, run_pb2.RUN_STATE_SUCCEEDED


def job(name: str, *runs: tuple[str, int], cancelled: bool = False, shared: bool = False) -> JobPlace:
    """A job of runs (device, state)."""
    places = [
        RunPlace(f"{name}{index}", name, run_pb2.RUN_KIND_TRAIN, state, "s", device, int(state != QUEUED))
        for index, (device, state) in enumerate(runs)
    ]
    return JobPlace(name, cancelled, shared, False, runs=places)


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
    name = run_id(job_id, "keras-tensorflow", "2.21.0+cpu.local/x", "", str(repeat))
    assert len(name) <= 128
    assert "/" not in name
    assert "+" not in name
    assert name != run_id(job_id, "keras-tensorflow", "2.21.0+cpu.local/x", "", str(repeat + 1))
    assert name != run_id(job_id + "x", "keras-tensorflow", "2.21.0+cpu.local/x", "", str(repeat))


def event(**fields: object) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(**fields)  # type: ignore[arg-type]


def test_training_waits_for_the_checks_of_probes() -> None:
    place = job("a", ("x", DONE), ("x", QUEUED))
    probe = dataclasses.replace(place.runs[0], purpose=coordinator_pb2.RUN_PURPOSE_PROBE, checks_pending=True)
    train = dataclasses.replace(place.runs[1], purpose=coordinator_pb2.RUN_PURPOSE_TRAIN)
    assert chosen(dataclasses.replace(place, runs=[probe, train])) == []
    checked = dataclasses.replace(probe, checks_pending=False)
    assert chosen(dataclasses.replace(place, runs=[checked, train])) == ["a1"]


def test_a_later_attempt_replaces_the_steps_it_repeats() -> None:
    found = recorded(iter([
        event(steps=run_pb2.StepRecords(first_step=0, loss=[1.0, 2.0, 3.0])),
        event(probe_recorded=run_pb2.ProbeRecorded(case_id="c", step=0, digest="old")),
        event(attempt_started=run_pb2.AttemptStarted(resume_step=1)),
        event(steps=run_pb2.StepRecords(first_step=1, loss=[5.0], learning_rate=[0.1])),
        event(probe_recorded=run_pb2.ProbeRecorded(case_id="c", step=0, digest="new")),
        event(fingerprint=run_pb2.Fingerprint(facts={"a": "b"})),
    ]))
    assert found.steps.tolist() == [0, 1]
    assert found.losses.tolist() == [1.0, 5.0]
    assert (found.facts, found.probes) == ({"a": "b"}, {"c": {0: "new"}})
