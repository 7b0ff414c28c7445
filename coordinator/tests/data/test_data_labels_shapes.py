"""Labels become classes, and flat samples become shapes, only when that is unambiguous or declared."""

from __future__ import annotations

import numpy as np
import pytest
from data_inputs import csv_text

from crosstrain.data import DataCache, DataError, ImportOptions, import_pair
from crosstrain.data.shapes import candidates, infer_shape


def table(labels, pixels=4):
    values = np.random.RandomState(0).randint(0, 256, (len(labels), pixels + 1))
    values[:, 0] = labels
    return csv_text(values)


def test_arbitrary_labels_are_listed_and_mapped_only_on_request(refused, load, cache):
    text = table([1570, 1456, 1580, 1456])
    error = refused(text)
    assert error.field == "data.labels"
    assert "1456, 1570, 1580" in error.message
    assert "`labels: map`" in error.message
    assert "1456 as 0, 1570 as 1, 1580 as 2" in error.message
    info = load(text, labels="map")
    assert (info.classes, info.label_values, info.class_names) == (
        3,
        (1456, 1570, 1580),
        ("1456", "1570", "1580"),
    )
    assert list(cache.open(info.labels_digest)) == [1, 0, 2, 0]


def test_negative_labels_can_be_mapped(load, cache):
    info = load(table([-1, 1, -1]), labels="map")
    assert info.label_values == (-1, 1)
    assert list(cache.open(info.labels_digest)) == [0, 1, 0]


def test_label_beyond_the_declared_classes(refused):
    error = refused(table([0, 1, 2, 3, 4, 5]), classes=5)
    assert (error.field, error.value) == ("data.classes", "5")
    assert "0..4" in error.message
    assert "has 5" in error.message


def test_label_base_one_is_named(refused):
    error = refused(table(range(1, 10)))
    assert error.field == "data.labels"
    assert "label base 1: 1..9" in error.message
    assert "start at 1" in refused(table(range(1, 10)), classes=9).message


def test_base_one_is_no_alarm_when_class_zero_is_declared_absent(load):
    info = load(table([9, 1, 2, 3, 4, 5, 6, 7, 8, 1]), classes=10)
    assert info.classes == 10
    assert info.class_counts[0] == 0
    assert [(finding.code, "classes: 0" in finding.message) for finding in info.warnings] == [
        ("classes_absent", True)
    ]


def test_gap_offers_both_ways(refused):
    message = refused(table([0, 2, 0, 2])).message
    assert "`classes: 3`" in message
    assert "`labels: map`" in message


def test_one_class(refused):
    assert "one class" in refused(table([0, 0])).message


def test_mapped_classes_must_be_as_many_as_declared(refused):
    assert "2 classes are declared" in refused(table([3, 5, 7]), labels="map", classes=2).message


def test_sorted_labels_are_warned(load):
    assert [finding.code for finding in load(table([0, 0, 1, 1, 2])).warnings] == ["labels_sorted"]
    assert load(table([0, 1, 0, 1, 2]), "b.csv").warnings == ()


def test_783_pixels(refused):
    error = refused(table([0, 1], 783))
    assert error.field == "data.shape"
    assert "783" in error.message
    assert "1x27x29" in error.message
    assert "1x28x28 (784 values)" in error.message


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        (784, (1, 28, 28)),
        (3072, (3, 32, 32)),
        (50176, (1, 224, 224)),
        (150528, (3, 224, 224)),
        (1, (1, 1, 1)),
    ],
)
def test_square_images_are_inferred(values, shape):
    assert infer_shape(values, None) == shape


@pytest.mark.parametrize("values", [2, 6, 187, 783, 785, 7919])
def test_other_sizes_are_refused(values):
    with pytest.raises(DataError) as caught:
        infer_shape(values, None)
    assert f"[1, {values}]" in caught.value.message
    for channels, height, width in candidates(values):
        assert channels * height * width == values


@pytest.mark.parametrize("shape", [(1, 27, 29), (3, 9, 29), (1, 783), (3, 261)])
def test_stated_shape(load, cache, shape):
    info = load(table([0, 1], 783), shape=shape)
    assert info.input_shape == shape
    assert cache.open(info.pixels_digest).shape == (2, *shape)
    assert info.height == (shape[1] if len(shape) == 3 else None)


def test_stated_shape_that_does_not_fit(refused):
    error = refused(table([0, 1], 783), shape=(1, 28, 28))
    assert "784" in error.message
    assert "783" in error.message


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (784,)},
        {"shape": (1, 0, 3)},
        {"shape": (1, True, 3)},
        {"classes": 1},
        {"labels": "guess"},
        {"format": "xlsx"},
        {"divisor": 0},
        {"divisor": float("nan")},
        {"label": 0},
        {"class_names": ("a", "a")},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(DataError) as caught:
        ImportOptions(**options)
    assert caught.value.field == f"data.{next(iter(options))}"


def test_options_from_json():
    options = ImportOptions(shape=(1, 28, 28), labels="map", classes=3, label_values=(4, 5, 6))
    assert ImportOptions.from_json(options.to_json()) == options
    assert ImportOptions.from_json({"shape": [1, 2, 3]}).shape == (1, 2, 3)
    with pytest.raises(DataError, match="unknown option"):
        ImportOptions.from_json({"colour": 1})


def test_the_test_split_takes_the_mapping_of_the_training_split(tmp_path, cache: DataCache):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text(table([1456, 1570, 1580]))
    test.write_text(table([1580, 1580]))
    first, second = import_pair(train, test, ImportOptions(labels="map"), cache)
    assert second.label_values == first.label_values
    assert list(cache.open(second.labels_digest)) == [2, 2]
    test.write_text(table([1580, 1600]))
    with pytest.raises(DataError, match="1600"):
        import_pair(train, test, ImportOptions(labels="map"), cache)
