"""Networks and messages: built-in models, every optimizer, defaults, and back to text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crosstrain.spec import (
    JobSpec,
    SpecError,
    build_model,
    dump_document,
    evaluate_spec,
    parse_document,
    resolved,
    train_spec,
)
from crosstrain_protos.v1 import data_pb2, training_pb2
from crosstrain_service import convert
from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, LocalResponseNorm, Pool
from crosstrain_service.testing import cnn2

JOB = """name: x
model: cnn2
engines: [torch, reference]
training:
  optimizer: %s
"""
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def spec_of(optimizer: str = "{sgd: {learning_rate: 0.1}}", more: str = "") -> JobSpec:
    return parse_document(JOB % optimizer + more)


def training_of(spec: JobSpec) -> training_pb2.Training:
    data = data_pb2.Dataset(input_shape=(1, 8, 8), classes=3)
    model = build_model(spec, (1, 8, 8), 3)
    return train_spec(spec, model, data, None, "a" * 64, "b" * 64, "torch").training


def test_cnn2_is_the_network_that_services_test_with() -> None:
    assert build_model(spec_of(), (1, 28, 28), 10) == cnn2()
    assert build_model(spec_of(), (3, 32, 32), 7) == cnn2((3, 32, 32), 7)


def test_cnn3() -> None:
    model = build_model(parse_document((JOB % "{sgd: {learning_rate: 1}}").replace("cnn2", "cnn3")), (1, 28, 28), 10)
    assert [layer.out_channels for layer in model.layers_of(Convolution)] == [64, 128, 256]
    assert [layer.units for layer in model.layers_of(Dense)] == [512, 256, 10]
    assert [layer.rate for layer in model.layers_of(Dropout)] == [0.5, 0.5]
    assert [layer.name for layer in model.layers][-8:] == [
        "flatten", "dense1", "relu_dense1", "dropout1", "dense2", "relu_dense2", "dropout2", "dense3",
    ]  # fmt: skip
    assert model.output_shapes()["pool3"] == (256, 3, 3)


def test_built_in_networks_take_one_dimensional_data() -> None:
    model = build_model(spec_of(), (2, 40), 3)
    assert model.output_shapes()["pool2"] == (64, 10)


def test_inline_layers_with_defaults_and_names() -> None:
    text = JOB.replace(
        "model: cnn2",
        """model:
  name: own
  layers:
    - convolution: {channels: 4, kernel: [3, 5], padding: {begin: [1, 0], end: 2}}
    - relu
    - average_pool: {kernel: 2, padding: 1, count_include_pad: true, rounding: ceil}
    - max_pool: {kernel: 3, stride: 1}
    - batch_norm: {epsilon: 0.001}
    - local_response_norm: {size: 3, alpha_sum: 0.1, beta: 0.75, k: 1}
    - local_response_norm: {size: 3, alpha_sum: 0.1, beta: 0.75, k: 1, region: within_channel}
    - pad: {padding: [0, 1]}
    - flatten
    - dropout: {name: drop, rate: 0.25}
    - dense: {units: classes, bias: false}""",
    )
    model = build_model(parse_document(text % "{sgd: {learning_rate: 1}}"), (1, 12, 12), 5)
    names = [layer.name for layer in model.layers]
    assert names == ["conv1", "relu1", "pool1", "pool2", "batch_norm1", "local_response_norm1",
                     "local_response_norm2", "pad1", "flatten1", "drop", "dense1"]  # fmt: skip
    first, pool, second = model.layers[0], model.layers[2], model.layers[3]
    assert isinstance(first, Convolution)
    assert (first.kernel, first.stride, first.pad_begin, first.pad_end) == ((3, 5), (1, 1), (1, 0), (2, 2))
    assert isinstance(pool, Pool)
    assert (pool.kind, pool.stride, pool.round_mode, pool.count_include_pad) == ("average", (2, 2), "ceil", True)
    assert isinstance(second, Pool)
    assert (second.kind, second.stride) == ("max", (1, 1))
    norms = model.layers_of(LocalResponseNorm)
    assert [norm.region for norm in norms] == ["across_channels", "within_channel"]  # type: ignore[union-attr]
    assert model.output_shapes()["dense1"] == (5,)
    # What services check is what was built.
    assert convert.model(convert.model_message(model)) == model


@pytest.mark.parametrize(
    ("layers", "shape", "line", "part"),
    [
        ("[{dense: {units: classes}}]", (1, 8, 8), 2, "needs a flatten layer"),
        ("[flatten, {dense: {units: 4}}]", (1, 8, 8), 2, "gives 4 values per sample"),
        ("[flatten, {dense: {units: 4}}, {dense: {name: dense1, units: classes}}]", (1, 8, 8), 2, ""),
        ("[{max_pool: {kernel: 9}}]", (1, 8, 8), 2, "does not fit"),
        ("[{convolution: {channels: 2, kernel: [3, 3]}}]", (1, 8), 2, "spatial dimensions"),
        ("[{batch_norm: {}}]", (1, 8, 8), 2, "canonical semantics needs epsilon"),
        ("[{batch_norm: {epsilon: 0.1, momentum: 0.9}}]", (1, 8, 8), 2, "remove momentum"),
        ("[{local_response_norm: {size: 4, alpha_sum: 1, beta: 1, k: 1}}]", (1, 8, 8), 2, "must be odd, not 4"),
    ],
)
def test_layers_that_do_not_fit(layers: str, shape: tuple[int, ...], line: int, part: str) -> None:
    spec = parse_document((JOB % "{sgd: {learning_rate: 1}}").replace("cnn2", f"{{layers: {layers}}}"))
    if not part:
        assert build_model(spec, shape, 3).layers[1].name == "dense2"
        return
    with pytest.raises(SpecError) as caught:
        build_model(spec, shape, 3)
    (violation,) = caught.value.violations
    assert part in violation.message
    assert violation.line == line
    assert caught.value.reason == "INVALID_MODEL"


@pytest.mark.parametrize(
    ("rule", "constants"),
    [
        ("sgd", {"momentum": 0.0, "nesterov": False}),
        ("rmsprop", {"rho": 0.9, "epsilon": 1e-7}),
        ("adagrad", {"epsilon": 1e-7, "initial_accumulator": 0.1}),
        ("adam", {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}),
        ("adadelta", {"rho": 0.95, "epsilon": 1e-6}),
    ],
)
def test_canonical_semantics_sets_every_constant_and_native_none(rule: str, constants: dict[str, object]) -> None:
    optimizer = f"{{{rule}: {{learning_rate: 0.5}}}}"
    message = training_of(spec_of(optimizer))
    converted = convert.training(message, np.ones(1))
    assert converted.rule.name == rule
    for name, value in constants.items():
        assert getattr(converted.rule, name) == value
    native = training_of(spec_of(optimizer, "semantics: native\n"))
    assert native.optimizer.WhichOneof("rule") == rule
    inner = getattr(native.optimizer, rule)
    assert not any(inner.HasField(name) for name in constants)


def test_given_constants_are_sent_in_both_semantics() -> None:
    for more in ("", "semantics: native\n"):
        message = training_of(spec_of("{sgd: {learning_rate: 1, momentum: 0.5, nesterov: true}}", more))
        assert message.optimizer.sgd.momentum == 0.5
        assert message.optimizer.sgd.nesterov


def test_adamw_is_adam_with_decoupled_decay() -> None:
    message = training_of(spec_of("{adamw: {learning_rate: 1, weight_decay: 0.02}}"))
    assert message.optimizer.WhichOneof("rule") == "adam"
    assert message.weight_decay.rate == 0.02
    assert message.weight_decay.coupling == training_pb2.WEIGHT_DECAY_COUPLING_DECOUPLED
    with pytest.raises(SpecError) as caught:
        spec_of("{adamw: {learning_rate: 1}}", "  weight_decay: {rate: 0.1}\n")
    assert caught.value.violations[0].field == "training.weight_decay"
    assert caught.value.violations[0].line == 6


def test_execution() -> None:
    more = (
        "devices: {kind: cpu, index: 1, count: 2}\nmode: speed\n"
        "execution: {threads: 2, compiler: {torch: torch.compile}, precision: float64, cpu_affinity: [0, 1]}\n"
    )
    spec = spec_of(more=more)
    data = data_pb2.Dataset(input_shape=(1, 8, 8), classes=3)
    model = build_model(spec, (1, 8, 8), 3)
    message = train_spec(spec, model, data, None, "a" * 64, "b" * 64, "torch").execution
    assert message.intra_threads == 2
    assert list(message.cpu_affinity) == [0, 1]
    assert message.compiler == "torch.compile"
    assert message.precision == training_pb2.PRECISION_FLOAT64
    assert message.device.index == 1
    assert message.parallel.data == 2
    assert message.mode == training_pb2.MODE_SPEED
    assert not message.deterministic
    other = evaluate_spec(spec, model, data, ["c" * 64], "reference")
    assert other.execution.compiler == ""
    assert list(other.weights_digests) == ["c" * 64]


def test_parity_is_deterministic_unless_told_otherwise() -> None:
    assert spec_of().deterministic
    assert not spec_of(more="execution: {deterministic: false}\n").deterministic


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_fine_and_survive_the_way_through_text(path: Path) -> None:
    spec = parse_document(path.read_text())
    text = dump_document(spec)
    again = parse_document(text)
    assert again.model_dump() == resolved(spec).model_dump()
    assert dump_document(again) == text
    shape = (3, 128) if path.stem == "custom-1d" else (1, 28, 28)
    model = build_model(spec, shape, 10)
    assert train_spec(spec, model, data_pb2.Dataset(), None, "", "", spec.engines[0]).training == train_spec(
        again, build_model(again, shape, 10), data_pb2.Dataset(), None, "", "", spec.engines[0]
    ).training
    if path.stem == "custom-1d":
        assert model.layers_of(BatchNorm)


def test_there_are_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["cnn2-parallel", "custom-1d", "mnist-cnn2", "mnist-cnn3"]


def test_the_document_with_defaults_filled_in() -> None:
    text = dump_document(spec_of())
    assert "base_batch_size: 256" in text
    assert "momentum: 0.0" in text
    assert "deterministic: true" in text
    assert "momentum" not in dump_document(spec_of(more="semantics: native\n"))
