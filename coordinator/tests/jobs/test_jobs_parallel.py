"""Jobs whose engines train on several ranks: how runs are told apart, where they are refused, what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from crosstrain.jobs.naming import run_id
from crosstrain.results import JobRecord, summary
from crosstrain.store.rows import devices_of
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2
from crosstrain_service.errors import CrosstrainError
from doubles.world import World, document, upload_dataset

PARALLEL = "parallel: {data: 2}\n"


def refusal(world: World, text: str, **options: Any) -> CrosstrainError:
    with pytest.raises(CrosstrainError) as caught:
        world.create(text, **options)
    assert not list(world.client.list_jobs())
    return caught.value


def requests(world: World, job: coordinator_pb2.Job) -> dict[str, service_pb2.TrainRequest]:
    return {
        record.run.run_id: service_pb2.TrainRequest.FromString(world.server.store.jobs.run(record.run.run_id).request)
        for record in job.runs
        if record.run.kind == run_pb2.RUN_KIND_TRAIN
    }


def test_variants_of_one_engine_are_runs_of_one_job(world: World) -> None:
    world.service()
    job = world.create(document("torch", '"torch[data=2]"', '"torch[data=3,backend=horovod]"', repeats=2), "j")
    ids = [record.run.run_id for record in job.runs]
    assert ids == [
        "j.torch-2.13.0.0", "j.torch-2.13.0-data2.0", "j.torch-2.13.0-data3-backendhorovod.0",
        "j.torch-2.13.0.1", "j.torch-2.13.0-data2.1", "j.torch-2.13.0-data3-backendhorovod.1",
    ]  # fmt: skip
    assert [record.variant for record in job.runs[:3]] == ["", "data=2", "data=3,backend=horovod"]
    assert not job.runs[0].HasField("parallel")
    assert (job.runs[1].parallel.data, job.runs[1].parallel.backend) == (2, "native")
    sent = requests(world, job)
    assert sent[ids[2]].spec.execution.parallel.backend == "horovod"
    assert sent[ids[1]].spec.execution.parallel == job.runs[1].parallel
    assert world.finished("j").state == coordinator_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.parametrize(
    ("lacking", "backend"),
    [((), "native"), (("parallel.native",), "mpi"), (("parallel.native", "parallel.mpi"), "horovod")],
)
def test_auto_takes_the_first_backend_that_an_engine_declares(
    world: World, lacking: tuple[str, ...], backend: str
) -> None:
    world.service(lacking=lacking)
    job = world.create(document("torch") + PARALLEL)
    assert job.runs[0].parallel.backend == backend


def test_what_an_engine_lacks_is_refused_by_name(world: World) -> None:
    world.service(engines=(("torch", "2.13.0"),))
    world.service("other", engines=(("lasagne", "0.1"),), lacking=("parallel.data", "parallel.horovod"))
    error = refusal(world, document("torch", "lasagne") + PARALLEL)
    assert error.reason == "UNSUPPORTED"
    assert error.field == "engines[1]"
    assert error.message == "engine lasagne@0.1 does not support: parallel.data"
    error = refusal(world, document("torch", '"lasagne[tensor=2,backend=horovod]"'))
    assert error.message == "engine lasagne@0.1 does not support: parallel.horovod"
    assert error.field == "engines[1]"


def test_an_engine_without_any_backend_is_refused_with_all_of_them(world: World) -> None:
    world.service(lacking=("parallel.native", "parallel.mpi", "parallel.horovod"))
    error = refusal(world, document("torch") + PARALLEL)
    assert error.reason == "UNSUPPORTED"
    assert error.message == (
        "engine torch@2.13.0 does not support: parallel.horovod; parallel.mpi; parallel.native"
    )


def test_an_engine_that_knows_no_ranks_at_all_is_refused_with_what_was_asked(world: World) -> None:
    world.service(lacking=("parallel.data", "parallel.native", "parallel.mpi", "parallel.horovod"))
    assert "parallel.data; " in refusal(world, document("torch") + "devices: {count: 2}\n").message


@pytest.mark.parametrize(
    ("more", "feature"),
    [
        ("parallel: {data: 2, tensor: 2}", "parallel.data_tensor"),
        ("parallel: {data: 2, bucket_mib: 4}", "parallel.bucket_mib"),
        ("execution: {accumulation_steps: 2}", "execution.accumulation"),
        ("execution: {precision: mixed_bfloat16}", "precision.mixed_bfloat16"),
    ],
)
def test_other_features_that_an_engine_lacks(world: World, more: str, feature: str) -> None:
    world.service(lacking=(feature,))
    error = refusal(world, document("torch") + more + "\n")
    assert error.message == f"engine torch@2.13.0 does not support: {feature}"


def test_fewer_rows_than_ranks_are_refused_with_both_numbers(world: World) -> None:
    world.service()
    text = document("torch") + "parallel: {data: 7}\n"
    with pytest.raises(CrosstrainError) as caught:
        world.client.create_job(text, upload_dataset(world.client, 3), None)
    assert "3 training samples cannot be split over 7 data ranks" in caught.value.message


def test_the_same_ranks_twice_are_refused(world: World) -> None:
    world.service()
    error = refusal(world, document("torch", '"torch[data=2]"') + PARALLEL)
    assert error.message == "'torch[data=2]' names torch@2.13.0 a second time, spread over the same ranks"
    error = refusal(world, document("torch@2.13.0", '"torch[backend=mpi]"'))
    assert error.message == "'torch[backend=mpi]' names torch@2.13.0 a second time"


def test_each_variant_is_probed_with_its_ranks_and_judged_by_its_label(world: World) -> None:
    world.service()
    text = document("torch", '"torch[data=2]"', '"torch[data=4]"', verdict="{envelope: 4}")
    job = world.finished(world.create(text, "j").job_id)
    assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED
    probes = [record for record in job.runs if record.purpose == coordinator_pb2.RUN_PURPOSE_PROBE]
    assert [(record.variant, record.parallel.data) for record in probes] == [("", 0), ("data=2", 2), ("data=4", 4)]
    envelope = [record for record in job.runs if record.purpose == coordinator_pb2.RUN_PURPOSE_ENVELOPE]
    assert len(envelope) == 4
    assert len({(record.variant, record.parallel.data) for record in envelope}) == 1
    from crosstrain.compare.verdict import read_verdict

    verdict = read_verdict(world.client.read(job.verdict_digest))
    labels = [engine["label"] for engine in verdict["engines"]]
    assert labels == ["torch@2.13.0", "torch@2.13.0[data=2]", "torch@2.13.0[data=4]"]
    # The run on one rank is what the others are compared with, and the fake gives them the same losses.
    assert verdict["reference"]["label"] == "torch@2.13.0"
    assert "PyTorch 2.13.0 ([data=2])" not in verdict["engines"][1]["sentence"]
    assert [engine["verdict"] for engine in verdict["engines"][1:]] == ["ROUNDING", "ROUNDING"]


def test_a_failing_probe_of_one_variant_says_nothing_about_the_other(world: World) -> None:
    service = world.service()
    service.failing_variants.add("data=2")
    text = document("torch", '"torch[data=2]"', verdict="{envelope: 0}")
    job = world.finished(world.create(text, "j").job_id)
    from crosstrain.compare.verdict import read_verdict

    verdict = read_verdict(world.client.read(job.verdict_digest))
    assert verdict["engines"][0]["certificate"]["possible"]
    assert not verdict["engines"][1]["certificate"]["possible"]
    assert verdict["could_not_compare"][0]["what"] == "the probe of torch@2.13.0[data=2]"


def test_evaluations_are_made_by_every_variant(world: World) -> None:
    world.service()
    job = world.finished(world.create(document("torch", '"torch[data=2]"', cross_evaluate=True), "j").job_id)
    evaluations = [record for record in job.runs if record.run.kind == run_pb2.RUN_KIND_EVALUATE]
    assert [record.run.run_id for record in evaluations] == ["j.torch-2.13.0.evaluate", "j.torch-2.13.0-data2.evaluate"]
    assert [record.parallel.data for record in evaluations] == [0, 2]


def test_times_of_ranks_and_lost_ranks_are_recorded(world: World) -> None:
    service = world.service(steps=4)
    service.loses_rank_at = 2
    job = world.create(document("torch") + PARALLEL, "j")
    record = JobRecord(job).add_all(world.client.watch_job("j"))
    record.update(world.client.get_job("j"))
    run = next(iter(record.runs.values()))
    assert run.ranks == 2
    assert run.ranks_lost == 1
    told = summary(record)
    spread = told["runs"][0]["ranks"]
    assert (spread["ranks"], spread["backend"], spread["batch_size"], spread["share"]) == (2, "native", 8, 4)
    assert spread["imbalance"] == pytest.approx(0.4 / 0.3)
    assert spread["sync_share"] == pytest.approx(0.5)
    assert "fewer ranks" in spread["hint"]
    assert spread["reduced_bytes"] == 1000.0
    assert spread["ring_bytes"] == spread["parameter_bytes"]
    assert [item["samples"] for item in spread["each"]] == [4, 4]
    assert told["training"]["text"].startswith("batches of 8 samples over all ranks together, learning rate 0.1")


@pytest.mark.parametrize("part", ["0", "evaluate", "envelope-99"])
def test_run_ids_of_long_variants_are_short_and_different(part: str) -> None:
    variants = [f"data={data},backend=horovod,micro_batches=12,on_rank_loss=shrink,min_data=3" for data in range(2, 40)]
    ids = {run_id("j" * 128, "keras-tensorflow", "2.21.0+cpu", variant, part) for variant in variants}
    assert len(ids) == len(variants)
    assert max(map(len, ids)) <= 128
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") for name in ids)


def test_every_rank_needs_a_gpu_of_its_own(world: World) -> None:
    world.service(devices=("cpu:0", "cuda:0", "cuda:1", "cuda:2"))
    cuda = "devices: {kind: cuda, index: 1}\n"
    error = refusal(world, document('"torch[data=3]"') + cuda)
    assert error.reason == "UNSUPPORTED"
    assert "3 ranks of torch@2.13.0 need as many GPUs, but the service fake has no cuda:3" in error.message
    job = world.create(document('"torch[data=2]"') + cuda, "j")
    place = next(item for item in world.server.store.jobs.unfinished() if item.job_id == job.job_id).runs[0]
    assert place.device_keys == {"localhost/cuda:1", "localhost/cuda:2"}


def test_the_ranks_of_a_cpu_are_one_device(world: World) -> None:
    world.service(delay=1.0)
    job = world.create(document('"torch[data=4]"'), "j")
    place = next(item for item in world.server.store.jobs.unfinished() if item.job_id == job.job_id).runs[0]
    assert place.device_keys == {"localhost/cpu:0"}


@pytest.mark.parametrize("key", ["h-1/cpu:0", "10.0.0.1:5/cuda:3", "x", "", "a/cuda:1-x"])
def test_a_key_of_one_device_is_itself(key: str) -> None:
    assert devices_of(key) == {key}
