"""Numbers of jobs and runs for the metrics, on SQLite and PostgreSQL."""

from __future__ import annotations

from crosstrain.store import NewJob, NewRun, Store
from crosstrain.store.statistics import UnfinishedRun, statistics
from crosstrain_protos.v1 import coordinator_pb2, run_pb2

TRAIN = run_pb2.RUN_KIND_TRAIN
RUNNING, ENDED = coordinator_pb2.JOB_STATE_RUNNING, coordinator_pb2.JOB_STATE_SUCCEEDED


def add(store: Store, job_id: str, *engines: str) -> None:
    runs = [
        NewRun(f"{job_id}.{engine}", TRAIN, 0, f"service-{engine}", engine, "1", "localhost/cpu:0", b"x")
        for engine in engines
    ]
    assert store.jobs.insert(NewJob(coordinator_pb2.Job(job_id=job_id, name="n"), "d" * 64, runs))


def test_an_empty_store(store: Store) -> None:
    found = statistics(store.database)
    assert (found.jobs, found.runs, found.unfinished, found.events) == ({}, {}, [], 0)


def test_jobs_and_runs_are_counted_by_state(store: Store) -> None:
    add(store, "a", "torch", "caffe")
    add(store, "b", "torch")
    store.runs.begin_submission("a.torch")
    store.runs.end("b.torch", run_pb2.RUN_STATE_SUCCEEDED)
    store.jobs.end_job("b", ENDED)
    found = statistics(store.database)
    assert found.jobs == {RUNNING: 1, ENDED: 1}
    assert found.runs == {
        ("torch", "1", TRAIN, run_pb2.RUN_STATE_QUEUED): 1,
        ("caffe", "1", TRAIN, run_pb2.RUN_STATE_QUEUED): 1,
        ("torch", "1", TRAIN, run_pb2.RUN_STATE_SUCCEEDED): 1,
    }
    assert sorted(found.unfinished, key=lambda run: run.engine) == [
        UnfinishedRun("a.caffe", "a", "caffe", "1", "service-caffe", False),
        UnfinishedRun("a.torch", "a", "torch", "1", "service-torch", True),
    ]
    assert found.events == sum(store.jobs.job(name).last_sequence for name in ("a", "b"))
