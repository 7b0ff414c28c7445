"""crosstrain scale: the same job at several numbers of ranks, what that gains, and how far plain scripts get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosstrain.results import Results, RunRecord, summary
from crosstrain.scaling import BareFigures, Interval, ScaleRow, measure, scale_csv, scale_page
from crosstrain.spec import EngineEntry, ParallelSpec, parse_entry
from crosstrain.spec.job import MAX_REPEATS

from . import scaling_bare, verdicts
from .execution import execute
from .exits import USAGE, CommandError
from .jobfile import JobFile, read_job
from .options import Connection
from .output import Output

REFERENCE = "reference"
_HEADER = ("engine", "ranks", "samples/s", "95 % interval", "speed-up", "95 % interval", "efficiency", "waiting",
           "verdict")  # fmt: skip
_BARE_HEADER = ("engine", "ranks", "bare script", "bare samples/s", "service/bare", "95 % interval")


def scale(
    connection: Connection,
    path: Path,
    folder: Path | None,
    job_id: str,
    ranks: str,
    engines: list[str],
    repeats: int,
    backend: str,
    threads: int,
    bare: bool = False,
) -> int:
    """Runs a job with every engine at every number of data ranks; returns the verdict's exit code.

    With ``bare``, the frameworks' own launchers train the same by plain scripts, in turn with the services.
    """
    job = scaled(read_job(path), rank_counts(ranks), engines, repeats, backend, threads)
    if bare:
        return scaling_bare.execute(connection, job, folder, job_id, show_scaling)

    def show(output: Output, results: Results, left_out: dict[str, str]) -> int:
        return show_scaling(output, results, results.record.training_runs(), {}, "")

    return execute(connection, job, folder, job_id, show=show)


def rank_counts(text: str) -> list[int]:
    """The numbers in "1,2,4", in increasing order; raises CommandError."""
    try:
        counts = sorted({int(part) for part in text.split(",")})
        if counts[0] < 1:
            raise ValueError
    except ValueError:
        raise CommandError(f"--ranks {text!r}: must be numbers from 1 on, as in 1,2,4", USAGE) from None
    if len(counts) < 2:
        raise CommandError(f"--ranks {text!r}: name two numbers at least, the smallest is compared with", USAGE)
    return counts


def scaled(
    job: JobFile, counts: list[int], engines: list[str], repeats: int, backend: str, threads: int
) -> JobFile:
    """The job with one variant per engine and number of data ranks, judged, and ``repeats`` runs of each."""
    spec = job.spec
    if spec.task != "train":
        raise CommandError(f"the task of the job is {spec.task}; only training can be scaled", USAGE)
    if not 1 <= repeats <= MAX_REPEATS:
        raise CommandError(f"--repeats {repeats}: must be 1 to {MAX_REPEATS}", USAGE)
    chosen: dict[str, EngineEntry] = {}
    for engine in engines or spec.engines:
        try:
            entry = parse_entry(engine)
        except ValueError as error:
            raise CommandError(f"--engine: {error}", USAGE) from None
        if engines or entry.base.partition("@")[0] != REFERENCE:
            chosen.setdefault(entry.base, entry)
    if not chosen:
        raise CommandError("the job has no engine besides the reference; name one with --engine", USAGE)
    variants = []
    for base, entry in chosen.items():
        for count in counts:
            settings: dict[str, Any] = {**entry.settings, "data": count}
            if backend:
                settings["backend"] = backend
            variants.append(str(EngineEntry(base, _ordered(settings))))
    changes: dict[str, Any] = {
        "engines": variants,
        "repeats": repeats,
        "runs_of": {},
        "devices": spec.devices.model_copy(update={"count": 1}),
        "cross_evaluate": False,
        "verdict": spec.verdict.model_copy(update={"judge": True}),
    }
    execution: dict[str, Any] = {}
    if isinstance(spec.execution.compiler, dict):
        names = {*chosen}
        kept = {parse_entry(name).base: value for name, value in spec.execution.compiler.items()}
        execution["compiler"] = {name: value for name, value in kept.items() if name in names}
    if threads:
        execution["threads"] = threads
    changes["execution"] = spec.execution.model_copy(update=execution)
    return job.with_spec(**changes)


def _ordered(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ParallelSpec.model_fields if name in settings}


def show_scaling(
    output: Output,
    results: Results,
    runs: Sequence[RunRecord],
    bare: Mapping[str, BareFigures],
    remark: str,
) -> int:
    """Prints the table, writes scale.csv and scale.html beside the results, and returns the exit code.

    Args:
        results: of the job that was judged.
        runs: training runs of all repeats.
        bare: what bare scripts reached, by label; ``remark`` says why there is nothing of that.
    """
    code = verdicts.exit_code(results)
    rows = measure(runs, results.verdict, bare)
    told = summary(results.record)
    note = told["training"]["text"] if told["training"] is not None else ""
    (results.folder / "scale.csv").write_text(scale_csv(rows), encoding="utf-8", newline="")
    page = scale_page(rows, results.record.job.name, note)
    (results.folder / "scale.html").write_text(page, encoding="utf-8", newline="\n")
    output.document(
        {
            **told,
            "scaling": [_json(row) for row in rows],
            "verdict_document": results.verdict,
            "bare_remark": remark,
            "results": str(results.folder),
            "exit_code": code,
        }
    )
    output.text()
    output.table("", _HEADER, [_row(row) for row in rows], "lrrrrrrrl")
    output.text(f"In every engine {note}.")
    _show_bare(output, rows, remark)
    for run in told["runs"]:
        if run["ranks"] is not None and run["ranks"]["hint"] and not run["repeat"]:
            share = 100.0 * run["ranks"]["sync_share"]
            output.text(
                f"{run['engine']} on {run['ranks']['ranks']} ranks: {share:.0f} % of the time waiting for other ranks "
                f"({run['ranks']['hint']})"
            )
    for run in runs:
        if run.error is not None:
            output.text(f"{run.label} #{run.repeat}: {run.error.message}")
    output.text()
    output.text(best(rows))
    verdicts.show_verdict(output, results)
    output.text()
    output.text(f"Results are in {results.folder}: scale.html (open it in a browser), scale.csv, report.html and more.")
    return code


def _show_bare(output: Output, rows: list[ScaleRow], remark: str) -> None:
    """The table of bare scripts and why figures are missing; nothing where none were asked for."""
    told = [row for row in rows if row.launcher or row.bare_notes]
    if told:
        output.text()
        output.table("", _BARE_HEADER, [_bare_row(row) for row in told], "lrlrrr")
        output.text("A bare script is the same training without Crosstrain, started by the framework's own launcher.")
    for row in told:
        for text in row.bare_notes:
            output.text(f"bare script of {row.label}{f' ({row.launcher})' if row.launcher else ''}: {text}")
    if remark:
        output.text(f"No bare figures: {remark}.")
    if told or remark:
        output.text()


def best(rows: list[ScaleRow]) -> str:
    """Which engine and number of ranks is fastest; none is named while any of them may compute something else."""
    unlike = [row.label for row in rows if not row.same]
    if unlike:
        return f"Nothing is ranked: {', '.join(unlike)} not shown to compute what fewest ranks do."
    known = [row for row in rows if row.throughput is not None]
    if not known:
        return "Nothing was measured."
    fastest = max(known, key=lambda row: row.throughput.mean if row.throughput else 0.0)
    assert fastest.throughput is not None
    ranks = f"{fastest.ranks} rank{'s' if fastest.ranks > 1 else ''}"
    told = f"Fastest: {fastest.engine}@{fastest.version} on {ranks}, {fastest.throughput.mean:.0f} samples/s"
    gain = fastest.speed_up
    if not fastest.base and (gain is None or gain.low is None or gain.low <= 1):
        return f"{told}; that it gains anything is not shown by so few repeats."
    return f"{told}."


def _row(row: ScaleRow) -> list[Any]:
    return [
        f"{row.engine}@{row.version}",
        row.ranks,
        None if row.throughput is None else f"{row.throughput.mean:.0f}",
        _ends(row.throughput, 0),
        None if row.speed_up is None else f"{row.speed_up.mean:.2f}",
        "" if row.base else _ends(row.speed_up, 2),
        None if row.efficiency is None else f"{100 * row.efficiency:.0f} %",
        None if row.sync_share is None else f"{100 * row.sync_share:.0f} %",
        "" if row.base else row.verdict or "none",
    ]


def _bare_row(row: ScaleRow) -> list[Any]:
    return [
        f"{row.engine}@{row.version}",
        row.ranks,
        row.launcher or "none",
        None if row.bare is None else f"{row.bare.mean:.0f}",
        None if row.ratio is None else f"{row.ratio.mean:.3f}",
        _ends(row.ratio, 3),
    ]


def _ends(value: Interval | None, digits: int) -> str:
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{value.low:.{digits}f} - {value.high:.{digits}f}"


def _json(row: ScaleRow) -> dict[str, Any]:
    return {name: vars(value) if isinstance(value, Interval) else value for name, value in vars(row).items()}
