"""The section ``parallel``, engines with settings in brackets, and what contradicts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosstrain.spec import (
    JobSpec,
    SpecError,
    dump_document,
    execution,
    learning_rates,
    parse_document,
    parse_entry,
    training_rows,
)
from crosstrain_protos.v1 import training_pb2
from crosstrain_service import convert
from crosstrain_service.training import STALL_SECONDS

JOB = """name: x
model: cnn2
training: {batch_size: 12, optimizer: {sgd: {learning_rate: 0.1}}}
engines: %s
"""


def spec_of(engines: str = "[torch]", more: str = "") -> JobSpec:
    return parse_document(JOB % engines + more)


def refusal(engines: str = "[torch]", more: str = "") -> str:
    with pytest.raises(SpecError) as caught:
        spec_of(engines, more)
    return "; ".join(f"{item.field}: {item.message}" for item in caught.value.violations)


def parallel_of(spec: JobSpec, engine: str) -> training_pb2.Parallel:
    return execution(spec, engine).parallel


def test_without_the_section_nothing_is_sent() -> None:
    assert not execution(spec_of(), "torch").HasField("parallel")
    assert not execution(spec_of(more="parallel: {backend: mpi, on_rank_loss: fail}"), "torch").HasField("parallel")


def test_all_settings_reach_the_message() -> None:
    more = (
        "parallel: {data: 3, tensor: 2, pipeline: 2, backend: horovod, micro_batches: 4, bucket_mib: 8, "
        "local_batch_norm: true, on_rank_loss: shrink, min_data: 2, stall_seconds: 0}\nsemantics: native\n"
    )
    message = parallel_of(spec_of(more=more), "torch")
    assert message == training_pb2.Parallel(
        data=3, tensor=2, pipeline=2, backend="horovod", micro_batches=4, bucket_mib=8, local_batch_norm=True,
        on_rank_loss=training_pb2.RANK_LOSS_SHRINK, min_data=2, stall_seconds=0,
    )  # fmt: skip
    plain = convert.parallel(message)
    assert plain.ranks == 12
    assert plain.on_rank_loss == "shrink"
    assert plain.stall_seconds == 0
    assert convert.parallel(training_pb2.Parallel(data=2)).stall_seconds == STALL_SECONDS
    assert parallel_of(spec_of(more="parallel: {data: 2}"), "torch").stall_seconds == STALL_SECONDS


def test_auto_leaves_the_backend_to_what_engines_declare() -> None:
    assert parallel_of(spec_of(more="parallel: {data: 2}"), "torch").backend == ""


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_and_accumulation(name: str) -> None:
    message = execution(spec_of(more=f"execution: {{precision: {name}, accumulation_steps: 3}}"), "torch")
    plain = convert.execution(message)
    assert plain.precision == name
    assert plain.accumulation_steps == 3


def test_a_count_of_devices_is_short_for_data_parallel() -> None:
    spec = spec_of(more="devices: {count: 3}")
    assert parallel_of(spec, "torch").data == 3
    assert spec_of(more="devices: {count: 3}\nparallel: {data: 3}").parallel_of("torch").data == 3
    told = refusal(more="devices: {count: 3}\nparallel: {data: 2}")
    assert told == "devices.count: 3 is short for parallel: {data: 3}, which gives 2; remove one of the two"


def test_an_engine_may_differ_from_the_section() -> None:
    engines = '[torch, "torch@2.13[ backend = horovod , data=3 ]", "torch[data=1]", "caffe[tensor=2]"]'
    spec = spec_of(engines, "parallel: {data: 2, backend: native}\nruns_of: {torch: 1}\nrepeats: 2\n")
    assert spec.engines == ["torch", "torch@2.13[data=3,backend=horovod]", "torch[data=1]", "caffe[tensor=2]"]
    found = [spec.parallel_of(engine) for engine in spec.engines]
    assert [(item.data, item.tensor, item.backend) for item in found] == [
        (2, 1, "native"), (3, 1, "horovod"), (1, 1, "native"), (2, 2, "native"),
    ]  # fmt: skip
    assert [spec.repeats_of(engine) for engine in spec.engines] == [1, 2, 1, 2]
    assert not execution(spec, "torch[data=1]").HasField("parallel")


def test_a_compiler_belongs_to_all_variants_of_its_engine() -> None:
    spec = spec_of('[torch, "torch[data=2]", caffe]', "execution: {compiler: {torch: torch.compile}}")
    assert [spec.compiler_of(engine) for engine in spec.engines] == ["torch.compile", "torch.compile", ""]


def test_settings_that_follow_a_replaced_one() -> None:
    more = "parallel: {data: 4, pipeline: 2, micro_batches: 3, on_rank_loss: shrink, min_data: 3}"
    spec = spec_of('[torch, "torch[data=2]", "torch[pipeline=1]", "torch[on_rank_loss=fail]"]', more)
    found = [spec.parallel_of(engine) for engine in spec.engines]
    assert [(item.min_data, item.micro_batches) for item in found] == [(3, 3), (2, 3), (3, 0), (1, 3)]


@pytest.mark.parametrize(
    ("engines", "more", "message"),
    [
        ('["torch[data=0]"]', "", "engines[0]: data: must be greater than or equal to 1, not 0"),
        ('["torch[data=x]"]', "", "engines[0]: data: must be a valid integer, not 'x'"),
        ('["torch[data=2,data=3]"]', "", "engines[0]: 'torch[data=2,data=3]': data is given twice"),
        ('["torch[]"]', "", "engines[0]: 'torch[]': settings are written name=value, as in torch[data=2]; not ''"),
        ('["torch[data=2"]', "", "engines[0]: must be an engine: name or name@version in lower case, with settings of "
         "'parallel' in brackets where they differ, as in torch[data=2]; not 'torch[data=2'"),
        ('["torch[data=-1]"]', "", "engines[0]: 'torch[data=-1]': '-1' is neither a number nor a word"),
        ('["torch[backend=nccl]"]', "",
         "engines[0]: backend: must be 'auto', 'native', 'horovod' or 'mpi', not 'nccl'"),
        ('["torch[threads=2]"]', "", "engines[0]: 'torch[threads=2]': unknown setting 'threads'; known are data, "
         "tensor, pipeline, backend, micro_batches, bucket_mib, local_batch_norm, on_rank_loss, min_data, "
         "stall_seconds, hosts"),
        ("[torch]", "parallel: {data: 1025}", "parallel.data: must be at most 1024, not 1025"),
        ("[torch]", "parallel: {data: 64, tensor: 32}",
         "parallel: 64 x 32 x 1 are 2048 ranks; at most 1024 are possible"),
        ("[torch]", "parallel: {micro_batches: 2}",
         "parallel.micro_batches: 2 without a pipeline; remove it, or give pipeline"),
        ("[torch]", "parallel: {data: 2, min_data: 2}",
         "parallel.min_data: 2 only means something with on_rank_loss: shrink"),
        ("[torch]", "parallel: {data: 2, min_data: 3, on_rank_loss: shrink}",
         "parallel.min_data: min_data 3 is more than the 2 data ranks of torch"),
        ("[torch]", "parallel: {data: 2, local_batch_norm: true}",
         "parallel.local_batch_norm: local_batch_norm changes the function with the number of ranks; "
         "it needs semantics: native"),
        ("[torch]", "parallel: {data: 2, stall_seconds: -1}",
         "parallel.stall_seconds: must be at least 0, not -1"),
        ("[torch]", "parallel: {backend: gloo}",
         "parallel.backend: must be 'auto', 'native', 'horovod' or 'mpi', not 'gloo'"),
        ("[torch]", "parallel: {date: 2}", "parallel.date: unknown field; did you mean data?"),
        ("[torch]", "parallel: {data: 13}", "training.batch_size: torch: a batch of 12 samples cannot be split over 13 "
         "data ranks; batch_size is that of all ranks together and must be at least 13"),
        ("[torch]", "parallel: {data: 3}\nexecution: {accumulation_steps: 5}", "execution.accumulation_steps: torch: a "
         "rank's share of 4 of the 12 samples of a batch cannot be computed in 5 parts"),
        ("[torch]", "parallel: {data: 3, pipeline: 2, micro_batches: 5}", "parallel.micro_batches: torch: a "
         "rank's share of 4 of the 12 samples of a batch cannot be computed in 5 parts"),
    ],
)  # fmt: skip
def test_refusals(engines: str, more: str, message: str) -> None:
    assert refusal(engines, more) == message


def test_an_engine_in_brackets_needs_quotes_within_a_list_in_brackets() -> None:
    assert 'needs quotes, as in ["torch[data=2]"]' in refusal("[torch, torch[data=2]]")
    assert spec_of("\n - torch\n - torch[data=2]\n").engines == ["torch", "torch[data=2]"]


def test_fewer_samples_than_ranks() -> None:
    spec = spec_of('[torch, "caffe[data=7]"]')
    assert len(learning_rates(spec, 12)) == 1
    with pytest.raises(SpecError) as caught:
        learning_rates(spec, 3)
    violation = caught.value.violations[0]
    assert violation.message == "caffe[data=7]: 3 training samples cannot be split over 7 data ranks"
    assert (violation.field, violation.line) == ("engines[1]", 4)
    with pytest.raises(SpecError) as caught:
        learning_rates(spec_of(more="parallel: {data: 7}"), 1)
    assert "parallel.data: torch: 1 training sample cannot be split over 7" in str(caught.value)


def test_the_number_of_ranks_changes_neither_batch_nor_learning_rate() -> None:
    one, four = spec_of(), spec_of(more="parallel: {data: 4}")
    assert (learning_rates(one, 48) == learning_rates(four, 48)).all()
    scaled = parse_document((JOB % "[torch]").replace("sgd", "sgd").replace(
        "training: {", "training: {schedule: {scale_with_batch: true, base_batch_size: 6}, ") + "parallel: {data: 4}")
    assert learning_rates(scaled, training_rows(scaled, 48))[0] == pytest.approx(0.2)


def test_the_document_with_all_defaults_is_the_same_job() -> None:
    spec = spec_of('["torch[backend=mpi,data=2]", caffe]', "devices: {count: 3}")
    again = parse_document(dump_document(spec))
    assert again.engines == ["torch[data=2,backend=mpi]", "caffe"]
    for engine in again.engines:
        assert execution(again, engine) == execution(spec, engine)


@given(st.text(max_size=60))
def test_any_text_is_an_entry_or_a_value_error(text: str) -> None:
    try:
        entry = parse_entry(text)
    except ValueError:
        return
    assert parse_entry(str(entry)) == entry
