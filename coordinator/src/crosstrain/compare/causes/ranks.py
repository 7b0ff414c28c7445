"""Conventions of ranks that do not do their part of a batch.

Ranks have near-equal contiguous shares of a batch, the first ones a sample larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.data import always
from crosstrain.compare.causes.dropout import kept_values, shown_masks
from crosstrain.compare.causes.losses import LossForm
from crosstrain.compare.causes.operations import Gradients, Masked, Operation, OtherInput, Settings, Wrapped
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.numerics.bounds import Bounded
from crosstrain.compare.numerics.forms import Form
from crosstrain_reference import BatchNorm, Dropout

_MOST = 8
#: Masks that ranks drew for themselves look alike with a chance of at most 2^-40, one in a million million.
_CHANCE_BITS = 40


def shares(samples: int, ranks: int) -> list[slice]:
    """The rows of every rank."""
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(samples), ranks)])
    return [slice(int(start), int(end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _repeats(samples: int) -> Iterator[np.ndarray]:
    """For every number of ranks, the row that each row is replaced by if all ranks work on the first share."""
    for ranks in range(2, min(samples, _MOST) + 1):
        yield np.concatenate([np.arange(part.stop - part.start) for part in shares(samples, ranks)])


def _rows(place: Place) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the data set of the whole batch, and where in it the place's samples stand (it may hold only some)."""
    data = place.problem.data
    rows = rows_of_step(len(data.labels), place.problem.training, place.step)
    where = {value.tobytes(): index for index, value in enumerate(place.arithmetic.wide(data.inputs(rows)))}
    own = place.arithmetic.wide(place.record["input"])
    return rows, np.array([where[np.ascontiguousarray(item).tobytes()] for item in own])


def _repeated_inputs(operation: Operation, place: Place) -> Iterator[Operation]:
    if place.index:
        return
    rows, where = _rows(place)
    inputs = place.arithmetic.wide(place.problem.data.inputs(rows))
    for order in _repeats(len(rows)):
        yield OtherInput(operation, always(inputs[order[where]]))


def _repeated_labels(form: LossForm, place: Place) -> Iterator[LossForm]:
    if form.labels is None:
        labels = np.asarray(place.record["labels"])
        for order in _repeats(len(labels)):
            yield replace(form, labels=always(labels[order]))


class _Local(Wrapped):
    """Batch normalisation of every rank's share by itself."""

    def __init__(self, inner: Operation, ranks: int) -> None:
        super().__init__(inner)
        self.ranks = ranks

    def forward(self, x: Bounded, settings: Settings) -> Bounded:
        parts = [self.inner.forward(_part(x, rows), settings) for rows in shares(len(x.value), self.ranks)]
        return _joined(parts)

    def backward(self, dy: Bounded, x: np.ndarray, settings: Settings) -> tuple[Bounded, Gradients]:
        found = [self.inner.backward(_part(dy, rows), x[rows], settings) for rows in shares(len(x), self.ranks)]
        gradients = {}
        for name in found[0][1]:
            addends = [own[name] for _, own in found]
            value = np.sum([item.value for item in addends], axis=0)
            sizes = np.sum([np.abs(item.value) for item in addends], axis=0)
            rounding = settings.arithmetic.sum_of(len(addends)) * sizes
            gradients[name] = Bounded(value, sum(np.asarray(item.error) for item in addends) + rounding)
        return _joined([dx for dx, _ in found]), gradients


def _part(value: Bounded, rows: slice) -> Bounded:
    error = np.asarray(value.error)
    return Bounded(value.value[rows], error[rows] if error.ndim else value.error)


def _joined(parts: list[Bounded]) -> Bounded:
    errors = [np.broadcast_to(part.error, part.value.shape) for part in parts]
    return Bounded(np.concatenate([part.value for part in parts]), np.concatenate(errors))


def _local(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, BatchNorm):
        for ranks in range(2, min(len(place.x), _MOST) + 1):
            yield _Local(operation, ranks)


def _one_mask(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if isinstance(layer, Dropout) and layer.rate:
        if _drew_alike(layer, place):
            yield from shown_masks(operation, place)
        rows, where = _rows(place)
        problem = place.problem
        mask = place.arithmetic.wide(masks_of_step(problem.model, len(rows), problem.training, place.step)[layer.name])
        for order in _repeats(len(rows)):
            yield Masked(operation, mask[order[where]])


def _drew_alike(layer: Dropout, place: Place) -> bool:
    """Whether all shares show the same mask, for some number of ranks, in some recorded step.

    In one, since ranks with unequal shares draw unequal counts of numbers, so that equal generators part after a step.
    Two ranks that draw for themselves agree on a value with the chance r^2 + (1 - r)^2, r being the rate. A place that
    holds only some samples cannot tell; its whole batch is asked afterwards.
    """
    training, samples = place.problem.training, len(place.problem.data.labels)
    if len(place.record["input"]) < len(rows_of_step(samples, training, place.step)):
        return True
    below = place.network.layers[place.index - 1].name if place.index else ""
    shown = [kept_values(record, layer, below) for step, record in place.records.items() if step >= 0]
    needed = _CHANCE_BITS / -np.log2(layer.rate**2 + (1 - layer.rate) ** 2)
    return any(
        _agreeing(kept, known, ranks) >= needed
        for kept, known in shown
        for ranks in range(2, min(len(kept), _MOST) + 1)
    )


def _agreeing(kept: np.ndarray, known: np.ndarray, ranks: int) -> int:
    """How many values of other shares are known to be those of the first one; 0 if one differs."""
    count = 0
    for part in shares(len(kept), ranks)[1:]:
        first = slice(0, part.stop - part.start)
        both = known[first] & known[part]
        if (both & (kept[first] != kept[part])).any():
            return 0
        count += int(np.count_nonzero(both))
    return count


def _left_out(samples: int) -> Iterator[tuple[float, ...]]:
    """What samples count if one rank adds nothing: the others as before, or so that they make the mean again."""
    for ranks in range(2, min(samples, _MOST) + 1):
        for rows in shares(samples, ranks):
            kept = np.ones(samples)
            kept[rows] = 0
            yield tuple(kept.tolist())
            yield tuple((kept * samples / kept.sum()).tolist())


def _skipped(form: LossForm, place: Place) -> Iterator[LossForm]:
    if place.check.kind == "loss gradient" and not form.counted:
        for weights in _left_out(len(place.record["labels"])):
            yield replace(form, counted=weights)


def _skipped_update(form: Form, place: Any) -> Iterator[Form]:
    if not form.weights:
        for weights in _left_out(place.batch):
            yield replace(form, weights=weights)


CONVENTIONS = (
    Convention(
        "parallel.repeated_shards",
        "Every rank works on the same share",
        "All ranks compute the first rank's samples, so that some of the batch count several times and others never.",
        "Data parallel scripts whose loader is given no rank: no DistributedSampler, no dataset.shard, no "
        "scatter; every rank with the same seed reads the same batches.",
        "Give every rank its own part: DistributedSampler(num_replicas, rank), dataset.shard(num_ranks, rank).",
        {"layer": _repeated_inputs, "loss": _repeated_labels},
        2,
    ),
    Convention(
        "parallel.local_batch_norm",
        "Batch normalisation over every rank's share",
        "Every rank normalises by the mean and variance of its own samples, not by those of the whole batch.",
        "The default of DistributedDataParallel, MirroredStrategy, Horovod and Caffe's multi-GPU training.",
        "Synchronise: nn.SyncBatchNorm, BatchNormalization(synchronized=True), hvd.SyncBatchNorm.",
        {"layer": _local},
        2,
    ),
    Convention(
        "parallel.masks_of_one_rank",
        "One rank's dropout masks on every rank",
        "All ranks drop the same values of their samples, since they draw the same numbers.",
        "Ranks that seed their generator alike: torch.manual_seed(seed), tf.random.set_seed(seed) without the rank.",
        "Seed dropout by rank as well (seed + rank), and only the initial weights alike.",
        {"layer": _one_mask},
        1,
    ),
    Convention(
        "parallel.skipped_rank",
        "A rank adds nothing",
        "The gradients of one rank's samples are missing from the sum over the ranks.",
        "A rank that has run out of data and takes part with zeros (Horovod's join), that skips a step whose loss "
        "is not finite, or whose gradients are reduced before they are computed.",
        "Give all ranks the same number of steps; leave a step out on all of them or on none.",
        {"loss": _skipped, "update": _skipped_update},
        4,
    ),
)
