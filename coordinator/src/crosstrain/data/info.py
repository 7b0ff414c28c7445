"""What an import is asked for and what it found: plain, JSON-serialisable records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import DataError

Severity = Literal["error", "warning", "info"]
FORMATS = ("csv", "npz", "idx", "images")
LABEL_RULES = ("index", "map", "onehot")
LAYOUTS = ("nchw", "nhwc")
INFO_VERSION = 1


@dataclass(frozen=True)
class Finding:
    """One remark about a dataset or a pair of datasets.

    ``error``: the job must be refused; ``warning``: the job may run and the user should know;
    ``info``: stated for the record. ``code`` is a stable lower-case identifier.
    """

    severity: Severity
    code: str
    message: str


@dataclass(frozen=True)
class ImportOptions:
    """How to read one source. Every field left at None is found out from the data.

    Attributes:
        format: one of ``csv``, ``npz``, ``idx``, ``images``.
        shape: shape of one sample, (C, H, W) or (C, L).
        layout: axis order of four-dimensional npz images, ``nchw`` or ``nhwc``.
        header: whether the first line of a CSV file holds column names.
        label: name, or 1-based number, of the label column of a CSV file.
        labels: ``index`` (labels are already 0..K-1), ``map`` (any integers, numbered in ascending
            order) or ``onehot`` (K columns of zeros and a single one).
        classes: number of classes K; lets a split lack some of them.
        label_values: the integers that stand for classes 0..K-1, as an earlier ``map`` import of
            the training data found them.
        class_names: the subfolder names that stand for classes 0..K-1 of an image folder.
        divisor: what stored values are divided by to become network input.

    Raises:
        DataError: a value is out of its range; ``field`` is ``data.<name of the option>``.
    """

    format: str | None = None
    shape: tuple[int, ...] | None = None
    layout: str | None = None
    header: bool | None = None
    label: str | int | None = None
    labels: str = "index"
    classes: int | None = None
    label_values: tuple[int, ...] | None = None
    class_names: tuple[str, ...] | None = None
    divisor: float | None = None

    def __post_init__(self) -> None:
        _choice("format", self.format, FORMATS)
        _choice("layout", self.layout, LAYOUTS)
        _choice("labels", self.labels, LABEL_RULES)
        if self.shape is not None:
            shape = tuple(self.shape)
            if len(shape) not in (2, 3) or not all(_is_int(n) and 1 <= n <= 1 << 24 for n in shape):
                message = f"must be [C, H, W] or [C, L] of positive integers, not {list(shape)}"
                raise DataError("data.shape", message)
            object.__setattr__(self, "shape", shape)
        if self.classes is not None and not (_is_int(self.classes) and 2 <= self.classes <= 1_000_000):
            raise DataError("data.classes", f"must be an integer from 2 to 1000000, not {self.classes!r}")
        if isinstance(self.label, bool) or (_is_int(self.label) and int(self.label or 0) < 1):
            message = f"must be a column name or a 1-based column number, not {self.label!r}"
            raise DataError("data.label", message)
        if self.divisor is not None and not (math.isfinite(self.divisor) and self.divisor > 0):
            raise DataError("data.divisor", f"must be a positive finite number, not {self.divisor!r}")
        for name in ("label_values", "class_names"):
            values = getattr(self, name)
            if values is None:
                continue
            if len(values) < 2 or len(set(values)) != len(values):
                raise DataError(f"data.{name}", "must hold at least two values, all different")
            object.__setattr__(self, name, tuple(values))

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values from which :meth:`from_json` makes an equal object."""
        return _plain(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ImportOptions:
        """Build options from a dictionary of JSON (or YAML) values; unknown names are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise DataError(f"data.{name}", f"unknown option; known are {', '.join(sorted(known))}")
        arguments: dict[str, Any] = _tuples(values)
        try:
            return cls(**arguments)
        except TypeError:
            raise DataError("data", "an option has a value of the wrong type") from None


@dataclass(frozen=True)
class DatasetInfo:
    """One imported dataset: where its arrays are in the cache and what they hold.

    The arrays are plain ``.npy`` files (version 1.0, C order, little-endian) named by the SHA-256 of
    their bytes: pixels (N, C, H, W) or (N, C, L) of ``dtype``, labels (N,) int64 in 0..K-1. The input
    that every network sees is ``pixels.astype(float32) / float32(divisor)``.

    Attributes:
        source: what was read, in words, without a directory path.
        dtype: ``uint8`` when every value is an integer 0..255, else ``float32``.
        divisor_stated: the divisor was stated by the user and not derived from the data.
        minimum, maximum: over the stored values, before the division.
        label_values: the integer that stood for each class in the source.
        class_counts: samples of each class.
        rows_digest: array (N, 16) uint8 of one hash per sample, for counting duplicates.
        duplicates: samples whose pixels equal those of an earlier sample.
    """

    format: str
    source: str
    pixels_digest: str
    labels_digest: str
    rows_digest: str
    samples: int
    input_shape: tuple[int, ...]
    dtype: str
    divisor: float
    divisor_stated: bool
    minimum: float
    maximum: float
    classes: int
    label_values: tuple[int, ...]
    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    duplicates: int
    warnings: tuple[Finding, ...]

    @property
    def channels(self) -> int:
        """First axis of one sample."""
        return self.input_shape[0]

    @property
    def height(self) -> int | None:
        """Rows of an image; None for one-dimensional data."""
        return self.input_shape[1] if len(self.input_shape) == 3 else None

    @property
    def width(self) -> int | None:
        """Columns of an image; None for one-dimensional data."""
        return self.input_shape[2] if len(self.input_shape) == 3 else None

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values from which :meth:`from_json` makes an equal object."""
        return {"version": INFO_VERSION, **_plain(dataclasses.asdict(self))}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DatasetInfo:
        """The inverse of :meth:`to_json`.

        Raises:
            DataError: the record is of another version, or lacks a field.
        """
        if values.get("version") != INFO_VERSION:
            raise DataError("dataset", "the stored dataset record is of another version")
        arguments: dict[str, Any] = _tuples(values)
        del arguments["version"]
        try:
            arguments["warnings"] = tuple(Finding(**item) for item in arguments["warnings"])
            return cls(**arguments)
        except (KeyError, TypeError):
            raise DataError("dataset", "the stored dataset record is incomplete") from None


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, as JSON has no tuple."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _choice(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise DataError(f"data.{name}", f"must be one of {', '.join(allowed)}, not {value!r}")
