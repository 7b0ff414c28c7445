"""Every layer, forward and backward, against the float64 reference, at the places where conventions differ."""

import numpy as np
import pytest
from oracle import RULES, assert_steps_equal, engine, single, training

from crosstrain_caffe.engine import CaffeEngine
from crosstrain_service.capabilities import FEATURES, features_of_model
from crosstrain_service.engine import Batch
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dropout,
    LocalResponseNorm,
    Pad,
    Pool,
    Relu,
)
from crosstrain_service.testing import cnn2, make_batches
from crosstrain_service.training import Execution


def pool(kind, kernel, stride, begin=(0, 0), end=None, mode="floor", include=False):
    return Pool("layer", kind, kernel, stride, begin, begin if end is None else end, mode, include)


LAYERS = {
    "convolution": Convolution("layer", 4, (3, 2), (1, 1), (1, 0), (1, 0)),
    "convolution_stride": Convolution("layer", 4, (3, 3), (2, 3), (1, 1), (1, 1), bias=False),
    "convolution_asymmetric": Convolution("layer", 2, (3, 3), (2, 2), (0, 1), (1, 2)),
    "max_floor": pool("max", (2, 2), (2, 2)),
    "max_overlapping": pool("max", (3, 2), (1, 2)),
    "max_ceil": pool("max", (2, 2), (2, 2), mode="ceil"),
    "max_padded": pool("max", (3, 3), (2, 2), (1, 1)),
    "max_padded_ceil": pool("max", (2, 2), (2, 2), (1, 0), mode="ceil"),
    "max_asymmetric": pool("max", (3, 3), (2, 2), (0, 1), (1, 2)),
    # Caffe itself would make a third window that lies outside of the input and write before its gradient.
    "max_ceil_beyond": pool("max", (1, 1), (4, 3), mode="ceil"),
    "average": pool("average", (2, 3), (2, 1)),
    "average_ceil": pool("average", (2, 2), (2, 2), mode="ceil"),
    "average_include": pool("average", (3, 3), (2, 2), (1, 1), include=True),
    "average_exclude": pool("average", (3, 3), (2, 2), (1, 1)),
    "average_exclude_ceil": pool("average", (3, 3), (2, 2), (1, 1), mode="ceil"),
    "average_include_ceil": pool("average", (2, 2), (2, 2), (1, 1), mode="ceil", include=True),
    "average_asymmetric_include": pool("average", (3, 3), (2, 2), (0, 1), (2, 0), include=True),
    "average_asymmetric_exclude": pool("average", (3, 3), (2, 2), (0, 1), (2, 0)),
    "relu": Relu("layer"),
    "dropout": Dropout("layer", 0.4),
    "batch_norm": BatchNorm("layer", 1e-3),
    "lrn": LocalResponseNorm("layer", 3, 0.7, 0.75, 2.0),
    "lrn_wider_than_channels": LocalResponseNorm("layer", 7, 0.7, 0.5, 1.0),
    "lrn_within": LocalResponseNorm("layer", 3, 0.7, 0.75, 1.0, "within_channel"),
    "lrn_within_wider_than_the_input": LocalResponseNorm("layer", 19, 0.1, 0.5, 1.0, "within_channel"),
    "pad": Pad("layer", (1, 0), (0, 2)),
    "pad_nothing": Pad("layer", (0, 0), (0, 0)),
}

LINES = {
    "convolution": Convolution("layer", 4, (3,), (2,), (1,), (1,)),
    "convolution_asymmetric": Convolution("layer", 4, (3,), (2,), (0,), (2,)),
    "max": Pool("layer", "max", (3,), (2,), (1,), (1,)),
    "average": Pool("layer", "average", (3,), (2,), (1,), (1,), "ceil"),
    "batch_norm": BatchNorm("layer", 1e-3),
    "lrn": LocalResponseNorm("layer", 3, 0.7, 0.75, 2.0),
    "lrn_within": LocalResponseNorm("layer", 5, 0.7, 0.75, 1.0, "within_channel"),
    "dropout": Dropout("layer", 0.4),
    "pad": Pad("layer", (1,), (2,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    model = single(LAYERS[name], input_shape=(2, 9, 8))
    settings = training(RULES["momentum"])
    assert_steps_equal(engine(model, settings), model, settings, make_batches(model, 2, 5), 4e-6)


@pytest.mark.parametrize("name", LINES)
def test_layer_in_one_dimension(name):
    model = single(LINES[name], input_shape=(2, 11))
    settings = training(RULES["momentum"])
    assert_steps_equal(engine(model, settings), model, settings, make_batches(model, 2, 5), 4e-6)


@pytest.mark.parametrize("semantics", ["canonical", "native"])
def test_constant_that_caffe_ignores_within_a_channel_is_refused(semantics):
    model = single(LocalResponseNorm("layer", 3, 0.7, 0.75, 2.0, "within_channel"), input_shape=(2, 9, 8))
    with pytest.raises(CrosstrainError, match="'layer' with k = 2.0") as caught:
        engine(model, training(RULES["sgd"]), semantics=semantics)
    assert caught.value.reason == "UNSUPPORTED" and caught.value.field == "model.layers[layer].k"


def test_network_with_a_smaller_last_batch():
    model = cnn2((1, 10, 12), 5, (3, 4), 6, dropout=0.3)
    settings = training(RULES["momentum"], batch_size=6)
    sizes = [6, 6, 1, 6, 3]
    batches = [
        Batch(b.step, b.x[:n], b.labels[:n], b.learning_rate, {name: m[:n] for name, m in b.masks.items()})
        for b, n in zip(make_batches(model, 5, 6), sizes)
    ]
    assert_steps_equal(engine(model, settings), model, settings, batches, 1e-5)


def test_loss_is_not_cut_off_where_a_probability_underflows():
    model = single(input_shape=(1, 1, 1))
    settings = training(RULES["sgd"])
    built = engine(model, settings)
    values = {name: np.zeros(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    values["last.bias"][:] = [400, 0, 10, 20]
    built.load_parameters(values)
    x, labels = np.zeros((2, 1, 1, 1), np.float32), np.array([1, 0])
    inside = built.intermediates(Batch(0, x, labels, 0.1))
    assert inside.loss == 200.0
    assert inside.output_gradients["last"].tolist() == [[0.5, -0.5, 0, 0], [0, 0, 0, 0]]


def test_intermediates_change_nothing():
    model = single(BatchNorm("norm", None, None), Dropout("drop", 0.5), input_shape=(2, 5, 4))
    settings = training(RULES["momentum"])
    batches = make_batches(model, 3, 4)
    runs = []
    for probing in (False, True):
        built = engine(model, settings, semantics="native")
        losses = []
        for batch in batches:
            if probing:
                inside = built.intermediates(batch)
            losses += [float(record["loss"]) for _, record in _plain(built, batch)]
            assert not probing or inside.loss == losses[-1]
        runs.append((losses, built.state()))
    assert runs[0][0] == runs[1][0]
    for name, value in runs[0][1].items():
        if name != "solver":  # names the folder of the engine's files
            assert (value == runs[1][1][name]).all(), name


def _plain(built, batch):
    from crosstrain_service.testing import ListLoop

    loop = ListLoop([batch])
    built.train(loop)
    yield batch.step, {"loss": loop.losses[0]}


def test_batch_statistics_and_evaluation():
    model = single(BatchNorm("norm1", 1e-3), Relu("relu"), BatchNorm("norm2", 1e-2), input_shape=(2, 5, 4))
    settings = training(RULES["sgd"])
    from oracle import reference

    built, exact = engine(model, settings), reference(model, settings)
    x = make_batches(model, 1, 7)[0].x
    assert built.statistics() == {}
    found, expected = built.batch_statistics(x), exact.batch_statistics(x.astype(np.float64))
    statistics = {}
    for name, parts in expected.items():
        for part, value, other in zip(("running_mean", "running_var"), parts, found[name]):
            np.testing.assert_allclose(other, value, rtol=2e-6, atol=1e-7)
            statistics["%s.%s" % (name, part)] = value.astype(np.float32)
    built.load_statistics(statistics)
    exact.load_statistics({name: value.astype(np.float64) for name, value in statistics.items()})
    for size in (7, 3):
        expected = exact.predict(x[:size].astype(np.float64))
        np.testing.assert_allclose(built.predict(x[:size]), expected, rtol=1e-5, atol=1e-6)
    for name, value in built.statistics().items():
        assert (value == statistics[name]).all()


def test_every_feature_is_declared():
    features = CaffeEngine.info().features
    assert set(features) == set(FEATURES)
    model = cnn2((1, 8, 8))
    assert all(features[name].support == "exact" for name in features_of_model(model))
    assert features["precision.float64"].support == "unsupported"
    assert Execution().precision == ""


def test_a_batch_too_large_for_caffe_is_refused():
    model = single(Convolution("layer", 2 ** 14, (1, 1), (1, 1), (0, 0), (0, 0)), Relu("relu"), input_shape=(1, 64, 64))
    with pytest.raises(CrosstrainError, match="layer of a batch of 64 has 4294967296") as caught:
        CaffeEngine(model, training(RULES["sgd"], batch_size=64), Execution())
    assert caught.value.reason == "UNSUPPORTED"
