"""One comparison of a recorded tensor with a bounded value, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosstrain.compare.certificate.platform_streams import Data
from crosstrain.compare.numerics.bounds import Arrays, Bounded
from crosstrain_service.model import Model
from crosstrain_service.training import Training


@dataclass(frozen=True)
class Check:
    """One comparison. ``ratio`` is the largest error over its bound: at most 1 holds, 0 is bitwise equal or
    exact.
    """

    kind: str
    subject: str
    step: int
    ratio: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the engine agrees within the bound."""
        return self.ratio <= 1.0

    def __str__(self) -> str:
        return f"step {self.step}, {self.kind} of {self.subject}: {self.ratio:.3g} of the bound{self.detail}"


@dataclass(frozen=True)
class Problem:
    """What was asked of the engine."""

    model: Model
    training: Training
    data: Data
    initial: Mapping[str, np.ndarray]
    dtype: Any
    test: Data | None = None


def compare(kind: str, subject: str, step: int, found: np.ndarray | None, wanted: Bounded, note: str = "") -> Check:
    """Compares element by element; a missing, misshapen or not finite value fails."""
    if found is None:
        return Check(kind, subject, step, np.inf, ": not recorded")
    value = np.asarray(wanted.value)
    if found.shape != value.shape:
        return Check(kind, subject, step, np.inf, f": shape {found.shape}, expected {value.shape}")
    error = np.abs(found.astype(value.dtype) - value)
    limit = np.broadcast_to(np.asarray(wanted.error, dtype=value.dtype), value.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / limit)
    ratio = np.where(np.isfinite(found) | (found == value), ratio, np.inf)
    if ratio.size == 0:
        return Check(kind, subject, step, 0.0)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    if worst <= 1.0:
        return Check(kind, subject, step, worst)
    count = int(np.count_nonzero(ratio > 1))
    place = ", ".join(str(int(index)) for index in at)
    detail = (
        f": {count} of {ratio.size} elements; at ({place}) found {found[at]!r}, expected {float(value[at])!r}"
        f" within {float(limit[at]):.3g}{note}"
    )
    return Check(kind, subject, step, worst, detail)


def identical(kind: str, subject: str, step: int, found: np.ndarray | None, wanted: np.ndarray) -> Check:
    """Compares bitwise (type, shape and every bit)."""
    if found is not None and found.dtype == wanted.dtype and found.shape == wanted.shape:
        if np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(wanted).tobytes():
            return Check(kind, subject, step, 0.0)
        return compare(kind, subject, step, found, Bounded(wanted, 0.0), " (must be bitwise equal)")
    shown = "nothing" if found is None else f"{found.dtype} {found.shape}"
    return Check(kind, subject, step, np.inf, f": found {shown}, expected {wanted.dtype} {wanted.shape}")


def group(record: Arrays, prefix: str) -> Arrays:
    """The tensors of a record below a prefix, by the rest of their names."""
    start = prefix + "/"
    return {name[len(start) :]: value for name, value in record.items() if name.startswith(start)}
