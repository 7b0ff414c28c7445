"""Jobs judged by a real coordinator: probes of the reference engine behind fake services."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crosstrain.compare.verdict import read_verdict
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2
from crosstrain_reference import Relu
from doubles.fake_service import Float32Reference
from doubles.world import World, document, npy, upload_dataset, wait_for

VERDICT = "{steps: [0, 1], envelope: 2}"
TWO = (("torch", "2.13.0"), ("lasagne", "0.1"))


def engine(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in found["engines"] if item["engine"] == name)


def check(world: World, *engines: str, verdict: str = "{steps: [0]}") -> tuple[coordinator_pb2.Job, dict[str, Any]]:
    job = world.finished(world.create(document(*engines, verdict=verdict, task="check"), "j").job_id)
    return job, read_verdict(world.client.read(job.verdict_digest))


class HalfAtZero(Float32Reference):
    """Passes half of a gradient on where a ReLU's input is exactly 0."""

    def intermediates(self, batch: Any) -> Any:
        with half_at_zero():
            return super().intermediates(batch)

    def train(self, loop: Any) -> None:
        with half_at_zero():
            super().train(loop)


@contextlib.contextmanager
def half_at_zero() -> Iterator[None]:
    right = Relu.backward

    def wrong(self: Relu, dy: Any, trace: Any, params: Any) -> Any:
        return np.where(trace.x == 0, dy / 2, right(self, dy, trace, params)[0]), {}

    Relu.backward = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        Relu.backward = right  # type: ignore[method-assign]


def test_a_check_gives_a_verdict_and_leaves_no_records(world: World) -> None:
    service = world.service()
    job, found = check(world)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    assert found["task"] == "check"
    assert found["verdict"] in ("IDENTICAL", "ROUNDING")
    assert found["exit_code"] == 0
    (run,) = job.runs
    assert (run.run.kind, run.purpose) == (run_pb2.RUN_KIND_PROBE, coordinator_pb2.RUN_PURPOSE_PROBE)
    assert run.certificate_digest
    assert service.dropped == [run.run.run_id]
    events = world.server.store.jobs.run_events(run.run.run_id)
    digests = [event.probe_recorded.digest for event in events if event.WhichOneof("event") == "probe_recorded"]
    assert digests and world.server.artifacts.missing(digests) == list(dict.fromkeys(digests))


def test_records_are_kept_where_the_job_says_so(world: World) -> None:
    service = world.service()
    job, _ = check(world, verdict="{steps: [0], keep_records: true}")
    events = world.server.store.jobs.run_events(job.runs[0].run.run_id)
    digests = [event.probe_recorded.digest for event in events if event.WhichOneof("event") == "probe_recorded"]
    assert world.server.artifacts.missing(digests) == []
    assert service.dropped == []


def test_another_convention_is_named(world: World) -> None:
    service = world.service(engines=TWO)
    service.probing["lasagne"] = HalfAtZero
    train = upload_dataset(world.client)
    # A blank image gives ReLU inputs of exactly 0.
    train.pixels_digest = world.client.upload(npy(np.zeros((train.samples, 1, 8, 8), np.uint8)))
    text = document("torch", "lasagne", verdict="{steps: [0]}", task="check")
    job = world.finished(world.client.create_job(text, train, None, "j").job_id)
    found = read_verdict(world.client.read(job.verdict_digest))
    assert (found["verdict"], found["exit_code"], job.verdict) == (
        "MISMATCH", 1, coordinator_pb2.VERDICT_MISMATCH)  # fmt: skip
    assert engine(found, "torch")["verdict"] != "MISMATCH"
    wrong = engine(found, "lasagne")
    ids = {name for cause in wrong["causes"] for name in cause["ids"]}
    assert "relu.half_at_zero" in ids


def test_a_job_is_probed_first_and_trained_after_the_checks(world: World) -> None:
    service = world.service(engines=TWO)
    job = world.finished(world.create(document("torch", "lasagne", verdict=VERDICT), "j").job_id)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    kinds = [name.rsplit(".", 1)[1].partition("-")[0] for name in service.order]
    assert kinds[:4] == ["probe", "probe", "0", "0"]
    assert kinds[4:].count("envelope") == 2
    found = read_verdict(world.client.read(job.verdict_digest))
    assert found["envelope"] is not None
    assert {item["engine"] for item in found["engines"]} == {"torch", "lasagne"}
    moved = [run for run in job.runs if run.purpose == coordinator_pb2.RUN_PURPOSE_ENVELOPE]
    requests = [world.server.store.jobs.run(run.run.run_id).request for run in moved]
    assert len(set(requests)) == 2


def test_a_probe_that_fails_leaves_the_results_alone(world: World) -> None:
    service = world.service(engines=TWO)
    service.probes_failing.add("lasagne")
    text = document("torch", "lasagne", verdict="{steps: [0], envelope: 0}")
    job = world.finished(world.create(text, "j").job_id)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    found = read_verdict(world.client.read(job.verdict_digest))
    assert engine(found, "lasagne")["verdict"] == "INCONCLUSIVE"
    assert engine(found, "lasagne")["certificate"]["possible"] is False
    assert found["exit_code"] == 3
    assert any("lasagne" in failure["what"] for failure in found["could_not_compare"])


def test_damaged_missing_and_truncated_records_are_no_verdict_about_the_engine(world: World) -> None:
    for place, damage in enumerate(("flip", "cut", "remove")):
        world.service(f"s{place}", engines=((f"torch{place}", "1"),))
        original = world.server._scheduler._judgement._complete
        world.server._scheduler._judgement._complete = (  # type: ignore[method-assign]
            lambda run, damage=damage: _damage(world, run.run_id, damage)
        )
        text = document(f"torch{place}", verdict="{steps: [0]}", task="check")
        job = world.finished(world.create(text, f"j{place}").job_id)
        world.server._scheduler._judgement._complete = original  # type: ignore[method-assign]
        found = read_verdict(world.client.read(job.verdict_digest))
        assert (found["verdict"], found["exit_code"]) == ("INCONCLUSIVE", 3), damage
        (failure,) = found["could_not_compare"]
        assert ("damaged" in failure["reason"]) == (damage != "remove"), failure
        assert found["engines"][0]["certificate"]["failed"] == 0


def _damage(world: World, run_id: str, how: str) -> None:
    """Damages the first record of a probe in the coordinator's store."""
    events = world.server.store.jobs.run_events(run_id)
    digest = next(event.probe_recorded.digest for event in events if event.WhichOneof("event") == "probe_recorded")
    path = Path(world.server.artifacts.path(digest))
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "flip":
        data[-5] ^= 1
    if how != "remove":
        path.write_bytes(data[: len(data) // 2] if how == "cut" else data)


def test_runs_of_two_jobs_are_compared(world: World) -> None:
    world.service(engines=TWO, steps=4)
    text = document("torch", "lasagne", verdict="{steps: [0], envelope: 0}")
    for name in ("a", "b"):
        world.finished(world.create(text, name).job_id)
    same = world.client.compare_runs("a.torch-2.13.0.0", "b.torch-2.13.0.0")
    assert same.losses_equal
    found = read_verdict(world.client.read(same.verdict_digest))
    assert found["task"] == "compare"
    assert coordinator_pb2.Verdict.Name(same.verdict) == f"VERDICT_{found['verdict']}"
    probes = world.client.compare_runs("a.torch-2.13.0.probe", "b.torch-2.13.0.probe")
    assert probes.verdict == coordinator_pb2.VERDICT_IDENTICAL


def test_a_restart_while_judging_judges_once(world: World) -> None:
    world.service()
    judgement = world.server._scheduler._judgement
    original = judgement._pool.call

    def die(*arguments: Any, **task: Any) -> Any:
        if task["task"] != "judge":
            return original(*arguments, **task)
        judgement._stopping.wait(30)
        raise AssertionError("not reached by a stopped coordinator")

    judgement._pool.call = die  # type: ignore[method-assign]
    world.create(document(verdict="{steps: [0]}", task="check"), "j")
    wait_for(lambda: bool(world.client.get_job("j").runs[0].certificate_digest), 60.0)
    world.restart()
    job = world.finished("j")
    assert job.verdict_digest
    events = list(world.client.watch_job("j"))
    assert sum(event.WhichOneof("event") == "verdict_reached" for event in events) == 1


def test_a_job_that_is_cancelled_while_it_is_probed_ends(world: World) -> None:
    service = world.service(delay=30.0)
    world.create(document(verdict="{steps: [0]}"), "j")
    wait_for(lambda: bool(service.running), 30.0)
    world.client.cancel_job("j")
    job = world.finished("j")
    assert job.state == coordinator_pb2.JOB_STATE_CANCELLED
    assert not job.verdict_digest
    assert service.dropped


def test_other_seeds_decide_about_accuracies(world: World) -> None:
    service = world.service(engines=TWO)
    text = document("torch", "lasagne", verdict="{steps: [0], envelope: 0, seeds: 3}")
    job = world.finished(world.create(text, "j").job_id)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    runs = [run for run in job.runs if run.purpose == coordinator_pb2.RUN_PURPOSE_SEED]
    specs = [
        service_pb2.TrainRequest.FromString(world.server.store.jobs.run(run.run.run_id).request).spec for run in runs
    ]
    assert [spec.training.seed for spec in specs] == [1000, 2000] * 2
    by_seed = {spec.training.seed: spec.initial_weights_digest for spec in specs}
    assert len({job.initial_weights_digest, *by_seed.values()}) == 3
    assert all(spec.initial_weights_digest == by_seed[spec.training.seed] for spec in specs)
    assert sum("seed" in name for name in service.order) == 4
    found = read_verdict(world.client.read(job.verdict_digest))
    tost = engine(found, "lasagne")["accuracy"]["tost"]
    assert tost["seeds"] == 3
    # The fake services give every run the same accuracy.
    assert (tost["mean_difference"], tost["equivalent"]) == (0, True)


def test_a_longer_job_is_compared_over_the_shared_steps(world: World) -> None:
    world.service(engines=TWO, steps=4)
    text = document("torch", verdict="{steps: [0], envelope: 0}")
    world.finished(world.create(text, "short").job_id)
    train = upload_dataset(world.client)
    for name, old, new in (("long", "epochs: 1", "epochs: 3"), ("faster", "learning_rate: 0.1", "learning_rate: 0.2")):
        assert old in text
        world.finished(world.client.create_job(text.replace(old, new), train, train, name).job_id)
    longer = world.client.compare_runs("short.torch-2.13.0.0", "long.torch-2.13.0.0")
    assert read_verdict(world.client.read(longer.verdict_digest))["could_not_compare"] == []
    faster = world.client.compare_runs("short.torch-2.13.0.0", "faster.torch-2.13.0.0")
    (failure,) = read_verdict(world.client.read(faster.verdict_digest))["could_not_compare"]
    assert "learning rates" in failure["reason"]
