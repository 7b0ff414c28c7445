"""results.csv, the files per engine, epochs.csv, steps.parquet and comparison.csv."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crosstrain_service.model import Convolution, Dense, Model

from .comparison import Difference
from .files import csv_text
from .ranks import RANK_COLUMNS, Spreading
from .records import STEP_COLUMNS, RunRecord

RESULT_COLUMNS = (
    "timestamp",
    "framework",
    "model",
    "device",
    "batch_size",
    "train_time_sec",
    "accuracy_pct",
    "memory_peak_mb",
    "gpu_util_pct",
)
EPOCH_COLUMNS = (
    "engine",
    "version",
    "variant",
    "repeat",
    "epoch",
    "last_step",
    "train_loss",
    "validation_loss",
    "validation_accuracy_pct",
    "test_loss",
    "test_accuracy_pct",
    "train_seconds",
    "evaluation_seconds",
    "run_id",
)
RANKS_COLUMNS = (
    "engine",
    "version",
    "variant",
    "repeat",
    "rank",
    "ranks",
    "backend",
    "steps",
    "step_seconds",
    "data_seconds",
    "compute_seconds",
    "sync_seconds",
    "samples_per_step",
    "run_id",
)
COMPARISON_COLUMNS = (
    "engine",
    "version",
    "variant",
    "repeat",
    "steps_compared",
    "max_abs_difference_steps_0_9",
    "max_abs_difference",
    "step_of_max",
    "first_step_above_1e_6",
)


def write_results(folder: Path, runs: Sequence[RunRecord], model: Model, batch_size: int) -> None:
    """results.csv and one file of the same columns per engine; one row per run that ended well."""
    rows = [(run, _result_row(run, model, batch_size)) for run in runs if run.succeeded and run.result]
    _write(folder / "results.csv", csv_text(RESULT_COLUMNS, [row for _, row in rows]))
    per_file: dict[str, list[Sequence[Any]]] = defaultdict(list)
    versions: dict[str, set[str]] = defaultdict(set)
    for run, _ in rows:
        versions[run.engine].add(run.version)
    for run, row in rows:
        name = file_name(model, run.engine, run.version if len(versions[run.engine]) > 1 else "", run.variant)
        per_file[name].append(row)
    for name, lines in per_file.items():
        _write(folder / name, csv_text(RESULT_COLUMNS, lines))


def file_name(model: Model, engine: str, version: str = "", variant: str = "") -> str:
    """For example ``cnn2d_3layer_fullconnected_3layer_keras_tensorflow.csv``: dimensions, then the number of
    convolutions and of dense layers, then the engine, with its version where a job has several, and with
    the job's settings for this engine (``torch_data_2``)."""
    dims = len(model.input_shape) - 1
    convolutions, dense = len(model.layers_of(Convolution)), len(model.layers_of(Dense))
    tail = re.sub(r"[^A-Za-z0-9.]+", "_", "_".join(part for part in (engine, version, variant) if part))
    return f"cnn{dims}d_{convolutions}layer_fullconnected_{dense}layer_{tail}.csv"


def _result_row(run: RunRecord, model: Model, batch_size: int) -> Sequence[Any]:
    result = run.result
    assert result is not None
    accuracy = round(100.0 * result.test_accuracy, 4) if result.HasField("test_accuracy") else None
    has_gpu = result.HasField("gpu_utilization_median_percent")
    return (
        timestamp(run),
        run.label,
        model.name,
        device(run),
        batch_size,
        round(result.train_seconds, 4),
        accuracy,
        round(result.resources.memory_peak_bytes / 1e6, 1),
        round(result.gpu_utilization_median_percent, 1) if has_gpu else None,
    )


def timestamp(run: RunRecord) -> str:
    """When the run ended (else was accepted), ISO 8601 in UTC with milliseconds."""
    time = run.run.end_time if run.run.HasField("end_time") else run.run.create_time
    return moment(time.seconds, time.nanos)


def moment(seconds: int, nanos: int) -> str:
    """A time as ISO 8601 in UTC with milliseconds."""
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanos // 1_000_000:03d}Z"


def device(run: RunRecord) -> str:
    """For example ``cpu:0``."""
    kind = run.facts.get("device.kind", "")
    return f"{kind}:{run.facts.get('device.index', '0')}" if kind else ""


def write_epochs(folder: Path, runs: Sequence[RunRecord]) -> None:
    """epochs.csv: one row per epoch; accuracies in percent, epochs and repeats from 0."""
    rows = []
    for run in runs:
        for epoch in run.epochs:

            def optional(name: str, factor: float = 1.0, epoch: Any = epoch) -> float | None:
                return factor * getattr(epoch, name) if epoch.HasField(name) else None

            rows.append(
                (
                    run.engine,
                    run.version,
                    run.variant,
                    run.repeat,
                    epoch.epoch,
                    epoch.last_step,
                    epoch.train_loss,
                    optional("validation_loss"),
                    optional("validation_accuracy", 100.0),
                    optional("test_loss"),
                    optional("test_accuracy", 100.0),
                    epoch.train_seconds,
                    epoch.evaluation_seconds,
                    run.run_id,
                )
            )
    _write(folder / "epochs.csv", csv_text(EPOCH_COLUMNS, rows))


def write_steps(folder: Path, runs: Sequence[RunRecord]) -> None:
    """steps.parquet: one row per step of every run, with exactly one row per (run_id, step)."""
    schema = pa.schema(
        [
            ("engine", pa.dictionary(pa.int32(), pa.string())),
            ("version", pa.dictionary(pa.int32(), pa.string())),
            ("variant", pa.dictionary(pa.int32(), pa.string())),
            ("repeat", pa.int32()),
            *((name, pa.from_numpy_dtype(np.dtype(kind))) for name, kind in STEP_COLUMNS.items()),
            ("run_id", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    with pq.ParquetWriter(folder / "steps.parquet", schema, compression="zstd") as writer:
        for run in runs:
            columns = run.steps()
            count = len(columns["step"])
            if not count:
                continue
            constant = _constant(run)
            arrays = [
                pa.array(columns[field.name])
                if field.name in columns
                else pa.array(np.full(count, run.repeat, dtype=np.int32))
                if field.name == "repeat"
                else pa.DictionaryArray.from_arrays(
                    np.zeros(count, dtype=np.int32), pa.array([constant[field.name]])
                )
                for field in schema
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _constant(run: RunRecord) -> dict[str, str]:
    return {"engine": run.engine, "version": run.version, "variant": run.variant, "run_id": run.run_id}


def write_rank_steps(folder: Path, runs: Sequence[RunRecord]) -> None:
    """rank_steps.parquet: one row per step and rank of every run on several ranks; no file without one."""
    text = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            *((name, text) for name in ("engine", "version", "variant")),
            ("repeat", pa.int32()),
            ("rank", pa.int32()),
            ("step", pa.int64()),
            *((name, pa.from_numpy_dtype(np.dtype(kind))) for name, kind in RANK_COLUMNS.items()),
            ("run_id", text),
        ]
    )
    spread = [run for run in runs if run.rank_steps()]
    if not spread:
        return
    with pq.ParquetWriter(folder / "rank_steps.parquet", schema, compression="zstd") as writer:
        for run in spread:
            constant = _constant(run)
            for block in run.rank_steps():
                count = block.ranks * len(block.step)
                columns = {name: values.T.reshape(-1) for name, values in block.columns.items()}
                columns["step"] = np.repeat(block.step, block.ranks)
                columns["rank"] = np.tile(np.arange(block.ranks, dtype=np.int32), len(block.step))
                columns["repeat"] = np.full(count, run.repeat, dtype=np.int32)
                arrays = [
                    pa.array(columns[field.name])
                    if field.name in columns
                    else pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([constant[field.name]]))
                    for field in schema
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def write_ranks(folder: Path, runs: Sequence[RunRecord], spreadings: Mapping[str, Spreading]) -> None:
    """ranks.csv: one row per rank of every run on several ranks; no file without one."""
    rows = []
    for run in runs:
        found = spreadings.get(run.run_id)
        if found is None:
            continue
        for item in found.each:
            times = (item.step_seconds, item.data_seconds, item.compute_seconds, item.sync_seconds)
            rows.append((run.engine, run.version, run.variant, run.repeat, item.rank, found.ranks, found.backend,
                         item.steps, *times, item.samples, run.run_id))  # fmt: skip
    if rows:
        _write(folder / "ranks.csv", csv_text(RANKS_COLUMNS, rows))


def write_comparison(folder: Path, differences: Sequence[Difference]) -> None:
    """comparison.csv: how far every run's losses are from the reference engine's."""
    rows = [
        (
            item.engine,
            item.version,
            item.variant,
            item.repeat,
            item.steps,
            item.early,
            item.largest,
            item.step_of_largest,
            item.first_above,
        )
        for item in differences
    ]
    _write(folder / "comparison.csv", csv_text(COMPARISON_COLUMNS, rows))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
