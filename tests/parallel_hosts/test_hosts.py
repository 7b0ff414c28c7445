"""A run over two hosts computes what one computes, and loses neither its way nor a process, whatever happens."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from .checks import curve, cut_off, noticed
from .network import await_true
from .platform import Platform, document


def test_two_hosts_compute_what_one_rank_computes(platform: Platform) -> None:
    platform.create(document("ranks, 'ranks[data=1]'"), "parity")
    job, events = platform.finished("parity")
    spans, alone = job.runs
    assert [(item.service, item.ranks) for item in spans.members] == [("member-0", 2), ("member-1", 1)]
    assert spans.result.ranks == 3
    np.testing.assert_allclose(curve(events, spans.run.run_id), curve(events, alone.run.run_id), rtol=1e-12)
    one, other = platform.tensors(alone), platform.tensors(spans)
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-12 * np.abs(value).max())
    platform.await_free()


@pytest.mark.parametrize(("number", "victim"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 0)])
def test_a_lost_rank_is_reported_and_the_run_completes(
    platform: Platform, number: signal.Signals, victim: int
) -> None:
    name = f"lost-{number}-{victim}"
    run = platform.create(document("ranks", epochs=16), name)
    platform.await_steps(name, 20)
    platform.ranks(victim, run)[-1].send_signal(number)
    seconds, rank, member = noticed(platform, name)
    assert seconds < 10
    assert (rank, member) == (victim + 1, victim)
    _, events = platform.finished(name)
    assert len(curve(events, run)) == 80
    platform.await_free()


def test_a_member_cut_off_is_reported_and_awaited(platform: Platform) -> None:
    run = platform.create(document("ranks", epochs=30), "cut")
    platform.await_steps("cut", 20)
    with cut_off(platform.members[1]):
        seconds, _, place = noticed(platform, "cut")
        assert seconds < 10
        assert place == 1
        # Nothing computes on either side: the leader awaits its member, and that its leader.
        await_true(lambda: not any(platform.ranks(side, run) for side in (0, 1)), 10)
        time.sleep(3)
    _, events = platform.finished("cut")
    assert len(curve(events, run)) == 150
    platform.await_free()


def test_a_leader_cut_off_is_reported_and_awaited(platform: Platform) -> None:
    run = platform.create(document("ranks", epochs=30), "leader")
    platform.await_steps("leader", 20)
    with cut_off(platform.members[0]):
        await_true(lambda: "member-0" in platform.client.get_job("leader").runs[0].notice, 10)
        await_true(lambda: not platform.ranks(1, run), 10)
    job, events = platform.finished("leader")
    assert not job.runs[0].notice
    assert len(curve(events, run)) == 150
    platform.await_free()


def test_a_run_goes_on_without_a_member_that_was_cut_off(platform: Platform) -> None:
    """Its ranks take over the other's shares; the member ends its part when it is back."""
    run = platform.create(document("ranks", epochs=30, on_rank_loss="shrink"), "shrunk")
    platform.await_steps("shrunk", 20)
    with cut_off(platform.members[1]):
        begin = time.monotonic()
        seconds, _, place = noticed(platform, "shrunk")
        assert seconds < 10
        assert place == 1
        again = next(event for event in platform.events("shrunk") if event.attempt == 2 and len(event.steps.loss))
        assert len(again.steps.ranks) == 2
        assert time.monotonic() - begin < 30
        job, events = platform.finished("shrunk")
        assert job.runs[0].result.ranks == 2
    alone = platform.create(document("'ranks[data=1]'", epochs=30), "whole")
    whole, others = platform.finished("whole")
    found = curve(events, run)
    assert len(found) == 150
    np.testing.assert_allclose(found, curve(others, alone), rtol=1e-11)
    expected, trained = platform.tensors(whole.runs[0]), platform.tensors(job.runs[0])
    for name, value in expected.items():
        np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-11 * np.abs(value).max())
    platform.await_free()
    # Both are free for another group.
    platform.create(document("ranks", epochs=1), "after")
    platform.finished("after")


def test_a_group_is_freed_though_a_member_is_cut_off(platform: Platform) -> None:
    platform.create(document("ranks", epochs=500), "cancelled")
    platform.await_steps("cancelled", 10)
    with cut_off(platform.members[1]):
        platform.client.cancel_job("cancelled")
        for _ in platform.events("cancelled"):
            pass
        await_true(lambda: not platform.members[0].left(), 5)
    platform.await_services()
    platform.await_free()


def test_the_coordinator_may_be_killed(platform: Platform) -> None:
    run = platform.create(document("ranks", epochs=30), "killed")
    for pause in (0.2, 0.6, 1.2):
        time.sleep(pause)
        platform.coordinator.process.kill()
        platform.coordinator.process.wait()
        platform.coordinator.start()
    _, events = platform.finished("killed")
    assert len(curve(events, run)) == 150
    platform.await_free()
