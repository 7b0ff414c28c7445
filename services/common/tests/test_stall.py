"""Ranks that live but do not go on are named and given up; what only takes long is not."""

import mmap
import os
import re
import time

import pytest
from test_ranks import SHORT, finished, parallel, steps_done

from crosstrain_protos.v1 import errors_pb2, run_pb2, training_pb2
from crosstrain_service.parallel import progress
from crosstrain_service.parallel.progress import Place
from crosstrain_service.parallel.stall import (
    BLINK_SECONDS,
    FIRST,
    LONGEST,
    LONGEST_FIRST,
    Stopwatch,
    heard,
    ranks_text,
    say,
)
from support import Service, curve


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    running = Service(tmp_path_factory.mktemp("state") / "state", "crosstrain_ranks")
    yield running
    running.close()


def of_kind(events, kind):
    return [getattr(event, kind) for event in events if event.WhichOneof("event") == kind]


def warnings(events):
    return [line.text for line in of_kind(events, "log") if line.severity == "warning"]


def test_a_rank_that_hangs_is_named_and_the_run_goes_on(service):
    spec = parallel(service.spec(20), 2, stall_seconds=2)
    spec.execution.checkpoint_every_steps = 10
    service.train("hangs", "hanging-rank", spec)
    steps_done(service, "hangs", 12)
    begin = time.time()
    events = finished(service, "hangs")
    assert sorted(curve(events)) == list(range(20)) and time.time() - begin < 40
    (lost,) = of_kind(events, "rank_lost")
    assert lost.rank == 1
    words = r"has not gone on for (\d+) s in step 12, while the others wait for it; rank 1 is at engine\.py:\d+ in "
    found = re.match(words + "_step, called from ", lost.reason)
    assert found and int(found.group(1)) >= 2, lost.reason
    warned = [event for event in events if event.WhichOneof("event") == "log"]
    assert warned[0].log.text.startswith("rank 1: has not gone on for ")
    assert "; lost after %s s (parallel.stall_seconds)" % found.group(1) in warned[0].log.text
    told = next(event for event in events if event.WhichOneof("event") == "rank_lost")
    assert told.time.seconds - warned[0].time.seconds >= 1
    starts = of_kind(events, "attempt_started")
    assert [start.resume_step for start in starts] == [0, 10]


def test_nobody_is_named_where_all_are_at_the_same_place(service):
    spec = parallel(service.spec(20), 2, stall_seconds=1, on_rank_loss=training_pb2.RANK_LOSS_FAIL)
    service.train("mismatched", "mismatched-ranks", spec)
    events = list(service.watch("mismatched"))
    last = events[-1].state_changed
    assert last.state == run_pb2.RUN_STATE_FAILED and last.error.reason == errors_pb2.ERROR_REASON_RANK_LOST
    assert "all ranks: none has gone on for " in last.error.message
    assert " in step 2, and all are at the same place; rank 0 is at " in last.error.message
    assert "; rank 1 is at " in last.error.message
    assert of_kind(events, "rank_lost")[0].rank == -1
    assert warnings(events)


@pytest.mark.parametrize("engine, seconds", [("slow-start", 1), ("mismatched-ranks", 0)])
def test_what_is_not_given_up(service, engine, seconds):
    """A first step of two seconds with a limit of one; ranks that hang without a limit."""
    run = "patient-%d" % seconds
    service.train(run, engine, parallel(service.spec(6), 2, stall_seconds=seconds))
    if seconds:
        events = finished(service, run)
        assert not of_kind(events, "rank_lost")
        return
    steps_done(service, run, 2)
    time.sleep(1 if SHORT else 2)
    service.cancel(run)
    assert not [event for event in service.watch(run) if event.WhichOneof("event") in ("log", "rank_lost")]


def places(*found):
    return {rank: Place(count, place, progress.STEP, place, 0, joined)
            for rank, (count, place, joined) in enumerate(found)}


def test_those_that_have_come_least_far_are_named():
    for found, lagging, words in (
            ([(5, 5, 0), (5, 5, 0)], [], "none has gone on for 0 s in step 5, and all are at the same place"),
            ([(6, 6, 0), (5, 5, 9)], [1], "has not gone on for 0 s in step 5, while the others wait for it"),
            ([(5, 5, 2), (5, 5, 1), (5, 5, 2)], [1], "has not gone on for 0 s in step 5, while the others wait for it"),
            ([(5, 5, 1), (5, 5, 1), (5, 5, 2)], [0, 1],
             "has not gone on for 0 s in step 5, nor has rank 1, while the others wait for them")):
        stall = Stopwatch(10, len(found)).look(places(*found), 0.0)
        assert (stall.lagging, stall.reason) == (lagging, words)
    assert ranks_text([3]) == "rank 3" and ranks_text([1, 2]) == "ranks 1 and 2"
    assert ranks_text(range(9)) == "ranks 0, 1, 2 and 6 more"


def test_time_in_which_nobody_looked_does_not_count():
    watch = Stopwatch(10, 2)
    still = places((5, 5, 0), (5, 5, 0))
    assert watch.look(still, 0.0).seconds == 0
    assert watch.look(still, 0.1).seconds == pytest.approx(0.1)
    assert watch.look(still, 1000.0).seconds == pytest.approx(0.1 + BLINK_SECONDS)
    assert watch.look(places((6, 6, 0), (5, 5, 0)), 1000.1).seconds == 0


def test_the_limit_follows_what_was_seen():
    watch = Stopwatch(10, 2)
    first = {rank: Place(1, 1, progress.STEP, 0, 1, 0) for rank in range(2)}
    assert watch.look(first, 0.0).limit == 10 * FIRST
    for tenth in range(1, 100):
        assert watch.look(first, tenth / 10).limit == 10 * FIRST
    found = watch.look(places((2, 2, 0), (2, 2, 0)), 10.0)
    assert found.limit == pytest.approx(LONGEST_FIRST * 10)  # it may be compiled once more, for a smaller batch
    for tenth in range(101, 120):
        assert watch.look(places((2, 2, 0), (2, 2, 0)), tenth / 10).limit == found.limit
    assert watch.look(places((3, 3, 0), (3, 3, 0)), 12.0).limit == pytest.approx(LONGEST * 2)


def test_who_has_not_come_is_not_watched():
    watch = Stopwatch(10, 2)
    assert watch.look({0: Place(5, 5, progress.STEP, 5, 0, 0)}, 0.0) is None
    assert watch.look({0: Place(5, 5, progress.STEP, 5, 0, 0), 1: Place(0, 0, 0, 0, 0, 0)}, 0.0) is None
    assert Stopwatch(0, 2).look(places((5, 5, 0), (5, 5, 0)), 0.0) is None


def test_what_is_noted_is_read_from_outside(tmp_path, monkeypatch):
    assert progress.read(str(tmp_path), 3) is None
    with open(str(tmp_path / "rank-3.progress"), "w+b") as file:
        file.write(bytes(48))
        file.flush()
        monkeypatch.setattr(progress, "_cells", memoryview(mmap.mmap(file.fileno(), 48)).cast("q"))
    progress.build()
    assert progress.read(str(tmp_path), 3).words == "while building the network"
    progress.enter(progress.STEP, 7)
    assert progress.read(str(tmp_path), 3) == (2, 2, progress.STEP, 7, 1, 0)
    progress.joins()
    progress.step(8)
    progress.joins()
    assert progress.read(str(tmp_path), 3) == (3, 3, progress.STEP, 8, 0, 1)
    progress.enter(progress.EVALUATING)
    progress.batch()
    found = progress.read(str(tmp_path), 3)
    assert found == (5, 4, progress.EVALUATING, 8, 0, 0) and found.words == "in an evaluation after step 7"
    progress.enter(progress.STEP)
    assert not progress.read(str(tmp_path), 3).new


def test_warnings_are_taken_once(tmp_path):
    say(str(tmp_path), "one")
    say(str(tmp_path), "two")
    assert heard(str(tmp_path)) == ["one", "two"] and heard(str(tmp_path)) == []
    assert not os.listdir(str(tmp_path))
