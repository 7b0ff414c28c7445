"""Loss and accuracy over a data set, and batch norm statistics, the same for every engine."""

from typing import Any, Dict, Iterator, NamedTuple, Tuple

import numpy as np

from .data import Samples
from .engine import Arrays, Engine
from .model import BatchNorm, Model

#: Samples per forward pass of an evaluation.
BATCH = 256


class Score(NamedTuple):
    """Mean loss, right predictions and samples of an evaluation."""

    loss: float
    correct: int
    samples: int


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss of each sample (B,) float64: log sum exp of the logits (B, K) minus the label's logit."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    return np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0] - wide[np.arange(len(labels)), labels]


def logits(engine: Engine, samples: Samples, rows: np.ndarray, dtype: Any, batch: int = BATCH) -> np.ndarray:
    """Logits (rows, K) in evaluation mode."""
    parts = []
    for x in inputs(samples, rows, dtype, batch):
        parts.append(np.array(engine.predict(x)))
    return np.concatenate(parts)


def inputs(samples: Samples, rows: np.ndarray, dtype: Any, batch: int) -> Iterator[np.ndarray]:
    """Network inputs of the rows, ``batch`` at a time; no batch but the last is smaller."""
    for start in range(0, len(rows), batch):
        yield np.ascontiguousarray(samples.inputs(rows[start:start + batch]), dtype=dtype)


def score(values: np.ndarray, labels: np.ndarray) -> Score:
    """Mean loss and right predictions (first of equal maxima) of logits (N, K)."""
    losses = cross_entropy(values, labels)
    return Score(float(losses.mean()), int((values.argmax(axis=1) == labels).sum()), len(labels))


def population_statistics(engine: Engine, model: Model, samples: Samples, rows: np.ndarray, batch: int,
                          dtype: Any) -> Arrays:
    """Batch norm statistics over the training rows, for evaluation in canonical semantics.

    Every batch (file order, ``batch`` samples, the last one smaller) passes with each layer normalising by the
    batch's own statistics; with n_b samples times positions per batch, N = sum n_b:
    mean = sum n_b mean_b / N and var = sum n_b (var_b + mean_b^2) / N - mean^2, in float64.
    """
    if not model.layers_of(BatchNorm):
        return {}
    totals: Dict[str, Tuple[np.ndarray, np.ndarray]] = {}
    count = 0
    for x in inputs(samples, rows, dtype, batch):
        size = len(x)
        count += size
        for name, (mean, variance) in engine.batch_statistics(x).items():
            mean, variance = mean.astype(np.float64), variance.astype(np.float64)
            first, second = totals.get(name, (0.0, 0.0))
            totals[name] = (first + size * mean, second + size * (variance + mean * mean))
    result = {}
    for name, (first, second) in totals.items():
        mean = first / count
        result[name + ".running_mean"] = mean.astype(dtype)
        result[name + ".running_var"] = np.maximum(second / count - mean * mean, 0.0).astype(dtype)
    return result
