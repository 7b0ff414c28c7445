"""Groups of services in the job store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from crosstrain.store import NewJob, NewMember, NewRun, Store
from crosstrain_protos.v1 import coordinator_pb2, run_pb2

RUN = "j.r"


def add(store: Store) -> None:
    members = tuple(NewMember(f"s{place}", f"10.0.0.{place}", f"10.0.0.{place}/cpu:0", 2) for place in range(3))
    run = NewRun(RUN, run_pb2.RUN_KIND_TRAIN, 0, "s0", "e", "1", members[0].device_key, b"", members=members)
    alone = dataclasses.replace(run, run_id="j.alone", members=())
    assert store.jobs.insert(NewJob(coordinator_pb2.Job(job_id="j", name="n"), "d", [run, alone]))


def opened(sequence: int, port: int) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(sequence=sequence, attempt=1, group_opened=run_pb2.GroupOpened(port=port))


def test_members_are_stored_and_named_in_the_record(store: Store) -> None:
    add(store)
    spans, alone = store.jobs.job("j").runs
    assert [(item.service, item.ranks) for item in spans.members] == [("s0", 2), ("s1", 2), ("s2", 2)]
    assert not alone.members
    assert [member.host for member in store.jobs.run(RUN).members] == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert store.jobs.run("j.alone").members == ()
    assert store.groups.get("j.alone") is None
    (place,) = store.jobs.unfinished()
    assert [len(run.device_keys) for run in place.runs] == [3, 1]


def test_a_secret_lives_from_the_submission_to_the_end(store: Store) -> None:
    add(store)
    group = store.groups.get(RUN)
    assert group is not None
    assert group.secret is None
    first = store.groups.open(RUN)
    store.runs.begin_submission(RUN)
    store.runs.append(RUN, [opened(1, 4000)])
    again = store.groups.get(RUN)
    assert again is not None
    assert (again.secret, again.port, again.generation) == (first.secret, 4000, 1)
    second = store.groups.open(RUN)
    assert second.secret != first.secret
    assert (second.port, second.generation, len(second.secret or b"")) == (0, 2, 32)
    store.runs.end(RUN, run_pb2.RUN_STATE_CANCELLED)
    last = store.groups.get(RUN)
    assert last is not None
    assert last.secret is None


def test_what_is_left_to_do_is_found_again(store: Store) -> None:
    add(store)
    assert store.groups.to_tend() == []
    group = store.groups.open(RUN)
    store.runs.begin_submission(RUN)
    assert store.groups.to_tend() == [RUN]
    begun = store.groups.begin_member(dataclasses.replace(group, port=4000), group.members[1], 2, 17)
    stored = store.groups.get(RUN)
    assert stored is not None
    assert stored.members[1] == begun
    assert (begun.start, begun.generation, begun.port, begun.tries, begun.seen) == (1, 1, 4000, 2, 17)
    store.runs.end(RUN, run_pb2.RUN_STATE_FAILED)
    assert store.groups.to_tend() == [RUN]
    store.groups.freed(RUN, 0)
    store.groups.freed(RUN, 1)
    # The third member was never started.
    assert store.groups.to_tend() == []


def test_no_secret_stays_in_the_file_of_the_database(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(f"sqlite:///{path}")
    add(store)
    secret = store.groups.open(RUN).secret
    assert secret is not None
    store.runs.begin_submission(RUN)
    store.runs.end(RUN, run_pb2.RUN_STATE_CANCELLED)
    store.close()
    assert not any(secret in found.read_bytes() for found in tmp_path.iterdir())
