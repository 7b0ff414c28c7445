"""Progress of a job on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from crosstrain.results.names import error_reason, run_state, verdict_name
from crosstrain.results.records import JobRecord, RunRecord
from crosstrain.results.runlog import run_part, warning_text
from crosstrain_protos.v1 import coordinator_pb2, run_pb2

from .output import console, printable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_LINE_SECONDS = 10.0
_DRAW_SECONDS = 0.25
_ENDED = (run_pb2.RUN_STATE_SUCCEEDED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED)


class Progress(Protocol):
    """Shows a job while it is watched."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, record: JobRecord, event: coordinator_pb2.JobEvent) -> None:
        """Takes the newest event, which the record has seen already."""


def progress(total_steps: int, quiet: bool = False) -> Progress:
    """What fits stderr. ``total_steps`` of a training run; 0 where it is not known."""
    if quiet:
        return Silent()
    return LiveTable(total_steps) if sys.stderr.isatty() else PlainLines(total_steps)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, record: JobRecord, event: coordinator_pb2.JobEvent) -> None:
        """Ignores the event."""


class PlainLines(Silent):
    """One line per change of state, per epoch and per warning, and one now and then between."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._shown: dict[str, tuple[int, float]] = {}

    def __enter__(self) -> PlainLines:
        return self

    def update(self, record: JobRecord, event: coordinator_pb2.JobEvent) -> None:
        """Prints a line if the event is worth one."""
        kind = event.WhichOneof("event")
        if kind == "run_changed":
            changed = record.runs[event.run_changed.run.run_id]
            seen = event.run_changed.notice or ("checked" if changed.checked else "")
            if seen:
                print(printable(f"{title(changed)}: {seen}"), file=sys.stderr, flush=True)
        elif kind == "verdict_reached":
            print(f"verdict: {verdict_name(event.verdict_reached.verdict) or 'none'}", file=sys.stderr, flush=True)
        if kind != "run_event":
            return
        inner = event.run_event
        run = record.runs[inner.run_id]
        state, shown = self._shown.get(run.run_id, (-1, 0.0))
        now = time.monotonic()
        happened = inner.WhichOneof("event")
        warning = warning_text(inner, run)
        if warning:
            print(printable(f"{title(run)}: {warning}"), file=sys.stderr, flush=True)
        epoch = happened == "epoch_ended"
        if run.state != state or epoch or (happened == "steps" and now - shown > _LINE_SECONDS):
            self._shown[run.run_id] = (run.state, now)
            print(printable(f"{title(run)}: {describe(run, self._total)}"), file=sys.stderr, flush=True)


class LiveTable(Silent):
    """A table that is drawn again a few times a second; warnings stay above it."""

    def __init__(self, total_steps: int) -> None:
        from rich.live import Live

        self._total = total_steps
        self._live: Live = Live(console=console(stderr=True), auto_refresh=False, transient=True)
        self._drawn = 0.0
        self._record: JobRecord | None = None

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._record is not None:
            self._live.update(self._table(self._record), refresh=True)
        self._live.stop()

    def update(self, record: JobRecord, event: coordinator_pb2.JobEvent) -> None:
        """Draws the table, unless it was drawn a moment ago."""
        self._record = record
        if event.WhichOneof("event") == "run_event":
            run = record.runs[event.run_event.run_id]
            self._print(run, warning_text(event.run_event, run))
        elif event.WhichOneof("event") == "run_changed":
            self._print(record.runs[event.run_changed.run.run_id], event.run_changed.notice)
        now = time.monotonic()
        if now - self._drawn >= _DRAW_SECONDS:
            self._drawn = now
            self._live.update(self._table(record), refresh=True)

    def _print(self, run: RunRecord, text: str) -> None:
        if text:
            self._live.console.print(printable(f"{title(run)}: {text}"), markup=False, highlight=False)

    def _table(self, record: JobRecord) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        stage = ""
        if not record.ended and all(run.state in _ENDED for run in record.runs.values()):
            stage = ", judging" if record.verdict is None else f", {verdict_name(record.verdict.verdict)}"
        table = Table(title=f"job {record.job.job_id}{stage}", title_justify="left", box=box.SIMPLE_HEAD)
        # At most 80 columns for the longest names.
        for name in ("run", "state", "steps", "loss", "samples/s", "left"):
            table.add_column(name, justify="left" if name in ("run", "state") else "right", no_wrap=True)
        for run in record.runs.values():
            table.add_row(*(Text(printable(cell)) for cell in cells(run, self._total)))
        return table


def title(run: RunRecord) -> str:
    """For example ``torch@2.13.0 #0``."""
    return f"{run.label} {run_part(run)}"


def cells(run: RunRecord, total: int) -> tuple[str, str, str, str, str, str]:
    """Name, state, steps, loss, samples per second and remaining time of a run."""
    if run.kind == run_pb2.RUN_KIND_PROBE:
        recorded = sum(event.WhichOneof("event") == "probe_recorded" for event in run.events)
        state = "checked" if run.checked else run_state(run.state)
        return title(run), state, f"{recorded} steps", "", "", ""
    if run.kind != run_pb2.RUN_KIND_TRAIN:
        return f"{run.label} eval", run_state(run.state), f"{len(run.evaluations)} done", "", "", ""
    done = run.last_step + 1
    steps = f"{done}/{total}" if total else str(done)
    loss = "" if run.last_loss is None else f"{run.last_loss:.4f}"
    speed = run.samples_per_second()
    left = remaining(run, total)
    return (
        title(run),
        run_state(run.state),
        steps,
        loss,
        "" if speed is None else f"{speed:.0f}",
        "" if left is None else duration(left),
    )


def describe(run: RunRecord, total: int) -> str:
    """State, steps, loss, speed and remaining time in one line."""
    _, state, steps, loss, speed, left = cells(run, total)
    if run.state == run_pb2.RUN_STATE_FAILED and run.error is not None:
        return f"failed: {error_reason(run.error.reason)}: {run.error.message}"
    parts = [state]
    if run.kind == run_pb2.RUN_KIND_TRAIN and run.last_step >= 0:
        parts += [f"step {steps}", f"loss {loss}"]
        parts += [f"{speed} samples/s"] if speed else []
        if run.epochs and run.epochs[-1].HasField("test_accuracy"):
            parts.append(f"test accuracy {100.0 * run.epochs[-1].test_accuracy:.2f} %")
    share = run.sync_share()
    if share is not None and run.state == run_pb2.RUN_STATE_RUNNING:
        parts.append(f"{100.0 * share:.0f} % of the time waiting for other ranks")
    if left and run.state == run_pb2.RUN_STATE_RUNNING and run.last_step + 1 < total:
        parts.append(f"{left} left")
    return ", ".join(parts)


def remaining(run: RunRecord, total: int) -> float | None:
    """Seconds of steps that are left, by the speed of the newest steps; None where it is not known."""
    speed = run.seconds_per_step()
    if not total or speed is None or run.state in _ENDED:
        return None
    return max(0.0, (total - run.last_step - 1) * speed)


def duration(seconds: float) -> str:
    """For example ``1:05`` or ``2:10:00``."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
