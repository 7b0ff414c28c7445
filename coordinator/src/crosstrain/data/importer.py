"""Imports one source, or a training and a test source, into the cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .cache import DataCache, writing
from .csv_reader import read_csv
from .errors import DataError
from .formats import find_source
from .idx_reader import read_idx
from .image_reader import read_images
from .index import Entry, index_key, look_up, store
from .info import DatasetInfo, Finding, ImportOptions
from .labels import Classes, number_classes
from .npz_reader import read_npz
from .reading import ReadResult
from .sink import SampleSink, StoredPixels, store_array
from .source import NO_PROGRESS, Progress, Source

READERS = {"csv": read_csv, "npz": read_npz, "idx": read_idx, "images": read_images}


def import_dataset(
    path: Path | str,
    options: ImportOptions | None = None,
    cache: DataCache | None = None,
    progress: Progress = NO_PROGRESS,
) -> DatasetInfo:
    """Bring one source into the cache, or find it there.

    A source that is unchanged since an earlier import with the same options is not read again.
    Importers of the same source wait for one another; the second one finds the result of the first.

    Args:
        path: a CSV file (also .gz), an npz file, an IDX images file or its folder, or a folder with
            one subfolder of images per class.
        options: what the user stated; everything else is found out.
        cache: where the arrays go; by default the user's cache.
        progress: called with (bytes done, bytes in all) of the source.

    Raises:
        DataError: the data cannot be used, or the cache cannot be written.
    """
    options = options or ImportOptions()
    cache = cache or DataCache.default()
    kind, source = find_source(Path(path), options.format)
    key = index_key(source, options)
    known = look_up(cache, key, source)
    if known is not None:
        return known
    with cache.lock(key):
        known = look_up(cache, key, source)
        if known is not None:
            return known
        cache.clear_temporary(key)
        identity = source.identity()
        info = _import(kind, source, options, cache, key, progress)
        content = source.content_digest()
        if source.identity() != identity:
            raise DataError(source.name, "changed while it was read; import it again")
        store(cache, key, Entry(identity, content, info))
        return info


def import_pair(
    train: Path | str,
    test: Path | str,
    options: ImportOptions | None = None,
    cache: DataCache | None = None,
    progress: Progress = NO_PROGRESS,
) -> tuple[DatasetInfo, DatasetInfo]:
    """Import the training data, then the test data with the classes found in it.

    Two sources of bytes share the divisor of the training data, as one of them may be too small or
    too dark to show its range.

    Errors are those of :func:`import_dataset`; see :func:`crosstrain.data.check_pair` for the rest.
    """
    options = options or ImportOptions()
    cache = cache or DataCache.default()
    first = import_dataset(train, options, cache, progress)
    second = import_dataset(test, options_like(first, options), cache, progress)
    return first, share_divisor(first, second)


def share_divisor(train: DatasetInfo, test: DatasetInfo) -> DatasetInfo:
    """``test`` with the divisor of ``train`` when both are bytes and none was stated for the test data."""
    if train.dtype == test.dtype == "uint8" and not test.divisor_stated:
        return dataclasses.replace(test, divisor=train.divisor)
    return test


def options_like(train: DatasetInfo, options: ImportOptions) -> ImportOptions:
    """The options with which a second split has the classes of ``train``."""
    return dataclasses.replace(
        options,
        classes=train.classes,
        label_values=train.label_values,
        class_names=train.class_names if train.format == "images" else options.class_names,
    )


def _import(
    kind: str, source: Source, options: ImportOptions, cache: DataCache, key: str, progress: Progress
) -> DatasetInfo:
    sinks: list[SampleSink] = []

    def start(shape: tuple[int, ...]) -> SampleSink:
        sinks.append(SampleSink(cache, key, shape))
        return sinks[0]

    try:
        result = READERS[kind](source, options, start, progress)
        if not result.sink.samples:
            raise DataError(source.name, "holds no samples")
        classes = number_classes(result.sink.labels(), options, source.name)
        stored = result.sink.finish()
        with writing():
            labels_digest = store_array(cache, key, "labels", classes.labels)
        return _info(kind, source, options, result, stored, classes, labels_digest)
    finally:
        for sink in sinks:
            sink.abandon()


def _info(
    kind: str,
    source: Source,
    options: ImportOptions,
    result: ReadResult,
    stored: StoredPixels,
    classes: Classes,
    labels_digest: str,
) -> DatasetInfo:
    divisor = options.divisor
    if divisor is None:
        divisor = 255.0 if stored.dtype == "uint8" and stored.maximum > 1 else 1.0
    return DatasetInfo(
        format=kind,
        source=result.description,
        pixels_digest=stored.pixels_digest,
        labels_digest=labels_digest,
        rows_digest=stored.rows_digest,
        samples=stored.samples,
        input_shape=result.sink.sample_shape,
        dtype=stored.dtype,
        divisor=divisor,
        divisor_stated=options.divisor is not None,
        minimum=stored.minimum,
        maximum=stored.maximum,
        classes=len(classes.values),
        label_values=classes.values,
        class_names=result.class_names or options.class_names or tuple(str(v) for v in classes.values),
        class_counts=classes.counts,
        duplicates=stored.duplicates,
        warnings=(*result.warnings, *classes.warnings, *_remarks(source.name, stored)),
    )


def _remarks(name: str, stored: StoredPixels) -> list[Finding]:
    findings = []
    if stored.duplicates:
        message = (
            f"{stored.duplicates} of {stored.samples} samples of {name} repeat the pixels of an earlier one; "
            "all are kept"
        )
        findings.append(Finding("warning", "duplicates", message))
    if stored.conflicting:
        message = f"{stored.conflicting} of the repeated samples of {name} have another label than the first"
        findings.append(Finding("warning", "duplicates_conflict", message))
    if stored.minimum == stored.maximum:
        message = f"every value of {name} is {stored.minimum:g}"
        findings.append(Finding("warning", "constant", message))
    return findings
