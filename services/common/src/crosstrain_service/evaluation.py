"""Loss and accuracy over a data set, and batch norm statistics, the same for every engine."""

from typing import Any, Iterator, List, NamedTuple, Optional

import numpy as np

from . import weights
from .data import Samples
from .engine import Arrays, Engine
from .model import BatchNorm, Model
from .parallel import progress
from .parallel.shares import share_slice
from .parallel.team import ALONE, Team

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
        progress.batch()
    return np.concatenate(parts)


def whole_logits(engine: Engine, samples: Samples, rows: np.ndarray, dtype: Any, team: Team,
                 batch: int = BATCH) -> Optional[np.ndarray]:
    """The same with all processes, each evaluating its share of the rows; None but in process 0."""
    progress.enter(progress.EVALUATING)
    mine = rows[share_slice(len(rows), team.shares, team.share)]
    found = {"logits": logits(engine, samples, mine, dtype, batch)} if len(mine) else {}
    parts = team.gather_arrays(found, {})
    return np.concatenate([arrays["logits"] for arrays, _ in parts if arrays]) if team.leads else None


def whole_score(engine: Engine, samples: Samples, rows: np.ndarray, dtype: Any, team: Team) -> "Score":
    """The score of the rows, evaluated by all processes and known to all."""
    values = whole_logits(engine, samples, rows, dtype, team)
    found = score(values, samples.labels[rows]) if values is not None else None
    return Score(*team.tell_json(found))


def inputs(samples: Samples, rows: np.ndarray, dtype: Any, batch: int) -> Iterator[np.ndarray]:
    """Network inputs of the rows, ``batch`` at a time; no batch but the last is smaller."""
    for start in range(0, len(rows), batch):
        yield np.ascontiguousarray(samples.inputs(rows[start:start + batch]), dtype=dtype)


def score(values: np.ndarray, labels: np.ndarray) -> Score:
    """Mean loss and right predictions (first of equal maxima) of logits (N, K)."""
    losses = cross_entropy(values, labels)
    return Score(float(losses.mean()), int((values.argmax(axis=1) == labels).sum()), len(labels))


def population_statistics(engine: Engine, model: Model, samples: Samples, rows: np.ndarray, batch: int,
                          dtype: Any, team: Team = ALONE) -> Arrays:
    """Batch norm statistics over the training rows, for evaluation in canonical semantics.

    Every batch (file order, ``batch`` samples, the last one smaller) passes with each layer normalising by the
    batch's own statistics; with n_b samples times positions per batch, N = sum n_b:
    mean = sum n_b mean_b / N and var = sum n_b (var_b + mean_b^2) / N - mean^2, in float64. The batches go
    round the shares of the ``team``.
    """
    if not model.layers_of(BatchNorm):
        return {}
    progress.enter(progress.STATISTICS)
    parts = []
    for number, x in enumerate(inputs(samples, rows, dtype, batch)):
        if number % team.shares == team.share:
            parts.append(_moments(engine, x))
            progress.batch()
    totals: Arrays = {}
    for arrays, _ in team.gather_arrays(_summed(parts), {}):
        totals = _summed([totals, arrays])
    result = {}
    if team.leads:
        count = float(totals.pop("samples"))
        for name in sorted({key.rpartition(".")[0] for key in totals}):
            mean, second = totals[name + ".first"] / count, totals[name + ".second"] / count
            result[name + ".running_mean"] = mean.astype(dtype)
            result[name + ".running_var"] = np.maximum(second - mean * mean, 0.0).astype(dtype)
    if team.size == 1:
        return result
    return weights.from_bytes(team.tell(weights.to_bytes(result) if team.leads else None))[0]


def _moments(engine: Engine, x: np.ndarray) -> Arrays:
    """First and second moments of a batch in each batch norm layer, times its samples, and the samples."""
    found: Arrays = {"samples": np.asarray(float(len(x)))}
    for name, (mean, variance) in engine.batch_statistics(x).items():
        mean, variance = mean.astype(np.float64), variance.astype(np.float64)
        found[name + ".first"] = len(x) * mean
        found[name + ".second"] = len(x) * (variance + mean * mean)
    return found


def _summed(parts: List[Arrays]) -> Arrays:
    total: Arrays = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total
