"""Which columns of a CSV file are labels and which are pixels, and whether it has a header."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .csv_numbers import NUMBER, Naming
from .errors import DataError, listing
from .info import Finding, ImportOptions
from .shapes import infer_shape, square, times

LABEL_NAMES = ("label", "labels", "class", "target", "digit", "y")
NUMBERED = re.compile(r"(.*?)(\d+)\Z", re.DOTALL)
NOT_NAMES = re.compile(r"\s*([+-]?(nan|inf|infinity)|n/?a|null|none)?\s*\Z", re.IGNORECASE)
MAX_BYTE_COLUMNS = 257
MAX_ONE_HOT = 1000


@dataclass(frozen=True)
class CsvLayout:
    """The columns of one file.

    Attributes:
        label_columns: one column, or the K columns of one-hot labels (0-based).
        shape: shape of one sample.
    """

    naming: Naming
    columns: int
    label_columns: tuple[int, ...]
    shape: tuple[int, ...]
    warnings: tuple[Finding, ...]

    def pixels(self, values: NDArray[Any]) -> NDArray[Any]:
        """The pixel columns of (rows, columns) values, in the order of the file."""
        if self.label_columns == tuple(range(len(self.label_columns))):
            return values[:, len(self.label_columns) :]
        pixels: NDArray[Any] = np.delete(values, self.label_columns, axis=1)
        return pixels


def has_header(fields: list[str], options: ImportOptions) -> bool:
    """Whether the first line names the columns.

    It does when a field is a usual name of a label column, when most fields are words (not numbers,
    not blank and not a mark of a missing value), or when it is the plain count 0, 1, 2, ... up to
    more than a byte, as data-frame libraries write for columns without names.
    """
    if options.header is not None:
        return options.header
    words = [text for text in fields if not NUMBER.match(text.strip()) and not NOT_NAMES.match(text)]
    if any(text.strip().casefold() in LABEL_NAMES for text in words) or 2 * len(words) > len(fields):
        return True
    return len(fields) > MAX_BYTE_COLUMNS and fields == [str(index) for index in range(len(fields))]


def find_layout(
    naming: Naming, columns: int, sample: NDArray[Any] | None, options: ImportOptions
) -> CsvLayout:
    """Decide the columns.

    Args:
        naming: the file and, when it has one, its header.
        columns: number of fields of the first line.
        sample: the first rows, (n, columns), or None when they do not all parse.
        options: what the user stated.

    Raises:
        DataError: no label column, no fitting shape, or one-hot labels that were not declared.
    """
    if columns < 2:
        raise DataError(naming.file, "has one column; a label and at least one pixel column are needed")
    warnings: list[Finding] = []
    if options.labels == "onehot":
        label_columns = _stated_one_hot(naming, columns, sample, options)
    else:
        column, assumed = _label_column(naming, columns, options)
        label_columns = (column,)
        if assumed:
            message = f"no column is named label; column 1 ({naming.column(0)}) is taken as the label"
            warnings.append(Finding("warning", "label_column_assumed", message))
        _refuse_one_hot(naming, columns, sample, options)
    try:
        shape = infer_shape(columns - len(label_columns), options.shape)
    except DataError as error:
        message = f"{naming.file} has {columns} columns, {len(label_columns)} for the label: {error.message}"
        raise DataError(error.field, message, value=error.value) from None
    warnings += _order_warnings(naming, label_columns)
    return CsvLayout(naming, columns, label_columns, shape, tuple(warnings))


def _label_column(naming: Naming, columns: int, options: ImportOptions) -> tuple[int, bool]:
    """(0-based label column, whether it was only assumed)."""
    if isinstance(options.label, int):
        if options.label > columns:
            raise DataError("data.label", f"there is no column {options.label}; {naming.file} has {columns}")
        return options.label - 1, False
    names = [name.strip().casefold() for name in naming.header or ()]
    if options.label is not None:
        if naming.header is None:
            raise DataError("data.label", f"{naming.file} has no header, so state the label column by number")
        wanted: tuple[str, ...] = (options.label.strip().casefold(),)
        if wanted[0] not in names:
            shown = listing(list(naming.header), 6)
            message = f"no column of {naming.file} is named {options.label!r}; it has {shown}"
            raise DataError("data.label", message)
    else:
        wanted = LABEL_NAMES
    for name in wanted:
        found = [index for index, other in enumerate(names) if other == name]
        if len(found) > 1:
            raise DataError(naming.file, f"columns {found[0] + 1} and {found[1] + 1} are both named {name!r}")
        if found:
            _refuse_row_index(naming, names)
            return found[0], False
    if names:
        _refuse_row_index(naming, names)
    counted = bool(names) and all(name.isdigit() for name in names)
    return 0, bool(names) and not counted


def _refuse_row_index(naming: Naming, names: list[str]) -> None:
    if not names[0] or names[0].startswith("unnamed"):
        message = "column 1 has no name, as when a table is written with its row index; write it without"
        raise DataError(naming.file, message)


def _one_hot(
    columns: int, sample: NDArray[Any], options: ImportOptions
) -> tuple[tuple[int, ...], int] | None:
    """(columns, classes seen) when the first or last K columns hold a single 1 among zeros in each row.

    Only those K are tried that leave a sample shape.
    """
    if options.shape is not None:
        widths = [columns - math.prod(options.shape)]
    else:
        widths = [k for k in range(2, min(MAX_ONE_HOT, columns - 1) + 1) if square(columns - k)]
    for width in widths:
        if width < 2 or (options.classes is not None and width != options.classes):
            continue
        for start in (0, columns - width):
            part = sample[:, start : start + width]
            if ((part == 0) | (part == 1)).all() and (part.sum(axis=1) == 1).all():
                return tuple(range(start, start + width)), len(np.unique(part.argmax(axis=1)))
    return None


def _stated_one_hot(
    naming: Naming, columns: int, sample: NDArray[Any] | None, options: ImportOptions
) -> tuple[int, ...]:
    found = None if sample is None or not len(sample) else _one_hot(columns, sample, options)
    if found is not None:
        return found[0]
    message = (
        f"{naming.file}: neither the first nor the last columns hold a single 1 among zeros in each row "
        "and leave a sample shape; state `shape` and `classes`, or correct the labels"
    )
    raise DataError("data.labels", message)


def _refuse_one_hot(
    naming: Naming, columns: int, sample: NDArray[Any] | None, options: ImportOptions
) -> None:
    """Refuse labels that look one-hot; with more evidence when one label column would fit too."""
    if sample is None or len(sample) < 2 or options.label is not None:
        return
    wanted = columns - 1
    fits = math.prod(options.shape) == wanted if options.shape else square(wanted) is not None
    if fits and not (len(sample) >= 20 and ((sample[:, 0] == 0) | (sample[:, 0] == 1)).all()):
        return
    found = _one_hot(columns, sample, options)
    if found is None or found[1] < (3 if fits else 2):
        return
    first, last = found[0][0], found[0][-1]
    width = len(found[0])
    shape = options.shape or square(columns - width) or ()
    message = (
        f"{naming.file}: columns {first + 1} to {last + 1} look like one-hot labels of {width} classes "
        f"(a single 1 among zeros in each row), beside samples of {times(shape)}; declare "
        f"`labels: onehot`, or write one label column of 0..{width - 1} instead"
    )
    raise DataError("data.labels", message, column=naming.column(first))


def _order_warnings(naming: Naming, label_columns: tuple[int, ...]) -> list[Finding]:
    """Columns named pixel0, pixel10, pixel1 are read in the order of the file; the user should know."""
    if naming.header is None:
        return []
    names = [name.strip() for index, name in enumerate(naming.header) if index not in label_columns]
    matches = [NUMBERED.match(name) for name in names]
    if not all(matches) or len({match[1] for match in matches if match}) != 1:
        return []
    numbers = [int(match[2]) for match in matches if match]
    for before, after in itertools.pairwise(numbers):
        if after <= before:
            message = f"pixel columns are read in the order of the file, where {before} comes before {after}"
            return [Finding("warning", "pixel_columns_unordered", message)]
    return []
