"""Checks across two splits, of the batch size, and of what an engine must see."""

from __future__ import annotations

import hashlib

import numpy as np

from .cache import DataCache
from .errors import DataError, listing
from .info import DatasetInfo, Finding
from .shapes import times
from .sink import row_keys

BYTE_SCALE = 255.0


def check_pair(train: DatasetInfo, test: DatasetInfo, cache: DataCache | None = None) -> list[Finding]:
    """What is wrong or remarkable about a training and a test set together.

    Args:
        train, test: as returned by the import.
        cache: where both are, for counting samples that are in both; by default the user's cache.

    Returns:
        Findings; one of severity ``error`` means that the job must be refused.
    """
    findings = [*_shape(train, test), *_classes(train, test), *_scale(train, test)]
    if train.pixels_digest == test.pixels_digest:
        message = "train and test hold the same samples, so the test measures what was trained on"
        findings.append(Finding("warning", "same_data", message))
    elif train.input_shape == test.input_shape:
        findings += _overlap(train, test, cache or DataCache.default())
    return findings


def check_batches(samples: int, batch_size: int, drop_last: bool) -> int:
    """Steps per epoch.

    Raises:
        DataError: ``training.batch_size``; there would be no step.
    """
    if batch_size < 1:
        raise DataError("training.batch_size", f"must be at least 1, not {batch_size}")
    steps = samples // batch_size if drop_last else -(-samples // batch_size)
    if steps == 0:
        raise DataError(
            "training.batch_size",
            f"{samples} samples in batches of {batch_size} with the last partial batch dropped "
            f"make zero steps; take a batch size of at most {samples}, or keep the last batch",
            value=str(batch_size),
        )
    return steps


def sample_digests(info: DatasetInfo, n: int = 100, cache: DataCache | None = None) -> list[str]:
    """SHA-256 (hex) of each of the first ``n`` samples as networks see them.

    A sample is ``pixels.astype(float32) / float32(divisor)``, little-endian, C order, (C, H, W). An
    engine that reports other digests was given, or made, another input.
    """
    pixels = (cache or DataCache.default()).open(info.pixels_digest)
    divisor = np.float32(info.divisor)
    canonical = (np.asarray(sample, dtype="<f4") / divisor for sample in pixels[:n])
    return [hashlib.sha256(sample.astype("<f4").tobytes()).hexdigest() for sample in canonical]


def _shape(train: DatasetInfo, test: DatasetInfo) -> list[Finding]:
    if train.input_shape == test.input_shape:
        return []
    message = f"train samples are {times(train.input_shape)}, test samples {times(test.input_shape)}"
    return [Finding("error", "shape_mismatch", message)]


def _classes(train: DatasetInfo, test: DatasetInfo) -> list[Finding]:
    if (train.label_values, train.class_names) != (test.label_values, test.class_names):
        message = (
            f"train has classes {listing(list(train.class_names))}, test {listing(list(test.class_names))}; "
            "import the test data with the classes of the training data"
        )
        return [Finding("error", "classes_mismatch", message)]
    findings = []
    for name, here, there in (("train", train, test), ("test", test, train)):
        missing = [
            f"{train.class_names[index]} ({there.class_counts[index]} in the other split)"
            for index in range(train.classes)
            if not here.class_counts[index] and there.class_counts[index]
        ]
        if missing:
            message = f"{name} has no sample of {len(missing)} classes: {listing(missing, 6)}"
            findings.append(Finding("warning", f"classes_absent_{name}", message))
    return findings


def _scale(train: DatasetInfo, test: DatasetInfo) -> list[Finding]:
    """A split in 0..255 beside one in 0..1, or ranges that differ by a large factor.

    Stored ranges are compared; when a divisor was stated for either split, the divided ranges are.
    """
    stated = train.divisor_stated or test.divisor_stated
    both = (train, test)
    high = [max(abs(info.minimum), abs(info.maximum)) / (info.divisor if stated else 1.0) for info in both]
    ranges = [f"{info.minimum:g}..{info.maximum:g}" for info in (train, test)]
    large, small = max(high), min(high)
    if small <= 0 or large / small < 16:
        return []
    which = "train" if high[0] > high[1] else "test"
    if large <= BYTE_SCALE and small <= 1 and large / small > BYTE_SCALE / 2:
        message = (
            f"scale mismatch x255: train holds {ranges[0]}, test {ranges[1]}; {which} looks like "
            "0..255 beside 0..1. Write both in one scale"
        )
        return [Finding("error", "scale_mismatch", message)]
    factor = f"{large / small:.3g}"
    message = f"train holds {ranges[0]}, test {ranges[1]}: the range of {which} is {factor} times larger"
    return [Finding("warning", "scale_differs", message)]


def _overlap(train: DatasetInfo, test: DatasetInfo, cache: DataCache) -> list[Finding]:
    keys = [row_keys(np.asarray(cache.open(info.rows_digest))) for info in (train, test)]
    low, high = np.concatenate(keys).T
    order = np.lexsort((low, high))
    low, high, in_test = low[order], high[order], order >= train.samples
    starts = np.ones(len(order), dtype=bool)  # of each run of equal rows
    starts[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    run = np.cumsum(starts) - 1
    in_train_run = np.zeros(run[-1] + 1, dtype=bool)
    in_train_run[run[~in_test]] = True
    common = int(in_train_run[run[in_test]].sum())
    if not common:
        return []
    message = f"{common} of {test.samples} test samples repeat the pixels of a training sample; all are kept"
    return [Finding("warning", "train_test_overlap", message)]
