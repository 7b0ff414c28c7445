"""Which runs the report draws, under which labels, and which of them is the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .data import ReportData, RunData


@dataclass(frozen=True)
class Shown:
    """A run with the label it has everywhere in the report."""

    label: str
    run: RunData


def shown_runs(verdict: Mapping[str, Any], data: ReportData) -> list[Shown]:
    """The runs a verdict speaks of, the reference first; all first repeats if there is no verdict.

    Perturbed runs of the envelope and further repeats, which only serve statistics, are left out.
    """
    by_id = {run.run_id: run for run in data.runs if run.kind != "evaluate"}
    found: list[Shown] = []
    for engine in engines(verdict):
        run = by_id.get(str(engine.get("run_id") or "")) or by_id.get(str(engine.get("probe_run_id") or ""))
        if run is not None:
            found.append(Shown(str(engine.get("label") or run.label), run))
    named = bool(found)
    reference = reference_label(verdict)
    if not any(_is(reference, item) for item in found):
        first = next(
            (run for run in by_id.values() if run.trained and reference in (run.label, run.engine)), None
        )
        if first is not None and first.run_id not in {item.run.run_id for item in found}:
            found.append(Shown(first.label, first))
    if not named:
        taken = {item.run.run_id for item in found}
        labels = {item.label for item in found}
        for run in by_id.values():
            if run.kind == "train" and run.repeat == 0 and run.run_id not in taken:
                label = run.label if run.label not in labels else f"{run.label} ({run.run_id})"
                labels.add(label)
                found.append(Shown(label, run))
    return sorted(found, key=lambda item: not _is(reference, item))


def reference_of(verdict: Mapping[str, Any], shown: Sequence[Shown]) -> Shown | None:
    """The run that others are compared with: the verdict's reference, else the first that trained."""
    label = reference_label(verdict)
    trained = [item for item in shown if item.run.trained]
    return next((item for item in trained if _is(label, item)), trained[0] if trained else None)


def reference_label(verdict: Mapping[str, Any]) -> str:
    """Label of the verdict's reference, or its ``engine@version``; ``reference`` if it names none."""
    told = verdict.get("reference")
    if not isinstance(told, Mapping) or not told.get("engine"):
        return "reference"
    if told.get("label"):
        return str(told["label"])
    return f"{told['engine']}@{told['version']}" if told.get("version") else str(told["engine"])


def engines(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Entries of the verdict's engines."""
    told = verdict.get("engines")
    return [item for item in told if isinstance(item, Mapping)] if isinstance(told, list) else []


def same_losses(shown: Sequence[Shown]) -> list[list[str]]:
    """Groups of at least two labels whose losses are bitwise equal in every step."""
    groups: dict[tuple[bytes, bytes], list[str]] = {}
    for item in shown:
        if item.run.trained:
            steps = item.run.steps
            key = (np.asarray(steps["step"]).tobytes(), np.asarray(steps["loss"]).tobytes())
            groups.setdefault(key, []).append(item.label)
    return [labels for labels in groups.values() if len(labels) > 1]


def _is(label: str, item: Shown) -> bool:
    return label in (item.label, item.run.label, item.run.engine)
