"""Conventions of the loss and its gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.certificate.comparison import group
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain.compare.numerics.losses import loss_gradient
from crosstrain_reference import cross_entropy, softmax

_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LossForm:
    """How loss and gradient come from logits.

    ``clip``: probabilities are kept in [clip, 1 - clip], then, with ``renormalised``, divided by their sum again.
    ``lowest``: the smallest probability whose logarithm is taken. ``factor``: of loss and gradient;
    ``gradient_factor``: of the gradient alone. ``penalty`` times the sum of squares of the parameters whose names end
    in ``penalised`` is added to the loss. ``after``: the loss is that of the updated parameters. With ``steps`` it
    is the mean over these recorded steps, by their batches' sizes if ``weighted``. ``ahead``: the loss is that of the
    parameters that momentum leads to. ``labels`` changes the labels; ``shards`` gives, from the number of samples, the
    size of the shard that each belongs to; ``counted`` gives what each sample counts in the gradient alone.
    """

    clip: float = 0.0
    renormalised: bool = False
    lowest: float = 0.0
    twice: bool = False
    factor: float = 1.0
    gradient_factor: float = 1.0
    penalty: float = 0.0
    penalised: str = ".weight"
    after: bool = False
    steps: tuple[int, ...] = ()
    weighted: bool = True
    ahead: bool = False
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    shards: Callable[[int], np.ndarray] | None = None
    counted: tuple[float, ...] = ()

    def weights(self, samples: int) -> np.ndarray | None:
        """What each sample's loss counts, the mean being 1; None where all count the same."""
        if self.shards is None:
            return None
        sizes = self.shards(samples)
        return np.asarray(samples / sizes / (1 / sizes).sum())


def evaluate(form: LossForm, place: Place) -> Bounded:
    """The loss or its gradient, as the place asks for."""
    last = place.network.layers[-1].name
    logits, labels = place.arithmetic.wide(place.record[f"output/{last}"]), place.record["labels"]
    if form.labels is not None:
        labels = form.labels(labels)
        if labels.min() < 0 or labels.max() >= logits.shape[1]:
            raise ValueError("no such class")
    if place.check.kind == "loss gradient":
        return _gradient(form, place, logits, labels)
    if form.steps:
        return _mean(form, place)
    incoming = 0.0
    if form.after or form.ahead:
        if place.check.subject != "training step":
            raise ValueError("the recording pass comes before the update")
        logits, incoming = _logits_at(place, _ahead(place) if form.ahead else group(place.record, "parameter_after"))
    arithmetic = place.arithmetic
    value = _loss(form, logits, labels)
    error = arithmetic.floor * (1 + abs(value) + np.abs(logits).max()) + 2 * np.max(incoming)
    if form.penalty:
        squares = [np.square(item) for name, item in place.params.items() if name.endswith(form.penalised)]
        total = form.penalty * math.fsum(float(item.sum()) for item in squares)
        value, error = value + total, error + arithmetic.sum_of(sum(item.size for item in squares)) * total
    return Bounded(np.asarray(form.factor * value), form.factor * error)


def _mean(form: LossForm, place: Place) -> Bounded:
    """The mean of the losses that the recording pass saw at several steps."""
    losses = np.array([float(place.records[step]["probe_loss"]) for step in form.steps])
    sizes = np.array([len(place.records[step]["labels"]) if form.weighted else 1 for step in form.steps])
    logits = np.abs(place.record[f"output/{place.network.layers[-1].name}"]).max()
    value = (losses * sizes).sum() / sizes.sum()
    return Bounded(np.asarray(value), 2 * place.arithmetic.floor * (1 + np.abs(losses).max() + logits))


def _ahead(place: Place) -> dict[str, np.ndarray]:
    """The parameters after a step of the old velocity alone."""
    momentum = place.problem.training.rule.momentum
    if not momentum:
        raise ValueError("no momentum")
    velocity = {name: place.arithmetic.wide(value) for name, value in group(place.record, "state").items()}
    return {name: value - momentum * velocity[f"{name}.velocity"] for name, value in place.params.items()}


def _logits_at(place: Place, parameters: Mapping[str, np.ndarray]) -> tuple[np.ndarray, Any]:
    arithmetic = place.arithmetic
    params = {name: arithmetic.wide(value) for name, value in parameters.items()}
    masks = {name: arithmetic.wide(value) for name, value in group(place.record, "mask").items()}
    x = Bounded(arithmetic.wide(place.record["input"]))
    for layer in place.network.layers:
        x = bounds.forward(layer, x, params, arithmetic, mask=masks.get(layer.name)).output
    return x.value, x.error


def _loss(form: LossForm, logits: np.ndarray, labels: np.ndarray) -> Any:
    weights = form.weights(len(labels))
    if weights is not None:
        each = [cross_entropy(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))]
        return (weights * np.array(each)).mean()
    if form.twice:
        return cross_entropy(softmax(logits), labels)
    if not form.clip and not form.lowest:
        return cross_entropy(logits, labels)
    share = softmax(logits)
    if form.clip:
        share = np.clip(share, form.clip, 1 - form.clip)
    if form.renormalised:
        share = share / share.sum(axis=1, keepdims=True)
    chosen = share[np.arange(len(labels)), labels]
    return -np.log(np.maximum(chosen, form.lowest)).mean()


def _gradient(form: LossForm, place: Place, logits: np.ndarray, labels: np.ndarray) -> Bounded:
    arithmetic = place.arithmetic
    wanted = loss_gradient(logits, labels, 0.0, arithmetic)
    share = softmax(logits)
    rows = np.arange(len(labels))
    if form.twice:
        outer = softmax(share)
        outer[rows, labels] -= 1
        value = _through_softmax(share, outer / len(labels))
        top = np.abs(logits).max(axis=1, keepdims=True)
        size = share * (np.abs(outer) + (share * np.abs(outer)).sum(axis=1, keepdims=True)) / len(labels)
        wanted = Bounded(value, arithmetic.floor * (3 + top + np.sqrt(logits.shape[1])) * size + arithmetic.tiny)
    elif form.clip:
        clipped = np.clip(share, form.clip, 1 - form.clip)
        inside = (share > form.clip) & (share < 1 - form.clip)
        chosen = np.zeros_like(share)
        chosen[rows, labels] = 1
        outer = -chosen
        if form.renormalised:
            outer = clipped / clipped.sum(axis=1, keepdims=True) - chosen
        # d log p_j / d z_i = [i = j] - p_i.
        outer = np.where(inside, outer, 0)
        value = (outer - share * outer.sum(axis=1, keepdims=True)) / len(labels)
        wanted = Bounded(value, 2 * np.asarray(wanted.error) + arithmetic.floor * share / len(labels))
    factor: Any = form.factor * form.gradient_factor
    weights = form.weights(len(labels))
    if weights is not None:
        factor = factor * weights[:, None]
    if form.counted:
        factor = factor * np.array(form.counted)[:, None]
    product = wanted.value * factor
    return Bounded(product, factor * np.asarray(wanted.error) + (factor != 1) * arithmetic.floor * np.abs(product))


def _through_softmax(share: np.ndarray, outer: np.ndarray) -> np.ndarray:
    return np.asarray(share * (outer - (share * outer).sum(axis=1, keepdims=True)))


def _clipped(form: LossForm, place: Place) -> Iterator[LossForm]:
    for edge in (1e-7, 1e-8, 1e-10, 1e-15):
        # The upper edge is a float32 too: 1 - 1e-7 is 0.99999988.
        yield replace(form, clip=edge)
        yield replace(form, clip=edge, renormalised=True)


def _saturated(form: LossForm, place: Place) -> Iterator[LossForm]:
    if place.check.kind == "loss":
        yield replace(form, lowest=_SMALLEST)


def _summed(form: LossForm, place: Place) -> Iterator[LossForm]:
    yield replace(form, factor=form.factor * len(place.record["labels"]))


def _twice(form: LossForm, place: Place) -> Iterator[LossForm]:
    yield replace(form, twice=True)


def _penalty(form: LossForm, place: Place) -> Iterator[LossForm]:
    decay = place.problem.training.weight_decay
    if decay is not None and place.check.kind == "loss":
        for share in (0.5, 1.0):
            for end in (".weight", ""):
                yield replace(form, penalty=share * decay.rate, penalised=end)


def _after(form: LossForm, place: Place) -> Iterator[LossForm]:
    if place.check.kind == "loss":
        yield replace(form, after=True)


def _running(form: LossForm, place: Place) -> Iterator[LossForm]:
    """Means over the epoch so far, where all its steps are recorded."""
    if place.check.subject != "training step":
        return
    training = place.problem.training
    samples = len(place.problem.data.labels)
    per_epoch = samples // training.batch_size if training.drop_last else -(-samples // training.batch_size)
    for first in dict.fromkeys((place.step // per_epoch * per_epoch, 0)):
        steps = tuple(range(first, place.step + 1))
        if len(steps) > 1 and all(step in place.records for step in steps):
            yield replace(form, steps=steps)
            yield replace(form, steps=steps, weighted=False)


def lookahead(form: LossForm, place: Place) -> Iterator[LossForm]:
    """The loss at the weights that the old velocity leads to."""
    if place.check.kind == "loss":
        yield replace(form, ahead=True)


def _shards(form: LossForm, place: Place) -> Iterator[LossForm]:
    samples = len(place.record["labels"])
    for ranks in range(2, min(samples, 9)):
        if samples % ranks:
            for split in (_in_proportion, _in_turn, _larger_first):
                yield replace(form, shards=functools.partial(split, ranks))


def _shards_of_update(form: Any, place: Any) -> Iterator[Any]:
    """The same weights in the gradient that the update was made of."""
    for other in _shards(LossForm(), place):
        weights = other.weights(place.batch)
        if weights is not None and not form.weights:
            yield replace(form, weights=tuple(weights.tolist()))


def _in_proportion(ranks: int, count: int) -> np.ndarray:
    return _sizes(np.arange(count) * ranks // count)


def _in_turn(ranks: int, count: int) -> np.ndarray:
    return _sizes(np.arange(count) % ranks)


def _larger_first(ranks: int, count: int) -> np.ndarray:
    return _sizes(np.repeat(np.arange(ranks), [len(part) for part in np.array_split(np.arange(count), ranks)]))


def _sizes(shard: np.ndarray) -> np.ndarray:
    """The size of each sample's shard."""
    return np.asarray(np.bincount(shard)[shard])


def multiples(form: LossForm, place: Place, least: int, inverse: bool) -> Iterator[LossForm]:
    """The gradient times a whole number, or divided by one, as the engine's values show."""
    if place.check.kind != "loss gradient":
        return
    factor = whole_ratio(place.arithmetic.wide(place.found), evaluate(form, place).value, inverse)
    if factor:
        yield replace(form, gradient_factor=form.gradient_factor * factor)


def whole_ratio(found: np.ndarray, value: np.ndarray, inverse: bool) -> float | None:
    """The whole number from 2 on by which ``value`` is multiplied (or divided) in ``found``; None if none."""
    if found.shape != value.shape:
        return None
    square = float(np.square(value).sum())
    if not square or not np.isfinite(found).all():
        return None
    ratio = float((found * value).sum()) / square
    if inverse:
        ratio = 1 / ratio if ratio else 0.0
    whole = round(ratio)
    if whole < 2 or abs(ratio - whole) > 1e-3 * whole:
        return None
    return 1 / whole if inverse else float(whole)


CONVENTIONS = (
    Convention(
        "loss.clipped_probabilities",
        "Probabilities clipped",
        "Probabilities are kept away from 0 and 1 before the logarithm, so that the loss stops at 16.118 and "
        "badly wrong "
        "samples get no gradient.",
        "Keras: clipped to [1e-7, 1 - 1e-7] unless from_logits=True; on Theano always; Keras 3 on PyTorch "
        "and JAX too.",
        "Compute the loss from logits: from_logits=True and no softmax layer; on Theano write log-sum-exp by hand.",
        {"loss": _clipped},
        2,
    ),
    Convention(
        "loss.saturated_log",
        "Logarithm stops at the smallest number",
        "The loss of a sample stops at 87.3365, minus the logarithm of the smallest float32, while its "
        "gradient stays right.",
        "Caffe's SoftmaxWithLoss takes log(max(p, FLT_MIN)).",
        "Watch the logits: the printed loss is wrong, training is not; lower the learning rate if it stays there.",
        {"loss": _saturated},
        1,
    ),
    Convention(
        "loss.summed",
        "Loss summed over the batch",
        "The loss is the sum over the samples of a batch instead of their mean, so that gradients grow with "
        "the batch.",
        "reduction=\"sum\" in PyTorch and Keras; Torch7 with sizeAverage=false; Lasagne leaves the reduction "
        "to the caller.",
        "Take the mean: reduction=\"mean\", normalization: VALID in Caffe, .mean() in Theano.",
        {"loss": _summed},
        2,
    ),
    Convention(
        "loss.double_softmax",
        "Softmax applied twice",
        "Probabilities are taken for logits and go through softmax again, which flattens loss and gradients.",
        "A softmax layer before nn.CrossEntropyLoss, SoftmaxWithLoss, or a Keras loss with from_logits=True.",
        "Remove the softmax layer: these losses take logits.",
        {"loss": _twice},
        2,
    ),
    Convention(
        "loss.includes_penalty",
        "Loss includes the penalty",
        "The reported loss holds the weight decay's penalty besides the cross-entropy.",
        "Keras and Lasagne regularizers add it to the loss that fit() prints; Caffe and PyTorch do not.",
        "Report cross-entropy and penalty apart, or subtract the penalty before comparing.",
        {"loss": _penalty},
        2,
    ),
    Convention(
        "loss.running_mean",
        "Mean loss of the epoch so far",
        "The reported loss is the mean over the steps of the epoch so far, not that of the step, in "
        "reporting only; without "
        "weights a smaller last batch counts as much as a whole one.",
        "Keras's progress bar and logs; TensorFlow 2.2 and earlier weight batches equally.",
        "Read the loss of the step itself, and weight by samples when averaging over an epoch.",
        {"loss": _running},
        3,
    ),
    Convention(
        "loss.mean_of_means",
        "Mean of the means of unequal shards",
        "Every rank takes the mean over its own samples and the means are averaged as if all ranks had equally many, "
        "so that samples of smaller shards count more.",
        "Data parallel training in every framework where the batch is not a multiple of the number of ranks.",
        "Weight each rank's mean by its number of samples, or use a batch size that the number of ranks divides.",
        {"loss": _shards, "update": _shards_of_update},
        3,
    ),
    Convention(
        "loss.after_update",
        "Loss reported after the update",
        "The reported loss is that of the updated weights: it is off by one step, in reporting only.",
        "Loops that evaluate the batch again after the update; Keras reports the loss before it.",
        "Read the loss of the pass that gave the gradients.",
        {"loss": _after},
        3,
    ),
)
