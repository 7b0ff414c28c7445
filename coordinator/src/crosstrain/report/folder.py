"""Reads a results folder for the report; what is missing or broken leaves a gap and is named."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crosstrain.compare.verdict import UnreadableVerdict, read_verdict
from crosstrain.results.files import SUMMARY
from crosstrain.results.records import STEP_COLUMNS
from crosstrain_service.errors import CrosstrainError

from .data import Columns, CrossRow, Epoch, ReportData, report_data, run_data

VERDICT = "verdict.json"
T = TypeVar("T")
#: How :mod:`crosstrain.results.files` marks a text that a spreadsheet would take for a formula.
_ESCAPED = re.compile(r"'[=+\-@\t\r\n]")


def load_folder(folder: Path) -> ReportData:
    """What a results folder holds of a job.

    Raises:
        CrosstrainError: ``INVALID_FIELD``; the folder is no results folder.
    """
    problems: list[str] = []

    def read(name: str, reader: Callable[[Path], T], empty: T) -> T:
        path = folder / name
        if not path.is_file():
            return empty
        try:
            return reader(path)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            problems.append(f"{name} could not be read: {error}")
            return empty

    told: dict[str, Any] = read(SUMMARY, _mapping, {})
    if not isinstance(told.get("runs"), list) and not (folder / VERDICT).is_file():
        raise CrosstrainError("INVALID_FIELD", f"{folder.name} is no results folder of a job", "results")
    steps: dict[str, Columns] = read("steps.parquet", _steps, {})
    epochs: dict[str, tuple[Epoch, ...]] = read("epochs.csv", _epochs, {})
    facts: dict[str, dict[str, str]] = read("fingerprints.json", _facts, {})
    cross: tuple[CrossRow, ...] = read("cross_evaluation.csv", _cross, ())
    document = read("job.yaml", lambda path: path.read_text(encoding="utf-8"), "")
    runs = []
    for values in told.get("runs") or ():
        if not isinstance(values, Mapping):
            problems.append(f"{SUMMARY} holds a run that is no object")
            continue
        name = str(values.get("run_id") or "")
        runs.append(run_data(values, steps.get(name, {}), epochs.get(name, ()), facts.get(name, {})))
    name = str(told.get("job") or folder.name)
    return report_data(told, name, tuple(runs), cross, document, tuple(problems))


def load_verdict(folder: Path) -> Mapping[str, Any] | None:
    """The verdict in a results folder; None if there is none.

    Raises:
        CrosstrainError: ``INVALID_FIELD``; the file holds no verdict.
    """
    path = folder / VERDICT
    if not path.is_file():
        return None
    try:
        return read_verdict(path)
    except UnreadableVerdict as error:
        raise CrosstrainError("INVALID_FIELD", str(error), VERDICT) from None


def _mapping(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return value


def _steps(path: Path) -> dict[str, Columns]:
    table = pq.read_table(path).unify_dictionaries()
    column = table.column("run_id").combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = column.indices.to_numpy(zero_copy_only=False)
    values = {
        name: table.column(name).to_numpy().astype(kind, copy=False)
        for name, kind in STEP_COLUMNS.items()
        if name in table.column_names
    }
    found: dict[str, Columns] = {}
    for code, name in enumerate(column.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        rows = rows[np.argsort(values["step"][rows], kind="stable")]
        found[str(name)] = {key: items[rows] for key, items in values.items()}
    return found


def _epochs(path: Path) -> dict[str, tuple[Epoch, ...]]:
    found: dict[str, list[Epoch]] = defaultdict(list)
    for row in _rows(path):
        found[row["run_id"]].append(
            Epoch(
                int(row["epoch"]),
                _optional(row["train_loss"]),
                _optional(row["validation_loss"]),
                _optional(row["validation_accuracy_pct"]),
                _optional(row["test_loss"]),
                _optional(row["test_accuracy_pct"]),
            )
        )
    return {name: tuple(items) for name, items in found.items()}


def _cross(path: Path) -> tuple[CrossRow, ...]:
    return tuple(
        CrossRow(
            row["weights_of"],
            row["evaluated_in"],
            _optional(row["accuracy_pct"]),
            _optional(row["loss"]),
            int(row["images"]),
            int(row["images_differing"]),
            int(row["images_differing_within_rounding"]),
        )
        for row in _rows(path)
    )


def _facts(path: Path) -> dict[str, dict[str, str]]:
    return {
        run: {str(name): str(value) for name, value in facts.items()}
        for run, facts in _mapping(path).items()
        if isinstance(facts, dict)
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            {
                name: text[1:] if _ESCAPED.match(text) else text
                for name, text in row.items()
                if text is not None
            }
            for row in csv.DictReader(stream)
        ]


def _optional(text: str) -> float | None:
    return float(text) if text else None
