"""Checks over a pair of splits, the batch size, and the digests of canonical samples."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
from data_inputs import csv_text

from crosstrain.data import DataError, ImportOptions, check_batches, check_pair, import_pair, sample_digests


def table(seed, labels, pixels=9):
    values = np.random.RandomState(seed).randint(0, 256, (len(labels), pixels + 1))
    values[:, 0] = labels
    return values


@pytest.fixture
def pair(tmp_path, cache):
    def run(train, test, **options):
        paths = tmp_path / "train.csv", tmp_path / "test.csv"
        for path, rows in zip(paths, (train, test), strict=True):
            path.write_text(rows if isinstance(rows, str) else csv_text(rows))
        return import_pair(*paths, ImportOptions(**options), cache)

    return run


def codes(findings):
    return [(finding.severity, finding.code) for finding in findings]


def test_good_pair(pair, cache):
    assert check_pair(*pair(table(0, [0, 1, 2, 0]), table(1, [2, 1, 0, 0])), cache) == []


def test_bytes_beside_unit_range_are_a_scale_mismatch(pair, cache):
    train, test = table(0, [0, 1, 2, 0]), table(1, [2, 1, 0, 0]).astype(float)
    test[:, 1:] /= 255
    findings = check_pair(*pair(train, test), cache)
    assert codes(findings) == [("error", "scale_mismatch")]
    assert "x255" in findings[0].message
    assert "train looks like 0..255" in findings[0].message
    assert codes(check_pair(*reversed(pair(train, test)), cache)) == [("error", "scale_mismatch")]


def test_a_stated_divisor_settles_the_scale(tmp_path, cache, load):
    train, test = table(0, [0, 1, 2, 0]), table(1, [2, 1, 0, 0]).astype(float)
    test[:, 1:] /= 255
    first = load(csv_text(train), "train.csv", divisor=255)
    assert check_pair(first, load(csv_text(test), "test.csv", divisor=1), cache) == []


def test_dark_test_images_share_the_divisor_of_the_training_data(pair, cache):
    train, test = table(0, [0, 1, 2, 0]), table(1, [2, 1, 0, 0])
    test[:, 1:] %= 2
    first, second = pair(train, test)
    assert second.divisor == first.divisor == 255


def test_other_factor_is_warned(pair, cache):
    train, test = table(0, [0, 1, 2, 0]) * 1000, table(1, [2, 1, 0, 0])
    train[:, 0] //= 1000
    assert codes(check_pair(*pair(train, test), cache)) == [("warning", "scale_differs")]


def test_shape_mismatch(pair, cache):
    assert codes(check_pair(*pair(table(0, [0, 1]), table(1, [0, 1], 16)), cache)) == [
        ("error", "shape_mismatch")
    ]


def test_classes_missing_from_a_split_sorted_by_label(pair, cache):
    train, test = pair(table(0, [0, 0, 1, 1, 2]), table(1, [3, 3, 2]), classes=4)
    findings = check_pair(train, test, cache)
    assert codes(findings) == [("warning", "classes_absent_train"), ("warning", "classes_absent_test")]
    assert "3 (2 in the other split)" in findings[0].message
    assert "0 (2 in" in findings[1].message
    assert {"labels_sorted", "classes_absent"} <= {finding.code for finding in train.warnings}


def test_other_classes(load, cache):
    first, second = load(csv_text(table(0, [0, 1, 2]))), load(csv_text(table(1, [0, 1])), "b.csv")
    assert codes(check_pair(first, second, cache)) == [("error", "classes_mismatch")]


def test_duplicates_are_counted_and_kept(pair, cache):
    train, test = table(0, [0, 1, 2, 0, 1]), table(1, [2, 1, 0])
    train[3, 1:], train[4, 1:] = train[0, 1:], train[0, 1:]
    test[1, 1:], test[2, 1:] = train[1, 1:], train[0, 1:]
    first, second = pair(train, test)
    assert (first.duplicates, first.samples) == (2, 5)
    assert [finding.code for finding in first.warnings] == ["duplicates", "duplicates_conflict"]
    assert "2 of 5" in first.warnings[0].message
    assert first.warnings[1].message.startswith("1 of")
    findings = check_pair(first, second, cache)
    assert codes(findings) == [("warning", "train_test_overlap")]
    assert "2 of 3" in findings[0].message


def test_duplicates_across_dtypes(pair, cache):
    train, test = table(0, [0, 1, 2, 0]), table(1, [2, 1, 0, 0]).astype(float)
    test[0, 1] += 0.5
    test[3, 1:] = train[2, 1:]
    first, second = pair(train, test)
    assert (first.dtype, second.dtype) == ("uint8", "float32")
    assert codes(check_pair(first, second, cache)) == [("warning", "train_test_overlap")]


def test_same_file_twice(pair, cache):
    rows = table(0, [0, 1, 2, 0])
    assert codes(check_pair(*pair(rows, rows), cache)) == [("warning", "same_data")]


def test_zero_steps_are_refused():
    with pytest.raises(DataError) as caught:
        check_batches(10, 32, True)
    assert caught.value.field == "training.batch_size"
    assert "10 samples" in caught.value.message
    assert "zero steps" in caught.value.message
    assert [check_batches(10, 32, False), check_batches(10, 4, True), check_batches(10, 4, False)] == [
        1,
        2,
        3,
    ]
    with pytest.raises(DataError):
        check_batches(10, 0, False)


def test_sample_digests_are_those_of_the_canonical_input(load, cache):
    rows = table(0, [0, 1, 2, 0])
    info = load(csv_text(rows))
    expected = []
    for row in rows[:3]:
        sample = row[1:].astype(np.float32) / np.float32(255)
        expected.append(hashlib.sha256(sample.tobytes()).hexdigest())
    assert sample_digests(info, 3, cache) == expected
    assert len(sample_digests(info, 100, cache)) == 4


def test_error_can_come_from_another_process():
    error = pickle.loads(pickle.dumps(DataError("f", "m", row=3, column="c", value="v")))
    assert (error.field, error.message, error.row, error.column, error.value) == ("f", "m", 3, "c", "v")
    assert str(error) == "f: m"
