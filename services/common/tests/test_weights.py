"""Weights files: equal tensors give equal bytes, and nothing broken or foreign gets through."""

import json
import struct

import numpy as np
import pytest
from local import MODEL_1D

from crosstrain_service import testing, weights
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import BatchNorm, Dense, Flatten, Model

MODEL = testing.cnn2((1, 8, 8), 4, (2, 3), 5)


def file(header, payload=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def test_tensors_and_metadata_survive():
    arrays = {"a": np.arange(6, dtype=np.float64).reshape(2, 3).T, "b": np.array(3, np.int64),
              "c": np.zeros((0, 2), np.float32), "d": np.array([1, 2], np.uint8)}
    found, metadata = weights.from_bytes(weights.to_bytes(arrays, {"note": 'a "quoted" \u00e9 text'}))
    assert metadata == {"format": weights.FORMAT, "note": 'a "quoted" \u00e9 text'}
    for name, value in arrays.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert (found[name] == value).all()


def test_equal_content_gives_equal_bytes():
    arrays = weights.initial_parameters(MODEL, 1)
    metadata = {name: name * 3 for name in "abcdefgh"}
    files = {weights.to_bytes(arrays, dict(sorted(metadata.items(), reverse=turn % 2 == 1))) for turn in range(20)}
    assert len(files) == 1
    assert len(files.pop()) % 4 == 0


@pytest.mark.parametrize("data", [
    b"", b"\0" * 7, b"\xff" * 8, b"\xff" * 100, file({}, b"x"), file(b"[]"), file(b"[" * 100000), file(b"\xff\xff"),
    file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
    file({"a": {"dtype": "F32", "shape": [1 << 62, 8], "data_offsets": [0, 4]}}, b"\0" * 4),
    file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}, b"\0" * 4),
    file({"a": {"dtype": "X", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
    weights.to_bytes(weights.initial_parameters(MODEL, 1))[:-1],
])
def test_broken_files_are_refused(data):
    with pytest.raises(CrosstrainError) as caught:
        weights.from_bytes(data)
    assert caught.value.reason == "INVALID_WEIGHTS"


def test_tensors_that_do_not_fit_are_named():
    good = weights.initial_parameters(MODEL, 1)

    def refused(**changes):
        arrays = dict(good)
        arrays.update(changes)
        with pytest.raises(CrosstrainError) as caught:
            weights.check_weights({name: value for name, value in arrays.items() if value is not None}, MODEL)
        assert caught.value.reason == "INVALID_WEIGHTS"
        return caught.value.message

    assert "'conv1.weight' is missing" in refused(**{"conv1.weight": None})
    assert "'dense1.bias' has shape (4,)" in refused(**{"dense1.bias": np.zeros(4, np.float32)})
    assert "no parameter 'extra'" in refused(extra=np.zeros(1, np.float32))
    assert "has the type int64" in refused(**{"dense2.bias": np.zeros(4, np.int64)})
    assert "not finite" in refused(**{"dense2.bias": np.array([0, 1, np.nan, 2], np.float32)})
    assert list(weights.check_weights(dict(reversed(list(good.items()))), MODEL)[0]) == list(MODEL.parameter_shapes())


def test_statistics_come_all_or_none():
    parameters = dict(weights.initial_parameters(MODEL_1D, 1))
    assert weights.check_weights(parameters, MODEL_1D)[1] == {}
    parameters["norm.running_mean"] = np.zeros(3, np.float32)
    with pytest.raises(CrosstrainError, match="'norm.running_var' is missing"):
        weights.check_weights(parameters, MODEL_1D)
    parameters["norm.running_var"] = np.ones(3, np.float32)
    assert list(weights.check_weights(parameters, MODEL_1D)[1]) == ["norm.running_mean", "norm.running_var"]


def test_initial_values_have_the_limits_of_their_fans():
    model = Model("wide", (3, 10, 10), 200, (Flatten("flat"), Dense("dense", 200), BatchNorm("norm", 1e-3))).validate()
    found = weights.initial_parameters(model, 3)
    limit = np.sqrt(6.0 / 500)
    largest = np.abs(found["dense.weight"]).max()
    assert found["dense.weight"].shape == (200, 300) and 0.99 * limit < largest <= np.float32(limit)
    assert (found["norm.gamma"] == 1).all() and (found["norm.beta"] == 0).all() and (found["dense.bias"] == 0).all()
    kernel = np.abs(weights.initial_parameters(testing.cnn2(), 3)["conv2.weight"]).max()
    assert 0.99 < kernel / np.sqrt(6.0 / (9 * (32 + 64))) <= 1.0001
