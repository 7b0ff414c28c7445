"""The job store on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text

from crosstrain.store import (
    Database,
    ExecutorLock,
    NewJob,
    NewRun,
    SequenceGap,
    ServiceRow,
    Store,
    VerdictStage,
    migrate,
)
from crosstrain.store.tables import metadata
from crosstrain_protos.v1 import coordinator_pb2, errors_pb2, run_pb2, service_pb2
from crosstrain_service.errors import CrosstrainError

TRAIN = run_pb2.RUN_KIND_TRAIN


def new_run(run_id: str, repeat: int = 0) -> NewRun:
    return NewRun(run_id, TRAIN, repeat, "fake", "torch", "2.13.0", "localhost/cpu:0", b"request")


def add_job(store: Store, job_id: str = "j", runs: int = 1, digest: str = "d" * 64, **options: bool) -> bool:
    planned = [new_run(f"{job_id}.r{index}", index) for index in range(runs)]
    job = coordinator_pb2.Job(job_id=job_id, name="n")
    return store.jobs.insert(NewJob(job, digest, planned, **options))


def log_event(sequence: int, attempt: int = 1) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(sequence=sequence, attempt=attempt, log=run_pb2.LogLine(text=str(sequence)))


def state_event(sequence: int, state: run_pb2.RunState.ValueType) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(sequence=sequence, attempt=1, state_changed=run_pb2.StateChanged(state=state))


def all_events(store: Store, job_id: str = "j") -> list[coordinator_pb2.JobEvent]:
    found: list[coordinator_pb2.JobEvent] = []
    while True:
        events, _ = store.jobs.events(job_id, len(found))
        if not events:
            return found
        found += events


def numbers(store: Store, job_id: str = "j") -> list[int]:
    return [item.sequence for item in all_events(store, job_id)]


def test_migrations_make_the_declared_tables(store: Store) -> None:
    with store.database.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == "0003"


def test_jobs_of_an_older_schema_are_kept_and_have_no_verdict_to_come(url: str) -> None:
    database = Database(url)
    migrate(database, "0001")
    with database.write() as connection:
        connection.execute(
            text(
                "INSERT INTO jobs (job_id, body_digest, state, last_sequence, cancel_requested, shared_devices, "
                "evaluation_pending, record) VALUES ('old', 'd', 1, 0, :no, :no, :no, :record)"
            ),
            {"no": False, "record": coordinator_pb2.Job(job_id="old").SerializeToString()},
        )
    database.close()
    store = Store(url)
    (place,) = store.jobs.unfinished()
    assert (place.job_id, place.verdict_stage) == ("old", VerdictStage.NONE)
    store.close()


def test_a_verdict_is_stored_once(store: Store) -> None:
    run = dataclasses.replace(new_run("j.p", 0), purpose=coordinator_pb2.RUN_PURPOSE_PROBE)
    job = coordinator_pb2.Job(job_id="j", name="n")
    assert store.jobs.insert(NewJob(job, "d" * 64, [run], verdict_stage=VerdictStage.FOLLOW))
    assert store.jobs.unfinished()[0].runs[0].checks_pending
    store.runs.checked("j.p", "c" * 64)
    store.runs.checked("j.p", "e" * 64)
    assert store.jobs.job("j").runs[0].certificate_digest == "c" * 64
    reached = coordinator_pb2.VerdictReached(verdict=coordinator_pb2.VERDICT_ROUNDING, digest="f" * 64)
    store.jobs.set_verdict("j", reached)  # not yet: further runs may follow
    assert not store.jobs.job("j").verdict_digest
    store.jobs.add_runs("j", [])
    store.jobs.set_verdict("j", reached)
    store.jobs.set_verdict("j", coordinator_pb2.VerdictReached(digest="0" * 64))
    assert store.jobs.job("j").verdict_digest == "f" * 64
    assert sum(item.WhichOneof("event") == "verdict_reached" for item in all_events(store)) == 1
    store.jobs.records_removed("j")
    assert store.jobs.unfinished()[0].verdict_stage == VerdictStage.NONE
    sequences = numbers(store)
    assert sequences == list(range(1, len(sequences) + 1))


def test_processes_that_start_together_migrate_once(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(Store, [url] * 6))
    for store in stores:
        assert "job_events" in inspect(store.database.engine).get_table_names()
        store.close()


def test_sqlite_uses_write_ahead_logging(store: Store) -> None:
    if store.database.is_sqlite:
        with store.database.read() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
            assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
            assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 30_000


def test_a_job_id_is_taken_once(store: Store) -> None:
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda _: add_job(store, runs=2), range(20)))
    assert sum(results) == 1
    assert len(store.jobs.job("j").runs) == 2
    assert store.jobs.body_digest("j") == "d" * 64
    assert numbers(store) == [1, 2, 3]


def test_events_are_numbered_without_gap_and_a_replay_changes_nothing(store: Store) -> None:
    add_job(store)
    first = [log_event(n) for n in range(1, 6)]
    assert store.runs.append("j.r0", first) is False
    before = all_events(store)
    assert store.runs.append("j.r0", first) is False
    assert store.runs.append("j.r0", first[3:]) is False
    assert all_events(store) == before
    store.runs.append("j.r0", [log_event(n) for n in range(4, 9)])
    assert [item.sequence for item in store.jobs.run_events("j.r0")] == list(range(1, 9))
    assert numbers(store) == list(range(1, 2 + 1 + 8))
    assert store.jobs.run("j.r0").cursor == 8
    assert store.jobs.job("j").last_sequence == 10


def test_a_gap_stores_nothing(store: Store) -> None:
    add_job(store)
    with pytest.raises(SequenceGap):
        store.runs.append("j.r0", [log_event(1), log_event(3)])
    assert store.jobs.run_events("j.r0") == []
    assert numbers(store) == [1, 2]


def test_writers_of_one_job_do_not_disturb_each_other(store: Store) -> None:
    add_job(store, runs=4)

    def write(index: int) -> None:
        for start in range(1, 61, 3):
            store.runs.append(f"j.r{index}", [log_event(n) for n in range(start, start + 3)])

    threads = [threading.Thread(target=write, args=(index % 4,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two writers per run, and still every event is there once.
    assert numbers(store) == list(range(1, 1 + 5 + 4 * 60))
    for index in range(4):
        assert [item.sequence for item in store.jobs.run_events(f"j.r{index}")] == list(range(1, 61))


def test_two_stores_on_one_database_share_the_numbers(url: str, store: Store) -> None:
    other = Store(url)
    add_job(store, runs=2)
    pairs = [(store, "j.r0"), (other, "j.r1")]

    def write(pair: tuple[Store, str]) -> None:
        for n in range(1, 41):
            pair[0].runs.append(pair[1], [log_event(n)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, pairs))
    assert numbers(other) == list(range(1, 1 + 3 + 80))
    other.close()


def test_the_record_of_a_run_follows_its_events(store: Store) -> None:
    add_job(store)
    store.runs.append("j.r0", [
        state_event(1, run_pb2.RUN_STATE_RUNNING),
        run_pb2.RunEvent(sequence=2, attempt=2, attempt_started=run_pb2.AttemptStarted(resume_step=3)),
        run_pb2.RunEvent(sequence=3, attempt=2, result=run_pb2.TrainResult(steps=7)),
    ])
    record = store.jobs.job("j").runs[0]
    assert (record.run.state, record.run.attempt, record.result.steps) == (run_pb2.RUN_STATE_RUNNING, 2, 7)
    assert store.runs.append("j.r0", [state_event(4, run_pb2.RUN_STATE_SUCCEEDED), log_event(5)]) is True
    # Nothing follows the end.
    assert store.jobs.run("j.r0").cursor == 4


def test_an_evaluation_that_comes_again_replaces_the_first(store: Store) -> None:
    add_job(store)
    store.runs.append("j.r0", [
        run_pb2.RunEvent(sequence=n, evaluated=run_pb2.Evaluated(weights_digest=digest, loss=n))
        for n, digest in enumerate(("a", "b", "a"), 1)
    ])
    assert [(item.weights_digest, item.loss) for item in store.jobs.job("j").runs[0].evaluations] == [
        ("a", 3.0), ("b", 2.0)
    ]


def test_a_run_submitted_anew_goes_on_counting(store: Store) -> None:
    add_job(store)
    store.runs.begin_submission("j.r0")
    started = run_pb2.AttemptStarted(resume_step=0)
    store.runs.append("j.r0", [run_pb2.RunEvent(sequence=1, attempt=1, attempt_started=started), log_event(2)])
    store.runs.begin_submission("j.r0")
    row = store.jobs.run("j.r0")
    assert (row.cursor, row.submissions) == (0, 2)
    store.runs.append("j.r0", [run_pb2.RunEvent(sequence=1, attempt=1, attempt_started=started), log_event(2)])
    events = store.jobs.run_events("j.r0")
    assert [(item.sequence, item.attempt) for item in events] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert store.jobs.run("j.r0").cursor == 2


def test_a_job_ends_once(store: Store) -> None:
    add_job(store)
    error = errors_pb2.Error(reason=errors_pb2.ERROR_REASON_ENGINE_FAILED, message="m")
    store.jobs.end_job("j", coordinator_pb2.JOB_STATE_FAILED, error)
    store.jobs.end_job("j", coordinator_pb2.JOB_STATE_SUCCEEDED)
    store.jobs.request_cancel("j")
    job = store.jobs.job("j")
    assert (job.state, job.error.message) == (coordinator_pb2.JOB_STATE_FAILED, "m")
    assert job.HasField("end_time")
    events, complete = store.jobs.events("j", 0)
    assert complete
    assert events[-1].state_changed.state == coordinator_pb2.JOB_STATE_FAILED
    assert store.jobs.unfinished() == []


def test_evaluations_are_added_once(store: Store) -> None:
    add_job(store, evaluation_pending=True)
    for _ in range(2):
        store.jobs.add_runs("j", [new_run("j.e")])
    assert [run.run.run_id for run in store.jobs.job("j").runs] == ["j.r0", "j.e"]


def test_listing_goes_on_page_by_page_newest_first(store: Store) -> None:
    for index in range(7):
        add_job(store, f"j{index}")
    seen, token = [], None
    while True:
        jobs, token = store.jobs.list_jobs(3, token)
        seen += [job.job_id for job in jobs]
        if token is None:
            break
    assert seen == [f"j{index}" for index in reversed(range(7))]


def test_many_events_come_in_bounded_parts(store: Store) -> None:
    add_job(store)
    text_line = run_pb2.LogLine(text="x" * 100_000)
    store.runs.append("j.r0", [run_pb2.RunEvent(sequence=n, log=text_line) for n in range(1, 31)])
    events, _ = store.jobs.events("j", 0)
    assert 0 < len(events) < 14
    assert numbers(store) == list(range(1, 33))


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    add_job(store)

    def fail() -> None:
        with store.database.write() as connection:
            connection.execute(text("DELETE FROM job_events"))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert numbers(store) == [1, 2]


def test_a_full_database_is_said_so(store: Store) -> None:
    add_job(store)
    if not store.database.is_sqlite:
        pytest.skip("a full PostgreSQL needs a full file system")

    @event.listens_for(store.database.engine, "begin")
    def limit(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 40")

    long_line = run_pb2.RunEvent(sequence=1, log=run_pb2.LogLine(text="x" * 500_000))
    with pytest.raises(CrosstrainError) as caught:
        store.runs.append("j.r0", [long_line])
    assert caught.value.reason == "STORAGE_FULL"
    assert numbers(store) == [1, 2]


def test_services_are_kept_with_their_description(store: Store) -> None:
    for address in ("a:1", "b:2"):
        description = service_pb2.DescribeResponse(service="s", service_version=address)
        store.services.save(ServiceRow("s", address, True, 5, description))
    (row,) = store.services.all()
    assert (row.address, row.description.service_version, row.live) == ("b:2", "b:2", False)
    store.services.remove("s")
    assert store.services.all() == []


def test_one_process_executes_at_a_time(url: str, store: Store) -> None:
    other_store = Store(url)
    first, second = ExecutorLock(store.database), ExecutorLock(other_store.database)
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()
    other_store.close()


@pytest.mark.parametrize("action", ["job", "run", "events", "cancel", "append"])
def test_unknown_ids_are_named(store: Store, action: str) -> None:
    actions = {
        "job": lambda: store.jobs.job("none"),
        "run": lambda: store.jobs.run("none"),
        "events": lambda: store.jobs.events("none", 0),
        "cancel": lambda: store.jobs.request_cancel("none"),
        "append": lambda: store.runs.append("none", []),
    }
    with pytest.raises(CrosstrainError, match="'none'") as caught:
        actions[action]()
    assert caught.value.reason in ("JOB_NOT_FOUND", "RUN_NOT_FOUND")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="database"):
        Store(url)
