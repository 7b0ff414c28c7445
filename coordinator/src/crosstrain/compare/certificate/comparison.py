"""One comparison of a recorded tensor with a bounded value, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosstrain.compare.certificate.platform_streams import Data
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded, arithmetic_of
from crosstrain.compare.numerics.rounding import mixed
from crosstrain_service.model import Model
from crosstrain_service.training import Training


@dataclass(frozen=True)
class Check:
    """One comparison. ``ratio`` is the largest error over its bound: at most 1 holds, 0 is bitwise equal or
    exact, infinity cannot be compared.

    The element of largest ratio is at ``coordinates`` with the engine's value ``found``, the reference's ``expected``
    and ``bound``; all are None where shapes differ. ``count`` of ``size`` elements are outside. ``layer`` is
    the layer whose operation gave the value, empty for the rest; ``ties`` and ``zeros`` count the elements outside
    that take part in an exact tie of a pooling window, or belong to a ReLU input of exactly 0.
    """

    kind: str
    subject: str
    step: int
    ratio: float
    detail: str = ""
    coordinates: tuple[int, ...] | None = None
    found: float | None = None
    expected: float | None = None
    bound: float | None = None
    count: int = 0
    size: int = 0
    layer: str = ""
    ties: int = 0
    zeros: int = 0
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the engine agrees within the bound."""
        return self.ratio <= 1.0

    def __str__(self) -> str:
        return f"step {self.step}, {self.kind} of {self.subject}: {self.ratio:.3g} of the bound{self.detail}"


@dataclass(frozen=True)
class Problem:
    """What was asked of the engine.

    ``half`` is "float16" or "bfloat16" in mixed precision: parameters, loss and update are float32 (``dtype``), layers
    are computed in half precision.
    """

    model: Model
    training: Training
    data: Data
    initial: Mapping[str, np.ndarray]
    dtype: Any
    test: Data | None = None
    half: str = ""

    @property
    def arithmetic(self) -> Arithmetic:
        """That of layers, forward."""
        return mixed(self.half) if self.half else arithmetic_of(self.dtype)

    @property
    def half_unit(self) -> float:
        """Unit roundoff of the half type; 0 without one."""
        return mixed(self.half).half if self.half else 0.0

    @property
    def backward_arithmetic(self) -> Arithmetic:
        """That of gradients."""
        return mixed(self.half, backward=True) if self.half else arithmetic_of(self.dtype)


class NotComparable(Exception):
    """The records do not belong to the problem, or are incomplete or damaged: nothing can be said of the engine."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def ratios(found: np.ndarray, wanted: Bounded) -> np.ndarray:
    """Error over bound of every element; shapes must agree. Not finite counts as infinity, unless the same value
    (or NaN) is expected.
    """
    value = np.asarray(wanted.value)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = np.abs(found.astype(value.dtype) - value)
        limit = np.broadcast_to(np.asarray(wanted.error, dtype=value.dtype), value.shape)
        ratio = np.where(error == 0, 0.0, error / limit)
        same = (found == value) | (np.isnan(found) & np.isnan(value))
        ratio = np.where(same, 0.0, np.where(np.isfinite(found) & np.isfinite(value), ratio, np.inf))
    return np.asarray(ratio)


def compare(
    kind: str,
    subject: str,
    step: int,
    found: np.ndarray | None,
    wanted: Bounded,
    note: str = "",
    layer: str = "",
) -> Check:
    """Compares element by element; a missing, misshapen or not finite value fails."""
    if found is None:
        return Check(kind, subject, step, np.inf, ": not recorded", layer=layer)
    found = np.asarray(found)
    value = np.asarray(wanted.value)
    if found.shape != value.shape:
        detail = f": shape {found.shape}, expected {value.shape}"
        return Check(kind, subject, step, np.inf, detail, layer=layer, count=found.size, size=value.size)
    ratio = ratios(found, wanted)
    if ratio.size == 0:
        return Check(kind, subject, step, 0.0, layer=layer)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    limit = np.broadcast_to(np.asarray(wanted.error, dtype=value.dtype), value.shape)
    count = 0 if worst <= 1.0 else int(np.count_nonzero(ratio > 1))
    detail = ""
    if count:
        place = ", ".join(str(int(index)) for index in at)
        detail = (
            f": {count} of {ratio.size} elements; at ({place}) found {found[at]!s}, expected {float(value[at])!r}"
            f" within {float(limit[at]):.3g}{note}"
        )
    return Check(
        kind, subject, step, worst, detail, tuple(int(index) for index in at), float(found[at]), float(value[at]),
        float(limit[at]), count, ratio.size, layer,
    )  # fmt: skip


def identical(kind: str, subject: str, step: int, found: np.ndarray | None, wanted: np.ndarray) -> Check:
    """Compares bitwise (type, shape and every bit)."""
    wanted = np.asarray(wanted)
    if found is not None and found.dtype == wanted.dtype and found.shape == wanted.shape:
        if np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(wanted).tobytes():
            return Check(kind, subject, step, 0.0, size=wanted.size)
        # Zeros of the other sign are no difference of value, and NaN is equal to nothing.
        return compare(kind, subject, step, found, Bounded(wanted, 0.0), " (must be bitwise equal)")
    shown = "nothing" if found is None else f"{found.dtype} {found.shape}"
    detail = f": found {shown}, expected {wanted.dtype} {wanted.shape}"
    return Check(kind, subject, step, np.inf, detail, count=wanted.size, size=wanted.size)


def group(record: Arrays, prefix: str) -> Arrays:
    """The tensors of a record below a prefix, by the rest of their names."""
    start = prefix + "/"
    return {name[len(start) :]: value for name, value in record.items() if name.startswith(start)}
