"""Which services share a run, and which runs may be at work beside one that spans several."""

from __future__ import annotations

import pytest

from crosstrain.jobs.naming import member_run_id
from crosstrain.jobs.scheduler import startable
from crosstrain.registry import Offer, choose_replicas
from crosstrain.store import JobPlace, RunPlace
from crosstrain_protos.v1 import service_pb2
from crosstrain_service.errors import CrosstrainError


def offer(name: str, address: str = "", version: str = "2", lacks: str = "", healthy: bool = True) -> Offer:
    features = [
        service_pb2.Feature(
            name=feature,
            support=service_pb2.SUPPORT_UNSUPPORTED if feature == lacks else service_pb2.SUPPORT_EXACT,
        )
        for feature in ("parallel.hosts", "layer.dense")
    ]
    engine = service_pb2.EngineDescription(name="e", version=version, features=features)
    return Offer(name, address or f"{name}.members:7441", False, healthy, engine, ())


def chosen(offers: list[Offer], count: int) -> list[str]:
    return [item.service for item in choose_replicas(offers, offers[0], count, "engines[0]")]


def refusal(offers: list[Offer], count: int) -> str:
    with pytest.raises(CrosstrainError) as caught:
        choose_replicas(offers, offers[0], count, "engines[0]")
    assert caught.value.reason == "UNSUPPORTED"
    return caught.value.message


def test_members_are_in_the_order_of_their_numbers() -> None:
    assert chosen([offer(f"e-{number}") for number in (10, 9, 0)], 3) == ["e-0", "e-9", "e-10"]


def test_those_that_answer_and_have_a_host_of_their_own_come_first() -> None:
    same_host = [offer("a", "h:1"), offer("b", "h:2"), offer("c", "g:1"), offer("d", "f:1", healthy=False)]
    assert chosen(same_host, 2) == ["a", "c"]
    assert chosen(same_host, 3) == ["a", "c", "d"]


def test_too_few_are_counted() -> None:
    message = refusal([offer("a"), offer("b", version="3")], 2)
    assert message == "engines[0]: 2 services with e@2 are needed; registered: 1 (a)"


def test_a_difference_is_named_unless_enough_agree() -> None:
    odd = offer("odd", lacks="layer.dense")
    assert "the services a and odd of e@2 differ: layer.dense" in refusal([offer("a"), odd], 2)
    assert chosen([offer("a"), odd, offer("c")], 2) == ["a", "c"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1"])
def test_addresses_that_mean_something_else_elsewhere_are_refused(address: str) -> None:
    assert f"the service b gave the address {address}" in refusal([offer("a", "10.0.0.1:1"), offer("b", address)], 2)


def test_one_machine_may_hold_all_members() -> None:
    assert chosen([offer("a", "127.0.0.1:1"), offer("b", "127.0.0.1:2")], 2) == ["a", "b"]


def place(run_id: str, *keys: str) -> RunPlace:
    group = frozenset(keys) if len(keys) > 1 else frozenset()
    return RunPlace(run_id, "j", 1, 1, "s", keys[0], 0, group_keys=group)


def job(*runs: RunPlace, shared: bool = False) -> JobPlace:
    return JobPlace("j", False, shared, False, runs=list(runs))


def started(*jobs: JobPlace) -> list[str]:
    return [run.run_id for run in startable(jobs)]


def test_a_group_waits_for_all_of_its_devices() -> None:
    assert started(job(place("one", "b/cpu:0"), place("group", "a/cpu:0", "b/cpu:0"), place("two", "a/cpu:0"))) == [
        "one"
    ]
    assert started(job(place("group", "a/cpu:0", "b/cpu:0")), job(place("c", "c/cpu:0"), place("b", "b/cpu:0"))) == [
        "group", "c",
    ]  # fmt: skip


def test_groups_exclude_one_another_even_where_devices_are_shared() -> None:
    first = job(place("x", "a/cpu:0", "b/cpu:0"), shared=True)
    second = job(place("y", "b/cpu:0", "a/cpu:0"), place("single", "a/cpu:0"), shared=True)
    assert started(first, second) == ["x", "single"]


def test_ids_of_members_are_short_and_distinct() -> None:
    assert member_run_id("j.e-1.0", 1, 1) == "j.e-1.0-m1"
    long = "j" * 128
    found = {member_run_id(long[:-1] + end, member, start) for end in "ab" for member in (1, 12) for start in (1, 3)}
    assert len(found) == 8
    assert {len(item) for item in found} == {128}
