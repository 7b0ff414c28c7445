"""Streams a CSV file of labels and pixels into a sample sink."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .csv_blocks import LineBlock, line_blocks
from .csv_layout import CsvLayout, find_layout, has_header
from .csv_numbers import Naming, line_of_row, parse_carefully, parse_fast, split_rows
from .errors import DataError
from .info import ImportOptions
from .reading import ReadResult, StartSink
from .source import Progress, Source, chunks

# Measured: with 1 MiB the temporary arrays leave the processor's cache and malloc's pools, and
# parsing is several times slower.
BLOCK_BYTES = 256 << 10
BLOCKS_AHEAD = 2
SAMPLE_ROWS = 1000
MAX_LABEL = 1 << 53


def read_csv(source: Source, options: ImportOptions, start: StartSink, progress: Progress) -> ReadResult:
    """Read the one file of ``source``.

    Raises:
        DataError: with line, column and value where a field is at fault.
    """
    path: Path = source.files[0]
    blocks = line_blocks(chunks(path, progress, BLOCK_BYTES), source.name)
    head, layout = _head(blocks, source.name, options)
    sink = start(layout.shape)
    for block, values in _parsed(itertools.chain([head], blocks), layout):
        labels = _labels(values, block, layout, options)
        sink.add(layout.pixels(values), labels)
    label = layout.label_columns
    where = (
        f"label column {layout.naming.column(label[0])}"
        if len(label) == 1
        else f"one-hot columns {label[0] + 1} to {label[-1] + 1}"
    )
    header = "header" if layout.naming.header else "no header"
    text = f"{source.name} (CSV, {layout.columns} columns, {header}, {where})"
    return ReadResult(sink, text, None, layout.warnings)


def _head(blocks: Iterator[LineBlock], name: str, options: ImportOptions) -> tuple[LineBlock, CsvLayout]:
    """The first data lines (without the header) and the layout they show."""
    naming = Naming(name)
    first = _first_lines(blocks)
    if first is None:
        raise DataError(name, "the file holds no lines of data")
    line, fields = next(split_rows(first, naming))
    if len(fields) == 1:
        for mark, word in ((";", "semicolons"), ("\t", "tabs"), (" ", "spaces")):
            if mark in fields[0].strip():
                message = f"line {line}: fields are separated by {word}; commas are needed"
                raise DataError(name, message, row=line)
    rest = first
    if has_header(fields, options):
        naming = Naming(name, tuple(fields))
        skipped = line - first.first_line + 1
        text = first.text.split(b"\n", skipped)[skipped]
        rest = LineBlock(line + 1, text)
        if not text.strip():
            raise DataError(name, "holds a header and no data lines")
    return rest, find_layout(naming, len(fields), _sample(rest, len(fields)), options)


def _first_lines(blocks: Iterator[LineBlock]) -> LineBlock | None:
    """A block with two lines that hold something, or all there is of the file; None when it is blank."""
    first: LineBlock | None = None
    for block in blocks:
        if first is None or not first.text.strip():
            first = block
        else:
            first = LineBlock(first.first_line, first.text + block.text)
        if b"\n" in first.text.strip():
            break
    return first if first is not None and first.text.strip() else None


def _sample(block: LineBlock, columns: int) -> NDArray[Any] | None:
    lines = block.text.split(b"\n", SAMPLE_ROWS)[:SAMPLE_ROWS]
    return parse_fast(b"\n".join(lines) + b"\n", columns)


def _parsed(blocks: Iterable[LineBlock], layout: CsvLayout) -> Iterator[tuple[LineBlock, NDArray[Any]]]:
    """Each block with its values; a second thread parses ahead while this one hashes and stores."""
    pending: deque[tuple[LineBlock, Future[NDArray[Any]]]] = deque()
    with ThreadPoolExecutor(1, "csv-parse") as pool:
        for block in blocks:
            pending.append((block, pool.submit(_values, block, layout)))
            if len(pending) > BLOCKS_AHEAD:
                oldest, values = pending.popleft()
                yield oldest, values.result()
        for oldest, values in pending:
            yield oldest, values.result()


def _values(block: LineBlock, layout: CsvLayout) -> NDArray[Any]:
    values = parse_fast(block.text, layout.columns)
    return values if values is not None else parse_carefully(block, layout.columns, layout.naming)


def _labels(
    values: NDArray[Any], block: LineBlock, layout: CsvLayout, options: ImportOptions
) -> NDArray[np.int64]:
    """(rows,) integers of the label columns; names the first row that has none."""
    if len(layout.label_columns) > 1:
        part = values[:, list(layout.label_columns)]
        wrong = ~(((part == 0) | (part == 1)).all(axis=1) & (part.sum(axis=1) == 1))
        if wrong.any():
            line = line_of_row(block, int(wrong.argmax()))
            message = f"line {line}: the one-hot columns must hold a single 1 among zeros"
            column = layout.naming.column(layout.label_columns[0])
            raise DataError(layout.naming.file, message, row=line, column=column)
        return np.asarray(part.argmax(axis=1), dtype=np.int64)
    labels = values[:, layout.label_columns[0]]
    if labels.dtype.kind == "f":
        broken = (labels != np.floor(labels)) | (np.abs(labels) > MAX_LABEL)
        _refuse(labels, broken, "is not an integer", block, layout)
    if options.labels != "map" and options.label_values is None:
        hint = "is negative; labels must be 0..K-1, or state `labels: map` to number them in ascending order"
        _refuse(labels, labels < 0, hint, block, layout)
    return labels.astype(np.int64)


def _refuse(
    labels: NDArray[Any], wrong: NDArray[np.bool_], reason: str, block: LineBlock, layout: CsvLayout
) -> None:
    if not wrong.any():
        return
    row = int(wrong.argmax())
    line, column = line_of_row(block, row), layout.naming.column(layout.label_columns[0])
    value = f"{labels[row]:g}"
    message = f"line {line}, column {column}: the label {value} {reason}"
    raise DataError(layout.naming.file, message, row=line, column=column, value=value)
