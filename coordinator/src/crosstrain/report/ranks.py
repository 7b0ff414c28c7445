"""The part of the page about runs on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .data import RunData, number
from .sections import Found, listed, mapped

_TOLD = ("ranks", "data", "backend", "batch_size", "share", "lost", "hint")


def rank_sections(runs: Sequence[RunData]) -> list[Found]:
    """Training runs on several ranks, each with one row per rank; times in milliseconds, sizes in megabytes."""
    found = []
    for run in runs:
        told = mapped(run.ranks)
        if run.kind != "train" or not told:
            continue
        parts = ("compute", "sync", "data", "step")
        rows = []
        for item in listed(told.get("each")):
            times = {part: _scaled(item.get(f"{part}_seconds"), 1e3) for part in parts}
            rest = (times["step"] or 0.0) - sum(times[part] or 0.0 for part in parts[:3])
            rows.append({"rank": item.get("rank"), "samples": number(item.get("samples")), **times, "rest": rest})
        found.append(
            {
                "label": run.label if not run.repeat else f"{run.label} #{run.repeat}",
                "rows": rows,
                "split": " x ".join(
                    f"{name} {told.get(name)}" for name in ("data", "tensor", "pipeline") if told.get(name) != 1
                ),
                "reduced": _scaled(told.get("reduced_bytes"), 1e-6),
                "parameters": _scaled(told.get("parameter_bytes"), 1e-6),
                "ring": _scaled(told.get("ring_bytes"), 1e-6),
                "ratio": _ratio(told.get("reduced_bytes"), told.get("parameter_bytes")),
                **{name: told.get(name) for name in _TOLD},
                **{name: number(told.get(name)) for name in ("imbalance", "sync_share")},
            }
        )
    return found


def _scaled(value: Any, factor: float) -> float | None:
    told = number(value)
    return None if told is None else told * factor


def _ratio(value: Any, base: Any) -> float | None:
    above, below = number(value), number(base)
    return above / below if above is not None and below else None
