"""Rows of the verdict document: checks, causes and what the free runs showed, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from crosstrain.compare.freerun.accuracy import Tost
from crosstrain.compare.freerun.envelope import Envelope
from crosstrain.compare.freerun.flips import Flip
from crosstrain.compare.freerun.rank import RankTest
from crosstrain.compare.freerun.repeats import Repeats
from crosstrain.compare.verdict.evidence import CauseEvidence, CheckEvidence, EngineEvidence

Row = dict[str, Any]

_DIRECTIONS = {
    "forward": "forward",
    "backward": "backward",
    "gradient": "gradient",
    "update": "update",
    "decay": "update",
    "state": "state",
    "initial state": "state",
    "continuity": "state",
    "statistics": "evaluation",
    "evaluation": "evaluation",
    "loss": "loss",
    "loss gradient": "loss",
}
#: Points of the envelope that the document keeps.
MOST_POINTS = 2000


def number(value: float | None) -> float | str | None:
    """A JSON value: the number, or "inf", "-inf" or "nan", which JSON's numbers cannot say."""
    if value is None:
        return None
    value = float(value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def direction(kind: str) -> str:
    """Which part of a step a kind of check belongs to."""
    return _DIRECTIONS.get(kind.split(",")[0], "input")


def check_row(check: CheckEvidence) -> Row:
    """A row of the table of layers."""
    kind = direction(check.kind)
    layer = check.layer or check.subject
    if not check.layer and kind in ("gradient", "update", "state"):
        layer = check.subject.split(".", 1)[0]
    return {
        "case": check.case,
        "layer": layer,
        "direction": kind,
        "kind": check.kind,
        "subject": check.subject,
        "step": check.step,
        "ratio": number(check.ratio),
        "holds": check.holds,
        "coordinates": None if check.coordinates is None else list(check.coordinates),
        "found": number(check.found),
        "expected": number(check.expected),
        "bound": number(check.bound),
        "count": check.count,
        "size": check.size,
        "note": check.note,
    }


def layer_rows(checks: Iterable[CheckEvidence]) -> list[Row]:
    """One row per case, kind and subject, of its worst step; failures first, else in the order given."""
    worst: dict[tuple[str, str, str], CheckEvidence] = {}
    for check in checks:
        key = (check.case, check.kind, check.subject)
        if key not in worst or _size(check) > _size(worst[key]):
            worst[key] = check
    ordered = sorted(worst.values(), key=lambda check: check.holds)
    return [check_row(check) for check in ordered]


def worst_rows(checks: Iterable[CheckEvidence]) -> list[Row]:
    """The worst check of every kind."""
    worst: dict[str, CheckEvidence] = {}
    for check in checks:
        if check.kind not in worst or _size(check) > _size(worst[check.kind]):
            worst[check.kind] = check
    return [
        {"kind": kind, "subject": check.subject, "case": check.case, "step": check.step, "ratio": number(check.ratio)}
        for kind, check in worst.items()
    ]


def _size(check: CheckEvidence) -> float:
    return math.inf if math.isnan(check.ratio) else check.ratio


def certificate_row(engine: EngineEvidence) -> Row:
    """The certificate of an engine over all its cases."""
    checks, failed = engine.checks, engine.failed
    return {
        "possible": engine.possible,
        "reason": engine.reason,
        "cases": [certificate.case for certificate in engine.certificates],
        "steps": sorted({step for certificate in engine.certificates for step in certificate.steps}),
        "probe_batch_size": max((item.probe_batch_size for item in engine.certificates), default=0),
        "checks": len(checks),
        "failed": len(failed),
        "worst": worst_rows(checks),
        "layers": layer_rows(checks),
        "first_failure": check_row(failed[0]) if failed else None,
    }


def cause_row(cause: CauseEvidence) -> Row:
    """A cause."""
    worst = cause.worst
    return {
        "ids": list(cause.ids),
        "title": cause.title,
        "says": cause.says,
        "found_in": cause.found_in,
        "restore": cause.restore,
        "where": list(cause.where),
        "case": cause.case,
        "step": cause.step,
        "ratio": number(cause.ratio),
        "unknown": cause.unknown,
        "also": list(cause.also),
        "worst": None
        if worst is None
        else {
            "coordinates": list(worst.coordinates),
            "found": number(worst.found),
            "expected": number(worst.expected),
            "bound": number(worst.bound),
        },
    }


def flip_row(flip: Flip | None) -> Row | None:
    """The first flip of a free run."""
    if flip is None:
        return None
    return {
        "step": flip.step,
        "layer": flip.layer,
        "count": flip.count,
        "decisions": flip.decisions,
        "coordinates": list(flip.coordinates),
        "gap": number(flip.gap),
        "reference_gap": number(flip.reference_gap),
        "bound": number(flip.bound),
        "ratio": number(flip.ratio),
        "sentence": str(flip),
    }


def rank_row(rank: RankTest | None) -> Row | None:
    """A rank test, with what so few runs can show at all."""
    if rank is None:
        return None
    return {
        "statistic": number(rank.statistic),
        "p_value": rank.p_value,
        "runs": rank.runs,
        "smallest_p": rank.smallest_p,
        "conclusive": rank.conclusive,
    }


def repeats_row(found: Repeats | None) -> Row | None:
    """Repeats of an engine beside its difference from the reference."""
    if found is None:
        return None
    return {
        "runs": found.runs,
        "bitwise_equal": found.bitwise_equal,
        "max_difference": number(found.max_difference),
        "first_different_step": found.first_different_step,
        "own_variance": number(found.own_variance),
        "cross_variance": number(found.cross_variance),
        "non_deterministic": found.non_deterministic,
    }


def accuracy_row(test_accuracy: float | None, tost: Tost | None) -> Row:
    """Final accuracy and its equivalence test."""
    return {
        "test_accuracy": number(test_accuracy),
        "tost": None
        if tost is None
        else {
            "margin": tost.margin,
            "p_value": tost.p_value,
            "equivalent": tost.equivalent,
            "different": tost.different,
            "seeds": tost.seeds,
            "needed_seeds": tost.needed_seeds,
            "mean_difference": tost.mean_difference,
        },
    }


def envelope_row(label: str, found: Envelope | None) -> Row | None:
    """The envelope in at most 2,000 points: of neighbouring steps the lowest low and the highest high."""
    if found is None or not len(found.steps):
        return None
    count = len(found.steps)
    starts = np.unique(np.linspace(0, count, min(count, MOST_POINTS), endpoint=False).astype(np.int64))
    return {
        "runs": found.runs,
        "engine": label,
        "steps": [int(step) for step in found.steps[starts]],
        "low": [number(value) for value in np.minimum.reduceat(found.low, starts)],
        "high": [number(value) for value in np.maximum.reduceat(found.high, starts)],
    }
