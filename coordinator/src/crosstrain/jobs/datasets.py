"""A job's data: imported from the data directory, or given by digest and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from crosstrain.artifacts import ArtifactStore
from crosstrain.data import (
    DataCache,
    DataError,
    DatasetInfo,
    Finding,
    ImportOptions,
    import_sources,
)
from crosstrain.data.message import dataset_message
from crosstrain_protos.v1 import data_pb2
from crosstrain_service.convert import check_digest
from crosstrain_service.errors import CrosstrainError, invalid_field

T = TypeVar("T")


class JobData(NamedTuple):
    """The data sets of a job, and remarks about them that its user should see."""

    train: data_pb2.Dataset | None
    test: data_pb2.Dataset | None
    findings: tuple[Finding, ...] = ()


class DataSection(Protocol):
    """The part of a job document that names data."""

    train: str | None
    test: str | None

    def import_options(self) -> ImportOptions:
        """How to read the files."""


class Datasets:
    """Imports and checks data sets.

    Args:
        artifacts: where the arrays of a job are kept.
        cache: folder for imported arrays.
        data_dir: the only folder whose files jobs may name; None: no files at all.
    """

    def __init__(self, artifacts: ArtifactStore, cache: Path, data_dir: Path | None) -> None:
        self._artifacts = artifacts
        self._cache_dir = cache
        self._data_dir = None if data_dir is None else data_dir.resolve()

    def given(self, dataset: data_pb2.Dataset, field: str) -> data_pb2.Dataset:
        """Checks a data set that a client stored before.

        Raises:
            CrosstrainError: ``INVALID_FIELD``, ``ARTIFACT_NOT_FOUND`` or ``INVALID_DATA`` naming the field.
        """
        for name in ("pixels_digest", "labels_digest"):
            check_digest(getattr(dataset, name), f"{field}.{name}")
        if dataset.samples < 1:
            raise CrosstrainError("INVALID_DATA", f"{field}: there are no samples", f"{field}.samples")
        if not 1 <= dataset.classes <= 1 << 24:
            raise invalid_field(f"{field}.classes", f"{dataset.classes} is not within 1 to {1 << 24}")
        shape = (dataset.samples, *dataset.input_shape)
        found, dtype = self._artifacts.array_header(dataset.pixels_digest, f"{field}.pixels_digest")
        if found != shape or dtype.str not in ("|u1", "<f4"):
            message = f"{field}: pixels are {dtype} {found}, announced were uint8 or float32 {shape}"
            raise CrosstrainError("INVALID_DATA", message, f"{field}.pixels_digest")
        found, dtype = self._artifacts.array_header(dataset.labels_digest, f"{field}.labels_digest")
        if found != shape[:1] or dtype.str != "<i8":
            message = f"{field}: labels are {dtype} {found}, announced were int64 {shape[:1]}"
            raise CrosstrainError("INVALID_DATA", message, f"{field}.labels_digest")
        self._check_labels(dataset, f"{field}.labels_digest")
        return dataset

    def imported(self, section: DataSection) -> JobData:
        """Imports the files that a job document names; None where it names none.

        Raises:
            CrosstrainError: ``PATH_OUTSIDE_DATA`` or ``INVALID_DATA``.
        """
        cache = self._open_cache()
        options = _translated(section.import_options)
        train, test = (
            None if text is None else self.allowed(text, f"data.{name}")
            for name, text in (("train", section.train), ("test", section.test))
        )
        found = _translated(lambda: import_sources(train, test, options, cache))
        return JobData(self._adopt(found.train, cache), self._adopt(found.test, cache), found.findings)

    def allowed(self, text: str, field: str) -> Path:
        """The path a job names, if it and everything in it lies within the data directory.

        Symbolic links are followed before the check. Raises ``PATH_OUTSIDE_DATA``.
        """
        if self._data_dir is None:
            message = f"{field}: this coordinator reads no files; send the data with the job"
            raise CrosstrainError("PATH_OUTSIDE_DATA", message, field)
        if "\0" in text:
            raise invalid_field(field, "a path holds no NUL character")
        path = self._inside(self._data_dir / text, field)
        if path.is_dir():
            self._check_links(path, field)
        return path

    def _check_links(self, path: Path, field: str) -> None:
        """Follows every link below a folder, and those in the folders that they lead to."""
        waiting, seen = [path], {path}
        while waiting:
            for folder, folders, files in os.walk(waiting.pop()):
                for entry in (Path(folder, name) for name in (*folders, *files)):
                    if not entry.is_symlink():
                        continue
                    target = self._inside(entry, field)
                    if target.is_dir() and target not in seen:
                        seen.add(target)
                        waiting.append(target)

    def _inside(self, path: Path, field: str) -> Path:
        assert self._data_dir is not None
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError):
            raise CrosstrainError("PATH_OUTSIDE_DATA", f"{field}: the path leads nowhere", field) from None
        if not resolved.is_relative_to(self._data_dir):
            message = f"{field}: the path leads out of the coordinator's data directory"
            raise CrosstrainError("PATH_OUTSIDE_DATA", message, field)
        return resolved

    def _open_cache(self) -> DataCache:
        return _translated(lambda: DataCache(self._cache_dir))

    def _adopt(self, info: DatasetInfo | None, cache: DataCache) -> data_pb2.Dataset | None:
        if info is None:
            return None
        for digest in (info.pixels_digest, info.labels_digest):
            self._artifacts.add_file(cache.path(digest), digest)
        return dataset_message(info)

    def _check_labels(self, dataset: data_pb2.Dataset, field: str) -> None:
        row = 0
        for block in self._artifacts.array_blocks(dataset.labels_digest, field):
            wrong = (block < 0) | (block >= dataset.classes)
            if wrong.any():
                index = int(wrong.argmax())
                message = (
                    f"{field}: sample {row + index} has the label {int(block[index])}, "
                    f"allowed are 0 to {dataset.classes - 1}"
                )
                raise CrosstrainError("INVALID_DATA", message, field)
            row += len(block)


def _translated(action: Callable[[], T]) -> T:
    try:
        return action()
    except DataError as error:
        place = f" (row {error.row})" if error.row is not None else ""
        raise CrosstrainError("INVALID_DATA", f"{error}{place}", error.field) from error
