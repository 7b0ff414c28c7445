"""Every engine's final weights, evaluated in every engine.

For the weights of one engine, predictions in another engine are compared with those in the engine
that trained them. Where the predicted class differs, the gap between the two largest logits tells
whether rounding can have decided: the forward error of layer k grows with c sqrt(n_k) u, with n_k
terms in an inner product, u = 2^-24 and c = 4. The sum over the layers, times the largest logit, is
taken as what rounding can move a logit. This is a first-order estimate (it leaves out how layers
amplify errors of their input), stated beside every gap.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Convolution, Dense, Model

from .records import RunRecord

UNIT_ROUNDOFF = 2.0**-24
FACTOR = 4.0
PAIR_COLUMNS = (
    "weights_of",
    "evaluated_in",
    "accuracy_pct",
    "loss",
    "images",
    "images_differing",
    "images_differing_within_rounding",
)
DIFFERENCE_COLUMNS = (
    "weights_of",
    "engine_a",
    "engine_b",
    "image",
    "class_a",
    "class_b",
    "logits_gap_a",
    "logits_gap_b",
    "rounding_estimate",
    "within_rounding",
)


@dataclass(frozen=True)
class CrossEvaluation:
    """Rows of cross_evaluation.csv and cross_evaluation_differences.csv."""

    pairs: list[tuple[Any, ...]]
    differences: list[tuple[Any, ...]]


def cross_evaluation(
    training: Sequence[RunRecord],
    evaluations: Sequence[RunRecord],
    model: Model,
    read: Callable[[str], bytes],
) -> CrossEvaluation:
    """The matrix of all engines.

    Args:
        training: runs whose final weights were evaluated; those of the first repeat count.
        evaluations: the evaluation runs.
        read: gives the bytes of an artifact by its digest.
    """
    owners: dict[str, list[str]] = {}
    for run in training:
        if run.repeat == 0 and run.result and run.result.weights_digest:
            owners.setdefault(run.result.weights_digest, []).append(run.label)
    found: dict[str, dict[str, Any]] = {}
    for run in evaluations:
        for evaluated in run.evaluations:
            found.setdefault(evaluated.weights_digest, {})[run.label] = evaluated
    result = CrossEvaluation([], [])
    relative = rounding_estimate(model)
    for digest, labels in owners.items():
        if digest not in found:
            continue
        logits = {label: _logits(read, item.logits_digest) for label, item in found[digest].items()}
        for owner in labels:
            home = owner if owner in logits else next(iter(logits))
            for label, item in found[digest].items():
                rows = _differences(owner, home, label, logits[home], logits[label], relative)
                within = sum(row[-1] for row in rows)
                accuracy = 100.0 * item.correct / max(1, item.samples)
                pair = (owner, label, accuracy, item.loss, item.samples, len(rows), within)
                result.pairs.append(pair)
                result.differences.extend(rows)
    return result


def rounding_estimate(model: Model) -> float:
    """What rounding can move a logit by, relative to the largest logit."""
    inputs = model.input_shapes()
    total = 0.0
    for layer in model.layers:
        if isinstance(layer, Convolution):
            total += float(np.sqrt(inputs[layer.name][0] * np.prod(layer.kernel)))
        elif isinstance(layer, Dense):
            total += float(np.sqrt(inputs[layer.name][0]))
    return FACTOR * UNIT_ROUNDOFF * total


def _differences(
    owner: str, home: str, label: str, a: NDArray[Any], b: NDArray[Any], relative: float
) -> list[tuple[Any, ...]]:
    if a.shape != b.shape:
        raise CrosstrainError("INVALID_DATA", f"{home} gave logits {a.shape}, {label} {b.shape}")
    first, second = a.argmax(axis=1), b.argmax(axis=1)
    rows = []
    for image in np.flatnonzero(first != second):
        gaps = [_gap(values[image]) for values in (a, b)]
        estimate = relative * float(max(np.abs(a[image]).max(), np.abs(b[image]).max()))
        # Each of the two largest logits of each engine may be off by the estimate.
        within = min(gaps) <= 2 * estimate
        classes = (int(first[image]), int(second[image]))
        rows.append((owner, home, label, int(image), *classes, *gaps, 2 * estimate, within))
    return rows


def _gap(logits: NDArray[Any]) -> float:
    top = np.sort(logits.astype(np.float64))[-2:]
    return float(top[-1] - top[0])


def _logits(read: Callable[[str], bytes], digest: str) -> NDArray[Any]:
    values = np.load(io.BytesIO(read(digest)), allow_pickle=False)
    if values.ndim != 2 or values.dtype.kind != "f":
        found = f"{values.dtype} {values.shape}"
        raise CrosstrainError("INVALID_DATA", f"logits {found} are not a table of floats")
    return np.asarray(values)
