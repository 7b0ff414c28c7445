"""Turns a block of CSV lines into a matrix of numbers, fast where the text is plain.

Three ways, each tried when the one before declines:

1. digits, commas and line feeds only: one pass of array arithmetic over the bytes;
2. other numbers, spaces and quotes: fields are cut by array arithmetic and parsed by Arrow;
3. anything else: field by field in Python, to accept what is valid or to name what is not.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .csv_blocks import LineBlock
from .errors import DataError, shorten

COMMA, LINE_FEED, ZERO, QUOTE = 44, 10, 48, 34
MAX_DIGITS = 18
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
FLOAT32_MAX = float(np.finfo(np.float32).max)
EMPTY_LINE = re.compile(rb"^[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class Naming:
    """How messages call the file and its columns."""

    file: str
    header: tuple[str, ...] | None = None

    def column(self, index: int) -> str:
        """The header's name of a column (0-based), else its 1-based number."""
        name = self.header[index].strip() if self.header and index < len(self.header) else ""
        return shorten(name) or str(index + 1)


def parse_fast(text: bytes, columns: int) -> NDArray[Any] | None:
    """The block as (rows, columns) integers or float64, or None when ways 1 and 2 decline it."""
    values = _parse_bare(text, columns)
    if values is not None:
        return values
    cleaned = EMPTY_LINE.sub(b"", text)
    if not cleaned:
        return np.empty((0, columns), dtype=np.uint16)
    if b'"' in cleaned:
        bare = _without_quotes(cleaned)
        if bare is None:
            return None
        cleaned = bare
    return _parse_bare(cleaned, columns) if len(cleaned) < len(text) else None


def _parse_bare(text: bytes, columns: int) -> NDArray[Any] | None:
    values = None if b"." in text else parse_digits(text, columns)
    return values if values is not None else parse_general(text, columns)


def parse_digits(text: bytes, columns: int) -> NDArray[Any] | None:
    """Way 1: (rows, columns) uint16 (int32 or int64 for numbers above 999), or None.

    The value of every run of up to three digits is summed at each byte of the block, and picked at the
    last byte of each field: whole-block operations on small integers are far cheaper than gathering
    the digits of each field.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    digits = data - np.uint8(ZERO)  # wraps: every non-digit exceeds 9
    in_field = digits <= 9
    ends = np.flatnonzero(~in_field)
    if not _rectangular(data[ends], columns):
        return None
    lengths: NDArray[np.int64] = np.diff(ends, prepend=-1) - 1
    longest = int(lengths.max())
    if lengths.min() < 1 or longest > MAX_DIGITS:
        return None
    digits *= in_field  # a separator counts as zero
    sums = digits.astype(np.uint16)
    sums[1:] += digits[:-1] * np.uint16(10)
    sums[2:] += digits[:-2] * in_field[1:-1] * np.uint16(100)
    values: NDArray[Any] = sums[ends - 1]
    if longest > 3:
        dtype: type[np.signedinteger[Any]] = np.int64 if longest > 9 else np.int32
        values = values.astype(dtype)
        for place in range(4, longest + 1):
            which = np.flatnonzero(lengths >= place)
            values[which] += digits[ends[which] - place] * dtype(10 ** (place - 1))
    return values.reshape(-1, columns)


def parse_general(text: bytes, columns: int) -> NDArray[np.float64] | None:
    """Way 2: (rows, columns) float64, all within the range of float32, or None."""
    # Imported here: files of plain integers never need it.
    import pyarrow as pa
    import pyarrow.compute as pc

    if not text.isascii():
        return None
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((data == COMMA) | (data == LINE_FEED))
    if not _rectangular(data[ends], columns):
        return None
    starts = np.zeros(len(ends) + 1, dtype=np.int32)  # of each field once the separators are gone
    np.subtract(ends, np.arange(len(ends), dtype=np.int32), out=starts[1:], casting="unsafe")
    bare = text.translate(None, b",\n")
    fields = pa.StringArray.from_buffers(len(ends), pa.py_buffer(starts), pa.py_buffer(bare))
    try:
        if b" " in text or b"\t" in text:
            fields = pc.ascii_trim_whitespace(fields)
        values: NDArray[np.float64] = pc.cast(fields, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        return None
    if not (np.abs(values) <= FLOAT32_MAX).all():  # also false for NaN
        return None
    return values.reshape(-1, columns)


def parse_carefully(block: LineBlock, columns: int, naming: Naming) -> NDArray[np.float64]:
    """Way 3: the same matrix, or an error at the first field that is wrong.

    Raises:
        DataError: ``row``, ``column`` and ``value`` say where and what.
    """
    rows = []
    for line, fields in split_rows(block, naming):
        if len(fields) != columns:
            message = f"line {line}: {columns} fields were expected, {len(fields)} were found"
            raise DataError(naming.file, message, row=line)
        rows.append([number(text, line, naming, index) for index, text in enumerate(fields)])
    return np.array(rows, dtype=np.float64).reshape(-1, columns)


def split_rows(block: LineBlock, naming: Naming) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not blank, quotes removed.

    Raises:
        DataError: a line is not UTF-8, or its quotes are wrong.
    """
    for offset, raw in enumerate(block.text.split(b"\n")):
        line = block.first_line + offset
        if not raw.strip():
            continue
        try:
            yield line, next(csv.reader([raw.decode("utf-8")], strict=True, skipinitialspace=True))
        except UnicodeDecodeError as error:
            message = f"line {line}: byte 0x{raw[error.start]:02x} is not UTF-8 text"
            raise DataError(naming.file, message, row=line) from None
        except csv.Error:
            message = f"line {line}: a quote is not closed on its line, or stands inside a field"
            raise DataError(naming.file, message, row=line) from None


def line_of_row(block: LineBlock, row: int) -> int:
    """Line number of the ``row``-th (0-based) line of the block that is not blank."""
    lines = (number for number, raw in enumerate(block.text.split(b"\n"), block.first_line) if raw.strip())
    return next(line for index, line in enumerate(lines) if index == row)


def number(text: str, line: int, naming: Naming, index: int) -> float:
    """One field as a finite number within the range of float32.

    Raises:
        DataError: it is empty, not a number, not finite, or out of range.
    """
    bare = text.strip()
    if NUMBER.match(bare):
        value = float(bare)
        if abs(value) <= FLOAT32_MAX:
            return value
        reason = "is outside the range of float32"
    elif not bare:
        reason = "is empty"
    elif bare.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        reason = "is not finite"
    else:
        reason = "is not a number"
    shown = f" {shorten(text)!r}" if bare else ""
    column = naming.column(index)
    message = f"line {line}, column {column}: the value{shown} {reason}"
    raise DataError(naming.file, message, row=line, column=column, value=text)


def _rectangular(separators: NDArray[np.uint8], columns: int) -> bool:
    """Whether fields end in commas, and every ``columns``-th one in a line feed."""
    if not len(separators) or len(separators) % columns:
        return False
    rows = separators.reshape(-1, columns)
    return bool((rows[:, -1] == LINE_FEED).all() and (rows[:, :-1] == COMMA).all())


def _without_quotes(text: bytes) -> bytes | None:
    """Quotes dropped, provided that each pair encloses one whole field; else None."""
    data = np.frombuffer(text, dtype=np.uint8)
    quotes = np.flatnonzero(data == QUOTE)
    if len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    before = np.where(opening == 0, LINE_FEED, data[opening - 1])
    after = data[closing + 1]  # the block ends in a line feed
    separators = (data == COMMA) | (data == LINE_FEED)
    count = np.cumsum(separators)
    whole = (
        np.isin(before, (COMMA, LINE_FEED)).all()
        and np.isin(after, (COMMA, LINE_FEED)).all()
        and (count[opening] == count[closing]).all()
    )
    return text.replace(b'"', b"") if whole else None
