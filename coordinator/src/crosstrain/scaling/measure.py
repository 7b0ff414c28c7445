"""Throughput, speed-up and efficiency of every engine by its number of data ranks.

Throughput of a run is its samples over the wall time of its steps, the first step left out (it holds what is only done
once). Of several repeats the geometric mean is told, with a 95 % interval from Student's t of the logarithms. The
speed-up pairs the runs of the same repeat: they were executed one after the other, so that a slow change of the machine
meets both. With K ranks against K0 of the base, efficiency = speed-up * K0 / K.

Where bare scripts ran as well, the ratio is the throughput through a service over theirs, paired by repeat alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from crosstrain.results.files import csv_text
from crosstrain.results.records import RunRecord

from .bare import samples_per_second
from .bare_runs import BareFigures

_CONFIDENCE = 0.95
#: Verdicts that say that the function is the same.
_SAME = ("IDENTICAL", "ROUNDING")
COLUMNS = (
    "engine",
    "version",
    "variant",
    "ranks",
    "data_ranks",
    "backend",
    "repeats",
    "samples_per_second",
    "samples_per_second_low",
    "samples_per_second_high",
    "speed_up",
    "speed_up_low",
    "speed_up_high",
    "efficiency",
    "sync_share",
    "verdict",
    "bare_samples_per_second",
    "ratio",
    "ratio_low",
    "ratio_high",
)


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % interval; they are None for a single value."""

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval | None:
        """Geometric mean of positive values; None without any."""
        logarithms = np.log([value for value in values if value > 0])
        if not logarithms.size:
            return None
        mean = float(logarithms.mean())
        if logarithms.size == 1:
            return cls(float(np.exp(mean)))
        error = float(logarithms.std(ddof=1)) / np.sqrt(logarithms.size)
        reach = float(stats.t.ppf((1 + _CONFIDENCE) / 2, logarithms.size - 1)) * error
        return cls(*(float(np.exp(value)) for value in (mean, mean - reach, mean + reach)))


@dataclass(frozen=True)
class ScaleRow:
    """An engine at one number of ranks.

    ``base`` marks the row that others of its engine are compared with (fewest ranks). ``verdict`` is that on this row
    and its base: N ranks against one. ``speed_up`` is None without a run of the base in the same repeat.

    ``launcher`` names the bare script and what started it, ``bare`` is its throughput, ``ratio`` the service's over it,
    and ``bare_speed_up`` its own against fewest ranks; they are None where none ran, and ``bare_notes`` say why.
    """

    engine: str
    version: str
    variant: str
    ranks: int
    data: int
    backend: str
    repeats: int
    base: bool
    throughput: Interval | None
    speed_up: Interval | None
    efficiency: float | None
    sync_share: float | None
    verdict: str
    sentence: str
    label: str
    launcher: str = ""
    bare: Interval | None = None
    ratio: Interval | None = None
    bare_speed_up: Interval | None = None
    bare_notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether it computes what its base does, as far as that was judged."""
        return self.base or self.verdict in _SAME


def throughput(run: RunRecord) -> float | None:
    """Samples per second of a run's steps after the first; None where nothing was measured."""
    steps = run.steps()
    return samples_per_second(steps["step_seconds"].tolist(), steps["samples"].tolist())


def measure(
    runs: Sequence[RunRecord], verdict: Mapping[str, Any] | None, bare: Mapping[str, BareFigures] | None = None
) -> list[ScaleRow]:
    """One row per engine and number of ranks, in order; runs that failed count for nothing.

    Args:
        runs: training runs of a job.
        verdict: its verdict document; None if it has none.
        bare: what bare scripts reached, by the label of the runs.
    """
    figures = bare or {}
    groups: dict[tuple[str, str], dict[str, list[RunRecord]]] = {}
    for run in runs:
        groups.setdefault((run.engine, run.version), {}).setdefault(run.label, []).append(run)
    rows: list[ScaleRow] = []
    for variants in groups.values():
        ordered = sorted(variants.values(), key=lambda of: of[0].ranks)
        base = _throughputs(ordered[0])
        for place, of in enumerate(ordered):
            row = _row(of, ordered[0][0], base, verdict, base_row=place == 0)
            rows.append(_with_bare(row, _throughputs(of), figures.get(row.label), figures.get(ordered[0][0].label)))
    return rows


def _throughputs(runs: Sequence[RunRecord]) -> dict[int, float]:
    found = {run.repeat: throughput(run) for run in runs if run.succeeded}
    return {repeat: value for repeat, value in found.items() if value is not None}


def _row(
    runs: Sequence[RunRecord],
    first: RunRecord,
    base: Mapping[int, float],
    verdict: Mapping[str, Any] | None,
    *,
    base_row: bool,
) -> ScaleRow:
    run = runs[0]
    own = _throughputs(runs)
    speed_up = _paired(own, base)
    shares = [share for share in map(_sync_share, runs) if share is not None]
    word, sentence = ("", "") if base_row else _verdict(verdict, first.label, run.label)
    return ScaleRow(
        engine=run.engine,
        version=run.version,
        variant=run.variant,
        ranks=run.ranks,
        data=max(1, run.parallel.data) if run.parallel is not None else 1,
        backend=(run.parallel.backend or "native") if run.parallel is not None and run.ranks > 1 else "",
        repeats=len(own),
        base=base_row,
        throughput=Interval.of(list(own.values())),
        speed_up=speed_up,
        efficiency=None if speed_up is None else speed_up.mean * first.ranks / run.ranks,
        sync_share=float(np.mean(shares)) if shares else None,
        verdict=word,
        sentence=sentence,
        label=run.label,
    )


def _with_bare(
    row: ScaleRow, own: Mapping[int, float], figures: BareFigures | None, base: BareFigures | None
) -> ScaleRow:
    """The row with what its bare script reached; ``base`` is that of the row with the fewest ranks."""
    if figures is None:
        return row
    values = figures.throughputs
    first = base.throughputs if base is not None else {}
    return replace(
        row,
        launcher=figures.launcher,
        bare=Interval.of(list(values.values())),
        ratio=_paired(own, values),
        bare_speed_up=_paired(values, first),
        bare_notes=tuple(figures.notes),
    )


def _paired(values: Mapping[int, float], by: Mapping[int, float]) -> Interval | None:
    """Quotients of what was measured in the same repeats."""
    return Interval.of([value / by[repeat] for repeat, value in values.items() if repeat in by])


def _sync_share(run: RunRecord) -> float | None:
    """Share of all steps that the ranks spent waiting for one another."""
    blocks = run.rank_steps()
    whole = sum(float(block.columns["step_seconds"].sum()) for block in blocks)
    return sum(float(block.columns["sync_seconds"].sum()) for block in blocks) / whole if whole > 0 else None


def _verdict(verdict: Mapping[str, Any] | None, a: str, b: str) -> tuple[str, str]:
    for pair in verdict["pairs"] if verdict is not None else ():
        if {pair["a"], pair["b"]} == {a, b}:
            return str(pair["verdict"]), str(pair["sentence"])
    return "", ""


def scale_csv(rows: Sequence[ScaleRow]) -> str:
    """The rows as CSV with :data:`COLUMNS`."""

    def ends(value: Interval | None) -> tuple[float | None, float | None, float | None]:
        return (None, None, None) if value is None else (value.mean, value.low, value.high)

    lines = [
        (row.engine, row.version, row.variant, row.ranks, row.data, row.backend, row.repeats, *ends(row.throughput),
         *ends(row.speed_up), row.efficiency, row.sync_share, row.verdict,
         None if row.bare is None else row.bare.mean, *ends(row.ratio))
        for row in rows
    ]  # fmt: skip
    return csv_text(COLUMNS, lines)
