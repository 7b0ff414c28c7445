"""Conventions of what a step is fed with: pixels, rows, labels, initial tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.losses import LossForm
from crosstrain.compare.causes.operations import Operation, OtherInput
from crosstrain.compare.causes.rounding import BFLOAT16, TF32, Format, rounded
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.numerics.bounds import Bounded

Change = Callable[[np.ndarray], np.ndarray]


def always(value: np.ndarray) -> Change:
    """Another tensor, whatever was there."""
    return lambda _: value


def taken(order: np.ndarray) -> Change:
    """The same numbers in another order of flat indices."""
    return lambda value: value.reshape(-1)[order].reshape(value.shape)


def columns(order: np.ndarray) -> Change:
    """A matrix with its columns in another order."""
    return lambda value: value[:, order]


@dataclass(frozen=True)
class Reading:
    """How an input tensor comes about: rows of the data set (None for other tensors), then changes one by one.

    ``roundings`` counts the operations that round; ``dtype`` is the type that the engine holds it in.
    """

    rows: tuple[int, ...] | None = None
    changes: tuple[Change, ...] = ()
    roundings: int = 0
    dtype: Any = None

    def with_change(self, change: Change, roundings: int = 0) -> Reading:
        """The same, changed once more."""
        return replace(self, changes=(*self.changes, change), roundings=self.roundings + roundings)

    def changed(self, value: np.ndarray) -> np.ndarray:
        """A tensor after all changes."""
        for change in self.changes:
            value = change(value)
        return value

    def value(self, place: Place, start: np.ndarray) -> Bounded:
        """The tensor, from what it starts with, and its bound."""
        value = self.changed(place.arithmetic.wide(start))
        return Bounded(value, 2 * self.roundings * place.arithmetic.unit * np.abs(value))


def reading_of(place: Place) -> Reading:
    """The canonical reading of a place's tensor."""
    if place.check.kind == "input":
        rows = rows_of_step(len(place.problem.data.labels), place.problem.training, place.step)
        return Reading(tuple(int(row) for row in rows), dtype=np.dtype(place.problem.dtype))
    return Reading(dtype=np.dtype(place.problem.dtype))


def read(reading: Reading, place: Place) -> Bounded:
    """What the engine would hold under a reading; an infinite bound stands for nothing, so types must agree."""
    name = place.check.subject
    if place.check.kind == "initial weights":
        start = np.asarray(place.problem.initial[name])
    elif name.startswith("mask of "):
        masks = masks_of_step(place.problem.model, len(reading.rows or ()), place.problem.training, place.step)
        start = masks[name[len("mask of ") :]]
    elif name == "labels":
        start = place.problem.data.labels[list(reading.rows or ())]
    else:
        start = place.problem.data.inputs(np.array(reading.rows, dtype=np.int64))
    wanted = np.dtype(np.int64) if name == "labels" else reading.dtype
    if place.found.dtype != wanted:
        raise ValueError("another type")
    return reading.value(place, start)


def _changes(change: Callable[[np.ndarray], Iterator[Change]], roundings: int = 0) -> Any:
    def vary(reading: Reading, place: Place) -> Iterator[Reading]:
        shape = read(replace(reading, dtype=place.found.dtype), place).value
        for item in change(shape):
            yield reading.with_change(item, roundings)

    return vary


def _inside(change: Callable[[np.ndarray], Iterator[Change]], roundings: int = 0) -> Any:
    """The same changes made inside the engine, between the batch that it was given and its first layer."""

    def vary(operation: Operation, place: Place) -> Iterator[Operation]:
        if place.index == 0:
            for item in change(place.x):
                yield OtherInput(operation, item, 2 * roundings * place.arithmetic.unit)

    return vary


def _by_255(value: np.ndarray) -> Iterator[Change]:
    yield lambda v: v * 255.0
    yield lambda v: v / 255.0


def _affine(reading: Reading, place: Place) -> Iterator[Reading]:
    value = read(reading, place).value
    found = place.arithmetic.wide(place.found)
    if found.shape != value.shape or not np.isfinite(found).all() or value.std() == 0:
        return
    centred = value - value.mean()
    factor = (centred * (found - found.mean())).sum() / np.square(centred).sum()
    offset = found.mean() - factor * value.mean()
    if factor == 0:
        return
    size = np.abs(factor) * np.abs(value).max() + np.abs(offset)
    if np.abs(found - factor * value - offset).max() > 16 * place.arithmetic.unit * size:
        return
    # The fit reproduces every element: what is left is the rounding of a product and a sum of that size.
    yield reading.with_change(always(found))


def _channels(value: np.ndarray) -> Iterator[Change]:
    if value.ndim < 3:
        return
    channels, spatial = value.shape[1], value.shape[2:]
    if channels > 1:
        yield lambda v: v[:, ::-1]
        last = (0, *range(2, value.ndim), 1)
        yield lambda v: v.transpose(last).reshape(v.shape)
        yield lambda v: np.moveaxis(v.reshape((v.shape[0], *spatial, channels)), -1, 1)
    yield lambda v: np.moveaxis(v, 1, -1)


def _transposed(value: np.ndarray) -> Iterator[Change]:
    if value.ndim == 4:
        yield lambda v: v.swapaxes(2, 3)
        yield lambda v: v.swapaxes(2, 3).reshape(v.shape)


def _rounded(to: Format) -> Callable[[np.ndarray], Iterator[Change]]:
    def changes(value: np.ndarray) -> Iterator[Change]:
        yield lambda v: rounded(v, to)
        yield lambda v: rounded(v, to, truncate=True)

    return changes


def _added(shift: int, classes: int | None) -> Change:
    return lambda value: value + shift if classes is None else (value + shift) % classes


def _labels_shifted(reading: Reading, place: Place) -> Iterator[Reading]:
    classes = place.problem.model.classes
    for shift in (1, -1):
        yield reading.with_change(_added(shift, None))
        yield reading.with_change(_added(shift, classes))


def _labels_inside(form: LossForm, place: Place) -> Iterator[LossForm]:
    """The same change made inside the engine, between the labels that it was given and the loss."""
    if form.labels is None:
        for shift in (1, -1):
            for classes in (None, place.problem.model.classes):
                yield replace(form, labels=_added(shift, classes))


def _other_type(reading: Reading, place: Place) -> Iterator[Reading]:
    if place.found.dtype == reading.dtype or place.found.dtype.kind != "f":
        return
    other = replace(reading, dtype=place.found.dtype)
    yield other
    if place.check.subject == "batch":
        rows, data = list(reading.rows or ()), place.problem.data
        yield replace(other, changes=(lambda _: place.arithmetic.wide(data.pixels[rows]) / data.divisor,))


def _other_rows(reading: Reading, place: Place) -> Iterator[Reading]:
    """Rows of the data set that equal the engine's, if all of them do."""
    batch = np.asarray(place.record["input"])
    data = place.problem.data
    shape = (len(batch), *data.pixels.shape[1:])
    if batch.shape != shape or batch.dtype != np.dtype(place.problem.dtype):
        return
    places: dict[bytes, list[int]] = {}
    for row in range(0, len(data.labels), 4096):
        part = data.inputs(np.arange(row, min(row + 4096, len(data.labels)))).astype(batch.dtype)
        for index, item in enumerate(part):
            places.setdefault(item.tobytes(), []).append(row + index)
    labels = np.asarray(place.record["labels"])
    rows = []
    for item, label in zip(batch, labels, strict=True):
        options = places.get(np.ascontiguousarray(item).tobytes(), [])
        same = [row for row in options if data.labels[row] == label]
        if not options or (place.check.subject == "labels" and not same):
            return
        rows.append((same or options)[0])
    if tuple(rows) != reading.rows:
        yield replace(reading, rows=tuple(rows))


def _rows_likely(place: Place) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The job's rows of a step with rows that may have taken their place: those of the same step of the first
    epoch, of a neighbouring step, or in the file's order.
    """
    training, samples = place.problem.training, len(place.problem.data.labels)
    own = rows_of_step(samples, training, place.step)
    size = training.batch_size
    per_epoch = samples // size if training.drop_last else -(-samples // size)
    first = place.step % per_epoch
    likely = [rows_of_step(samples, training, step) for step in (first, place.step - 1, place.step + 1) if step >= 0]
    for rows in (*likely, np.arange(first * size, min((first + 1) * size, samples))):
        if rows.shape == own.shape and not np.array_equal(rows, own):
            yield own, rows


def _rows_inside(operation: Operation, place: Place) -> Iterator[Operation]:
    """Other rows inside the engine; every sample is found by its values, since the place may hold only some."""
    if place.index:
        return
    inputs = place.problem.data.inputs
    for own, rows in _rows_likely(place):
        where = {value.tobytes(): index for index, value in enumerate(place.arithmetic.wide(inputs(own)))}
        other = place.arithmetic.wide(inputs(rows))
        yield OtherInput(operation, _exchanged(where, other))


def _exchanged(where: dict[bytes, int], other: np.ndarray) -> Change:
    """Every sample replaced by the other sample of the number that ``where`` has for its bytes."""
    return lambda value: np.stack([other[where[np.ascontiguousarray(item).tobytes()]] for item in value])


def _labels_of_rows(form: LossForm, place: Place) -> Iterator[LossForm]:
    if form.labels is None:
        for _, rows in _rows_likely(place):
            yield replace(form, labels=always(place.problem.data.labels[rows]))


def _anything(reading: Reading, place: Place) -> Iterator[Reading]:
    found = place.arithmetic.wide(place.found)
    if np.isfinite(found).all():
        yield reading.with_change(always(found))


CONVENTIONS = (
    Convention(
        "input.scale_255",
        "Pixels not divided by 255, or divided twice",
        "The engine sees pixels 0 to 255 where the job says 0 to 1, or the reverse.",
        "Loaders differ: torchvision's ToTensor divides by 255; Keras's data sets, Caffe's and TensorFlow's "
        "readers do not.",
        "Scale once, in one place: set the data section's divisor to 255 and remove the loader's own scaling "
        "(in Caffe it is transform_param scale: 0.003921569).",
        {"input": _changes(_by_255, 2), "layer": _inside(_by_255, 2)},
        1,
    ),
    Convention(
        "input.rescaled",
        "Another scale or offset of the pixels",
        "The engine's pixels are the job's times a factor plus an offset, as standardising or mean "
        "subtraction makes them.",
        "torchvision Normalize, keras.applications preprocess_input, Caffe mean_file and mean_value.",
        "Remove the framework's normalisation, or apply it to the data before the job.",
        {"input": _affine},
        6,
    ),
    Convention(
        "input.channel_order",
        "Channels in another order",
        "Channels are read in another order: last instead of first, or blue-green-red instead of red-green-blue.",
        "TensorFlow and Keras keep channels last by default; OpenCV and Caffe models read BGR.",
        "Give (N, C, H, W): x.transpose(0, 3, 1, 2) for channels-last data; x[:, ::-1] turns BGR into RGB.",
        {"input": _changes(_channels), "layer": _inside(_channels)},
        3,
    ),
    Convention(
        "input.spatial_transposed",
        "Height and width swapped",
        "Every image is transposed: rows are read as columns.",
        "Column-major files (MATLAB's .mat), and reshapes to (W, H) where (H, W) is meant.",
        "Swap the two axes once when reading: x.swapaxes(2, 3).",
        {"input": _changes(_transposed), "layer": _inside(_transposed)},
        3,
    ),
    Convention(
        "input.rounded_tf32",
        "Inputs rounded to TF32",
        "The batch holds values of 11 significant bits, as TF32 has them.",
        "Casts before the step on GPUs with TF32.",
        "Keep the batch in float32; switch TF32 off (torch.backends.cudnn.allow_tf32 = False).",
        {"input": _changes(_rounded(TF32)), "layer": _inside(_rounded(TF32))},
        4,
    ),
    Convention(
        "input.rounded_bfloat16",
        "Inputs rounded to bfloat16",
        "The batch holds values of 8 significant bits, as bfloat16 has them.",
        "Mixed precision policies cast the batch (Keras mixed_bfloat16, torch.autocast).",
        "Keep the batch in float32: no mixed precision policy, no autocast.",
        {"input": _changes(_rounded(BFLOAT16)), "layer": _inside(_rounded(BFLOAT16))},
        4,
    ),
    Convention(
        "input.labels_off_by_one",
        "Labels counted from 1",
        "Class numbers are one too high or too low, so that every sample is trained towards a neighbour class.",
        "Torch7 counts labels from 1, and so do R data sets and many CSV files; all others count from 0.",
        "Subtract the smallest label once when importing, so that labels are 0 to K - 1.",
        {"labels": _labels_shifted, "loss": _labels_inside},
        2,
    ),
    Convention(
        "input.other_rows",
        "Other rows of the data",
        "The batch consists of rows of the data set, but not of those that the job's order gives for this step.",
        "Every framework's loader shuffles by its own generator; PyTorch's DistributedSampler repeats the "
        "first order "
        "without set_epoch; file order where shuffling is off.",
        "Take batches from the platform's order (seed, epoch), or set order: file in the job for every engine.",
        {"input": _other_rows, "labels": _other_rows, "layer": _rows_inside, "loss": _labels_of_rows},
        4,
    ),
    Convention(
        "input.other_dtype",
        "Another floating-point type",
        "The engine holds the tensor in another type than the job's precision.",
        "Theano's floatX and Torch7 are float64 by default; NumPy makes float64 of Python numbers.",
        "Set precision: float32 in the job and the framework's default type to match (THEANO_FLAGS=floatX=float32, "
        "torch.set_default_dtype).",
        {"input": _other_type, "weights": _other_type},
        1,
    ),
    Convention(
        "weights.other_initial",
        "Other initial weights",
        "Training started from tensors that are not the job's initial weights.",
        "Initialisers differ: uniform by fan-in in PyTorch, Glorot in Keras and Lasagne, constant 0 in Caffe "
        "without a filler.",
        "Load the job's initial tensors (set_weights, load_state_dict, net.params) and do not initialise afterwards.",
        {"weights": _anything},
        9,
    ),
)
