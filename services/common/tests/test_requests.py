"""Hostile and broken requests: refused with the field named, and the service goes on."""

import hashlib
import os

import grpc
import numpy as np
import pytest

from crosstrain_protos.v1 import artifact_pb2, service_pb2
from crosstrain_service import convert, weights
from support import MODEL, curve, failure, npy


def refused(service, change, run_id="hostile", engine="slow"):
    """Code name, reason and fields of a training request spoilt by ``change(request)``."""
    request = service_pb2.TrainRequest(run_id=run_id, engine=engine, spec=service.spec(5))
    change(request)
    with pytest.raises(grpc.RpcError) as caught:
        service.training.Train(request, timeout=20)
    code, info, fields = failure(caught.value)
    text = caught.value.details()
    assert "Traceback" not in text and ".py" not in text and service.state not in text
    return code, info.reason, fields, text


def spoil(path, value):
    """A change that sets one field by its dotted path; a number in it is an index."""
    def change(request):
        target = request
        names = path.split(".")
        for name in names[:-1]:
            target = target[int(name)] if name.isdigit() else getattr(target, name)
        if names[-1].isdigit():
            target[int(names[-1])] = value
        else:
            setattr(target, names[-1], value)
    return change


@pytest.mark.parametrize("path, value, field", [
    ("run_id", "../../etc/passwd", "run_id"),
    ("run_id", "", "run_id"),
    ("run_id", ".hidden", "run_id"),
    ("run_id", "x" * 200, "run_id"),
    ("spec.training.batch_size", 0, "spec.training.batch_size"),
    ("spec.training.batch_size", -3, "spec.training.batch_size"),
    ("spec.training.batch_size", 61, "spec.training.batch_size"),
    ("spec.training.epochs", 0, "spec.training.epochs"),
    ("spec.training.max_steps", -1, "spec.training.max_steps"),
    ("spec.training.seed", -1, "spec.training.seed"),
    ("spec.training.clip_norm", float("nan"), "spec.training.clip_norm"),
    ("spec.training.clip_norm", -1.0, "spec.training.clip_norm"),
    ("spec.training.optimizer.sgd.momentum", 1.0, "spec.training.optimizer.sgd.momentum"),
    ("spec.training.optimizer.adam.beta1", 0.9, "spec.training.optimizer.adam.beta2"),
    ("spec.training.learning_rates_digest", "zz", "spec.training.learning_rates_digest"),
    ("spec.model.classes", -1, "spec.model.classes"),
    ("spec.model.name", "a b", "spec.model.name"),
    ("spec.model.layers.0.convolution.out_channels", -1, "spec.model.layers[0].convolution.out_channels"),
    ("spec.model.layers.0.convolution.stride.0", 0, "spec.model.layers[0].convolution.stride"),
    ("spec.model.layers.0.convolution.pad_begin.1", -2, "spec.model.layers[0].convolution.pad_begin"),
    ("spec.model.layers.2.pool.kind", 0, "spec.model.layers[2].pool.kind"),
    ("spec.model.layers.2.pool.round_mode", 7, "spec.model.layers[2].pool.round_mode"),
    ("spec.model.layers.0.name", "../x", "spec.model.layers[0].name"),
    ("spec.train.pixels_digest", "../../../etc/passwd", "spec.train.pixels_digest"),
    ("spec.train.samples", 0, "spec.train.samples"),
    ("spec.train.divisor", 0.0, "spec.train.divisor"),
    ("spec.execution.intra_threads", -1, "spec.execution.intra_threads"),
    ("spec.execution.prefetch", 5000, "spec.execution.prefetch"),
    ("spec.execution.compiler", "rm -rf *", "spec.execution.compiler"),
    ("spec.initial_weights_digest", "", "spec.initial_weights_digest"),
])
def test_invalid_fields_are_named(service, path, value, field):
    code, reason, fields, text = refused(service, spoil(path, value))
    assert code == "INVALID_ARGUMENT" and reason == "INVALID_FIELD"
    assert fields == [field] and text.startswith(field)


def test_unknown_optimizer_is_refused_with_the_known_ones(service):
    code, _, fields, text = refused(service, lambda request: request.spec.training.ClearField("optimizer"))
    assert code == "INVALID_ARGUMENT" and fields == ["spec.training.optimizer"]
    assert "adam" in text and "sgd" in text


@pytest.mark.parametrize("path, value, words", [
    ("spec.model.layers.0.convolution.kernel.0", 99, "kernel (99, 3) does not fit"),
    ("spec.model.layers.9.dense.units", 5, "gives 5 values per sample, but the data has 4 classes"),
    ("spec.model.layers.0.convolution.out_channels", 1 << 23, "values per sample, more than"),
    ("spec.model.layers.2.pool.pad_begin.0", 2, "must be smaller than the kernel"),
    ("spec.model.layers.1.name", "conv1", "used more than once"),
])
def test_layers_that_do_not_fit_are_named(service, path, value, words):
    code, reason, fields, text = refused(service, spoil(path, value))
    assert code == "INVALID_ARGUMENT" and reason == "INVALID_MODEL" and words in text and len(fields) == 1


def test_dense_without_flatten_is_refused(service):
    def change(request):
        del request.spec.model.layers[6]
    assert "needs a flatten layer" in refused(service, change)[3]


def test_unsupported_features_are_all_listed_before_anything_starts(service):
    def change(request):
        request.spec.execution.compiler = "xla"
        request.spec.execution.gpu_memory_growth = True
        request.spec.execution.deterministic = False
    code, reason, _, text = refused(service, change)
    assert code == "FAILED_PRECONDITION" and reason == "UNSUPPORTED"
    for name in ("compiler.xla", "execution.gpu_memory_growth", "execution.nondeterministic"):
        assert name in text
    with pytest.raises(grpc.RpcError) as caught:
        service.run("hostile")
    assert failure(caught.value)[0] == "NOT_FOUND"


def test_missing_device_and_engine(service):
    code, reason, _, text = refused(
        service, lambda request: setattr(request.spec.execution.device, "index", 7))
    assert reason == "UNSUPPORTED" and "cpu:7" in text
    code, reason, _, text = refused(service, lambda request: None, engine="caffe2")
    assert code == "NOT_FOUND" and reason == "ENGINE_NOT_FOUND" and "slow" in text


def test_parallel_training_is_refused_by_name(service):
    def change(request):
        request.spec.execution.parallel.data = 2
    assert refused(service, change)[:2] == ("FAILED_PRECONDITION", "UNSUPPORTED")


def test_artifacts_that_are_not_stored_are_named(service):
    digest = hashlib.sha256(b"never stored").hexdigest()
    for path in ("spec.train.pixels_digest", "spec.test.labels_digest", "spec.initial_weights_digest",
                 "spec.training.learning_rates_digest"):
        code, reason, fields, _ = refused(service, spoil(path, digest))
        assert (code, reason, fields) == ("NOT_FOUND", "ARTIFACT_NOT_FOUND", [path])


def test_artifacts_of_a_probe_that_are_not_stored_are_named(service):
    spec = service.spec(4)
    request = service_pb2.ProbeRequest(run_id="hostile-probe", engine="slow")
    case = request.spec.cases.add(case_id="case", model=spec.model, train=spec.train, training=spec.training,
                                  initial_weights_digest=spec.initial_weights_digest, steps=[0], test=spec.test)
    case.test.labels_digest = hashlib.sha256(b"never stored").hexdigest()
    with pytest.raises(grpc.RpcError) as caught:
        service.training.Probe(request)
    code, info, fields = failure(caught.value)
    assert (code, info.reason, fields) == ("NOT_FOUND", "ARTIFACT_NOT_FOUND", ["spec.cases[0].test.labels_digest"])


def _weights(**changes):
    tensors = dict(weights.initial_parameters(MODEL, 5))
    tensors.update(changes)
    return weights.to_bytes({name: value for name, value in tensors.items() if value is not None})


@pytest.mark.parametrize("data, words", [
    (_weights()[:-1], "not a complete safetensors file"),
    (_weights()[:4], "not a complete safetensors file"),
    (b"\xff" * 64, "not a complete safetensors file"),
    (b"\x80\x04\x95pickled", "not a complete safetensors file"),
    (_weights(**{"dense2.bias": None}), "'dense2.bias' is missing"),
    (_weights(**{"dense9.bias": np.zeros(3, np.float32)}), "no parameter 'dense9.bias'"),
    (_weights(**{"dense2.bias": np.zeros(9, np.float32)}), "has shape (9,), the model needs (4,)"),
    (_weights(**{"dense2.bias": np.zeros(4, np.int64)}), "has the type int64"),
    (_weights(**{"dense2.bias": np.full(4, np.nan, np.float32)}), "not finite"),
])
def test_broken_weights_are_refused(service, data, words):
    digest = service.put(data)
    code, reason, _, text = refused(service, spoil("spec.initial_weights_digest", digest))
    assert code == "INVALID_ARGUMENT" and reason == "INVALID_WEIGHTS" and words in text


@pytest.mark.parametrize("array, words", [
    (np.full(5, 0.05, np.float32), "float64"),
    (np.full((5, 1), 0.05), "one-dimensional"),
    (np.array([0.05, 0.0, 0.1, 0.1, 0.1]), "step 1 has the learning rate 0.0"),
    (np.array([0.05, np.inf, 0.1, 0.1, 0.1]), "step 1"),
])
def test_broken_learning_rates_are_refused(service, array, words):
    code, _, _, text = refused(service, spoil("spec.training.learning_rates_digest", service.put(npy(array))))
    assert code == "INVALID_ARGUMENT" and words in text


def test_pickled_arrays_are_never_loaded(service):
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    digest = service.put(buffer.getvalue())
    code, reason, _, _ = refused(service, spoil("spec.training.learning_rates_digest", digest))
    assert (code, reason) == ("INVALID_ARGUMENT", "INVALID_DATA")


def failing_run(service, run_id, change):
    spec = service.spec(5)
    change(spec)
    service.train(run_id, spec=spec)
    events = list(service.watch(run_id))
    return events[-1].state_changed.error


def test_data_that_is_not_as_announced_fails_the_run_by_name(service):
    def labels(spec):
        spec.train.labels_digest = service.put(npy(np.full(60, 4, "<i8")))

    def shape(spec):
        spec.train.pixels_digest = service.put(npy(np.zeros((60, 8, 8), np.uint8)))

    assert "sample 0 has the label 4, allowed are 0 to 3" in failing_run(service, "bad-labels", labels).message
    assert "announced were (60, 1, 8, 8)" in failing_run(service, "bad-shape", shape).message


def test_writing_bytes_with_another_digest_stores_nothing(service):
    digest = hashlib.sha256(b"right").hexdigest()
    header = artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(digest=digest, size_bytes=5))
    for chunks in ([b"wrong"], [b"righ"], [b"right", b"more"]):
        messages = [header] + [artifact_pb2.WriteRequest(chunk=chunk) for chunk in chunks]
        with pytest.raises(grpc.RpcError) as caught:
            service.artifacts.Write(iter(messages))
        code, info, _ = failure(caught.value)
        assert (code, info.reason) == ("INVALID_ARGUMENT", "ARTIFACT_CORRUPT")
        assert list(service.artifacts.Stat(artifact_pb2.StatRequest(digests=[digest])).missing) == [digest]
    with pytest.raises(grpc.RpcError) as caught:
        service.artifacts.Write(iter([artifact_pb2.WriteRequest(chunk=b"right")]))
    assert failure(caught.value)[2] == ["header"]


def test_stream_errors_carry_details_too(service):
    with pytest.raises(grpc.RpcError) as caught:
        list(service.watch("no-such-run"))
    assert failure(caught.value)[1].reason == "RUN_NOT_FOUND"
    with pytest.raises(grpc.RpcError) as caught:
        list(service.artifacts.Read(artifact_pb2.ReadRequest(digest="../x")))
    assert failure(caught.value)[2] == ["digest"]


def test_message_over_the_limit_is_refused(service):
    spec = service.spec(5)
    spec.model.layers[0].name = "x" * (5 << 20)
    with pytest.raises(grpc.RpcError) as caught:
        service.train("large", spec=spec)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_stored_artifact_that_was_damaged_is_not_used(service):
    spec = service.spec(5)
    path = os.path.join(service.state, "artifacts", spec.initial_weights_digest[:2], spec.initial_weights_digest)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    with pytest.raises(grpc.RpcError) as caught:
        service.train("damaged", spec=spec)
    assert failure(caught.value)[1].reason == "ARTIFACT_CORRUPT"
    os.unlink(path)


def test_model_of_every_kind_of_layer_survives_the_message():
    from crosstrain_service import model as plain

    layers = (
        plain.Pad("pad", (1, 0), (0, 2)), plain.Convolution("conv", 4, (3, 2), (2, 1), (1, 0), (0, 1), False),
        plain.BatchNorm("norm", 1e-3), plain.Relu("relu"), plain.LocalResponseNorm("lrn", 3, 1e-4, 0.75, 2.0),
        plain.LocalResponseNorm("within", 3, 1e-4, 0.75, 2.0, "within_channel"),
        plain.Pool("pool", "average", (2, 2), (2, 2), (1, 0), (0, 1), "ceil", True), plain.Flatten("flat"),
        plain.Dropout("drop", 0.25), plain.Dense("dense", 3, False))
    model = plain.Model("all", (2, 9, 8), 3, layers).validate()
    assert convert.model(convert.model_message(model)) == model


def test_the_service_still_works(service):
    service.train("after-all", spec=service.spec(5))
    assert len(curve(service.watch("after-all"))) == 5
