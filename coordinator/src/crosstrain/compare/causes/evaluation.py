"""Conventions of evaluation: batch norm statistics, and dropout that is still on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.operations import Operation, Settings
from crosstrain.compare.certificate.comparison import group
from crosstrain.compare.numerics.bounds import Arrays, Bounded
from crosstrain_reference import BatchNorm, Dropout

# Random draws of dropout masks that give mean and spread of logits, and rows that are looked at.
_DRAWS, _ROWS = 64, 48
# Weights of the old value in running averages.
_MOMENTA = (0.9, 0.99, 0.999, 0.1)


@dataclass(frozen=True)
class Evaluation:
    """How logits come about in evaluation mode.

    ``operations`` replaces layers by what they were found to compute; ``change`` is applied to the inputs. Batch
    norm takes
    the recorded statistics, or those of each ``batch`` of rows.
    """

    operations: Mapping[str, Operation] = field(default_factory=dict)
    change: Callable[[np.ndarray], np.ndarray] | None = None
    batch: int = 0
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)


def _params(place: Place) -> Arrays:
    last = max(step for step in place.records if step >= 0)
    values = group(place.records[last], "parameter_after")
    return {name: place.arithmetic.wide(value) for name, value in values.items()}


def logits(form: Evaluation, place: Place) -> Bounded:
    """Logits of the test rows."""
    test = place.problem.test
    assert test is not None
    if place.check.kind != "evaluation":
        raise ValueError("no logits")
    rows = len(test.labels)
    size = form.batch or rows
    parts = [_part(form, place, np.arange(start, min(start + size, rows))) for start in range(0, rows, size)]
    return Bounded(np.concatenate([part.value for part in parts]), np.concatenate([part.error for part in parts]))


def _part(form: Evaluation, place: Place, rows: np.ndarray) -> Bounded:
    test = place.problem.test
    assert test is not None
    value = place.arithmetic.wide(test.inputs(rows))
    x = Bounded(value if form.change is None else form.change(value))
    params, statistics = _params(place), group(place.record, "statistic")
    for layer in place.network.layers:
        operation = form.operations.get(layer.name, Operation(layer))
        x = operation.forward(x, _settings(form, place, layer, params, statistics, rows))
    return Bounded(x.value, np.zeros_like(x.value) + x.error)


def _settings(
    form: Evaluation, place: Place, layer: Any, params: Arrays, statistics: Arrays, rows: np.ndarray
) -> Settings:
    settings = Settings(params, place.arithmetic, train=False)
    if isinstance(layer, BatchNorm):
        if form.batch:
            return settings.changed(train=True)
        pair = [statistics[f"{layer.name}.{part}"] for part in ("running_mean", "running_var")]
        return settings.changed(statistics=tuple(place.arithmetic.wide(item) for item in pair))
    if isinstance(layer, Dropout) and layer.name in form.masks:
        return settings.changed(train=True, mask=form.masks[layer.name][rows])
    return settings


def _batch_statistics(form: Evaluation, place: Place) -> Iterator[Evaluation]:
    test = place.problem.test
    if test is None or not any(isinstance(layer, BatchNorm) for layer in place.network.layers):
        return
    for size in dict.fromkeys((len(test.labels), place.problem.training.batch_size, 32, 64, 100, 128, 256)):
        if size > 1:
            yield replace(form, batch=size)


def _dropped(form: Any, place: Place) -> Iterator[Any]:
    """Masks drawn at random: the engine's logits must scatter around the undropped ones as dropout makes them."""
    dropped = [layer for layer in place.network.layers if isinstance(layer, Dropout) and layer.rate]
    test = place.problem.test
    if not isinstance(form, Evaluation) or place.check.kind != "evaluation" or test is None or not dropped:
        return
    found = place.arithmetic.wide(place.found)
    rows = np.arange(min(_ROWS, len(test.labels)))
    if found.shape != (len(test.labels), place.problem.model.classes) or not np.isfinite(found).all():
        return
    shapes = place.problem.model.input_shapes()
    random = np.random.RandomState(0)
    draws = []
    for _ in range(_DRAWS):
        masks = {
            layer.name: (random.random_sample((len(rows), *shapes[layer.name])) >= layer.rate) / (1 - layer.rate)
            for layer in dropped
        }
        draws.append(_part(replace(form, masks=masks), place, rows).value)
    mean, spread = np.mean(draws, axis=0), np.std(draws, axis=0)
    seen = spread > 1e-6 * (1 + np.abs(mean))
    if not seen.any() or np.abs(found[rows] - mean)[~seen].max(initial=0.0) > 1e-3:
        return
    score = np.square((found[rows] - mean)[seen] / spread[seen])
    # Of squared standard scores: the mean is 1 if the engine's masks are of the same kind.
    if 0.5 < score.mean() < 2.0 and score.max() < 100.0:
        yield found


def _running(form: Any, place: Place) -> Iterator[Bounded]:
    """Running averages over the recorded steps, in the forms that frameworks have."""
    yield from _averages(place, "mean" if place.check.subject.endswith("running_mean") else "variance")


def _averages(place: Place, kind: str) -> Iterator[Bounded]:
    """Averages of a batch statistic that start at 0 or 1, with the usual momenta, with and without correction of the
    start; and the last value alone.
    """
    steps = sorted(step for step in place.records if step >= 0)
    if place.check.kind != "statistics" or steps != list(range(len(steps))):
        return
    names = [layer.name for layer in place.network.layers]
    index = names.index(place.check.subject.rpartition(".")[0])
    layer = place.network.layers[index]
    assert isinstance(layer, BatchNorm)
    before = f"output/{names[index - 1]}" if index else "input"
    inputs = [place.arithmetic.wide(place.records[step][before]) for step in steps]
    plain = place.problem.model.layers[index]
    momenta = dict.fromkeys((getattr(plain, "momentum", None) or _MOMENTA[0], *_MOMENTA))
    for values in zip(*(_statistics(x, kind, layer.eps) for x in inputs), strict=True):
        for momentum in momenta:
            for start in (0.0, 1.0):
                total, weight = np.full_like(values[0], start), 0.0
                for value in values:
                    total = momentum * total + (1 - momentum) * value
                    weight = momentum * weight + (1 - momentum)
                yield _rounded_average(place, total)
                if not start:
                    yield _rounded_average(place, total / weight)
        yield _rounded_average(place, values[-1])


def _statistics(x: np.ndarray, kind: str, epsilon: float) -> list[np.ndarray]:
    """A batch's mean; or its variance unbiased, biased, and as Keras on Theano scales it; or its inverse "
    "deviation."""
    axes = (0, *range(2, x.ndim))
    count = x.size // x.shape[1]
    variance = x.var(axis=axes)
    if kind == "mean":
        return [x.mean(axis=axes)]
    if kind == "inverse":
        return [1 / np.sqrt(variance + epsilon)]
    return [variance * count / (count - 1), variance, (variance + epsilon) * count / (count - 1 - epsilon)]


def _rounded_average(place: Place, value: np.ndarray) -> Bounded:
    last = max(step for step in place.records if step >= 0)
    count = place.records[last]["input"].size
    size = np.abs(value) + np.abs(value).max()
    return Bounded(value, place.arithmetic.sum_of(count) * size)


def _inverse(form: Any, place: Place) -> Iterator[Bounded]:
    """The running average holds 1 / sqrt(variance + eps); recorded as such, or turned back into a variance."""
    if not place.check.subject.endswith("running_var"):
        yield from _averages(place, "mean")
        return
    for value in _averages(place, "inverse"):
        yield value
        layer = next(item for item in place.network.layers if place.check.subject.startswith(item.name + "."))
        assert isinstance(layer, BatchNorm)
        with np.errstate(divide="ignore"):
            turned = 1 / np.square(value.value) - layer.eps
            error = 2 * np.asarray(value.error) / np.abs(value.value) ** 3 + place.arithmetic.floor * np.abs(turned)
        if np.isfinite(turned).all():
            yield Bounded(turned, error)


CONVENTIONS = (
    Convention(
        "batch_norm.running_statistics",
        "Running averages for evaluation",
        "Evaluation normalises by averages gathered while training, not by the statistics of the whole "
        "training set, so that "
        "training agrees and evaluation differs.",
        "All frameworks by default: PyTorch weights the new value 0.1 and takes the unbiased variance, Keras "
        "the old value 0.99, "
        "Caffe 0.999 with a correction, Keras on Theano scales by n / (n - 1 - eps).",
        "Recompute mean and variance over the training set with the final weights before evaluating, or "
        "train long enough that "
        "the averages settle, with the same momentum everywhere.",
        {"statistics": _running},
        2,
    ),
    Convention(
        "batch_norm.inverse_deviation",
        "Running average of the inverse deviation",
        "The average is taken of 1 / sqrt(variance + epsilon) instead of the variance, which is not the same number.",
        "Lasagne's BatchNormLayer (inv_std).",
        "Average the variance, or recompute it over the training set before evaluating.",
        {"statistics": _inverse},
        3,
    ),
    Convention(
        "evaluation.batch_statistics",
        "Evaluation by the statistics of each batch",
        "In evaluation batch norm still takes mean and variance of the batch at hand, so that a prediction "
        "depends on its neighbours.",
        "A network left in training mode: model.train() in PyTorch, training=True in Keras, "
        "use_global_stats: false in Caffe.",
        "Switch to evaluation mode: model.eval(), training=False, deterministic=True.",
        {"evaluation": _batch_statistics},
        2,
    ),
    Convention(
        "evaluation.dropout_on",
        "Dropout on in evaluation",
        "Values are still dropped at random when the network is evaluated, so that predictions scatter.",
        "A network left in training mode; Lasagne without deterministic=True.",
        "Switch to evaluation mode: model.eval(), training=False, deterministic=True.",
        {"evaluation": _dropped},
        5,
    ),
)
