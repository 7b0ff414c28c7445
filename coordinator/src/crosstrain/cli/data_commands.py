"""``crosstrain data``: check, import, and what every engine sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crosstrain.data import DataCache, DatasetInfo, ImportOptions, import_dataset, sample_digests

from . import connect
from . import consistency as probing
from .exits import COULD_NOT_RUN, OK, USAGE, CommandError
from .jobfile import check_plan, import_data, read_job
from .options import Connection
from .output import Output

_HEADER = (
    "data",
    "samples",
    "shape",
    "classes",
    "type",
    "values",
    "divided by",
    "duplicates",
    "pixels digest",
)


def check(output: Output, path: Path) -> int:
    """Imports a job's data, prints what it holds and what was found."""
    job = read_job(path)
    data = import_data(job, output)
    steps = check_plan(job, data)
    sets = {name: info for name, info in (("train", data.train), ("test", data.test)) if info is not None}
    output.document(
        {
            "datasets": {name: info_json(info) for name, info in sets.items()},
            "findings": [vars(finding) for finding in data.findings],
            "steps": steps,
        }
    )
    output.table("", _HEADER, [_row(name, info) for name, info in sets.items()], "lrlrllrrl")
    output.text(f"{len(data.findings)} remarks; {steps} steps of training")
    return OK


def import_source(output: Output, source: Path, format: str, shape: str, labels: str) -> None:
    """Imports one source and prints what it holds."""
    try:
        sizes = tuple(int(part) for part in shape.split(",")) if shape else None
    except ValueError:
        raise CommandError(f"--shape {shape!r} is not like 1,28,28", USAGE) from None
    options = ImportOptions(format=format or None, shape=sizes, labels=labels)
    info = import_dataset(source, options, DataCache.default())
    output.document(info_json(info))
    output.table("", _HEADER, [_row(source.name, info)], "lrlrllrrl")
    for finding in info.warnings:
        output.text(f"{finding.severity}: {finding.message}")


def consistency(connection: Connection, path: Path, samples: int, addresses: list[str]) -> int:
    """Asks every engine of a job for the digests of its first samples; 3 unless all are as expected."""
    output = connection.output
    job = read_job(path)
    data = import_data(job, output)
    info = data.train or data.test
    assert info is not None
    with connect.connected_or_started(connection, job.spec) as (client, _):
        known = probing.service_addresses(connection.state_dir, addresses)
        found = probing.probe_engines(client, known, job.spec.engines, info, data.cache, samples)
    expected = sample_digests(info, samples, data.cache)
    digest = probing.summary_digest
    rows = [
        (item.engine, digest(item.handed)[:16], digest(item.computed)[:16], item.verdict(expected))
        for item in found
    ]
    same = all(item.identical(expected) for item in found)
    output.document(
        {
            "samples": len(expected),
            "expected": expected,
            "identical": same,
            "engines": [
                {
                    **vars(item),
                    "identical": item.identical(expected),
                    "first_difference": None if item.error else item.first_difference(expected),
                    "state": item.verdict(expected),
                }
                for item in found
            ],
        }
    )
    output.table(
        f"SHA-256 over the first {len(expected)} samples as float32; expected {digest(expected)[:16]}",
        ("engine", "handed over", "in the framework", "result"),
        rows,
    )
    output.text(
        "every framework computes from bit-identical samples"
        if same
        else "NOT the same samples in every framework"
    )
    return OK if same else COULD_NOT_RUN


def info_json(info: DatasetInfo) -> dict[str, Any]:
    """An imported data set as JSON values."""
    return info.to_json()


def _row(name: str, info: DatasetInfo) -> tuple[Any, ...]:
    return (
        name,
        info.samples,
        "x".join(map(str, info.input_shape)),
        info.classes,
        info.dtype,
        f"{info.minimum:g}..{info.maximum:g}",
        info.divisor,
        info.duplicates,
        info.pixels_digest[:16],
    )
