"""Conventions of dropout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crosstrain.compare.causes.convention import Convention, Place
from crosstrain.compare.causes.data import Reading, always
from crosstrain.compare.causes.operations import Masked, Operation
from crosstrain.compare.numerics.bounds import Arrays
from crosstrain_reference import Dropout
from crosstrain_service import model as plain


def draws_of(place: Place, name: str, samples: int) -> np.ndarray:
    """The platform's uniform numbers behind a layer's mask at the place's step."""
    dropped = [layer.name for layer in place.problem.model.layers if isinstance(layer, plain.Dropout)]
    shape = place.problem.model.input_shapes()[name]
    random = np.random.RandomState([place.problem.training.seed, place.step, dropped.index(name)])
    return random.random_sample((samples, *shape))


def _inverted(draws: np.ndarray, rate: float) -> Iterator[np.ndarray]:
    """Masks of an engine that takes the rate for the share it keeps."""
    if not rate:
        return
    for kept, scale in (
        (draws >= 1 - rate, rate), (draws < rate, rate), (draws >= rate, rate), (draws < 1 - rate, 1 - rate),
    ):  # fmt: skip
        yield kept / scale


def _other_masks(operation: Operation, place: Place) -> Iterator[Operation]:
    layer = operation.layer
    if isinstance(layer, Dropout):
        for mask in _inverted(draws_of(place, layer.name, len(place.x)), layer.rate):
            yield Masked(operation, mask)


def _other_mask_tensors(reading: Reading, place: Place) -> Iterator[Reading]:
    name = place.check.subject[len("mask of ") :]
    rate = next(layer.rate for layer in place.problem.model.layers if layer.name == name and hasattr(layer, "rate"))
    draws = draws_of(place, name, len(place.found))
    for mask in _inverted(draws, rate):
        yield reading.with_change(always(mask), 2)


def _unscaled(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Dropout) and place.mask is not None:
        yield Masked(operation, (place.mask > 0).astype(place.mask.dtype))


def _unscaled_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    yield reading.with_change(lambda m: (m > 0).astype(m.dtype))


def _off(operation: Operation, place: Place) -> Iterator[Operation]:
    if isinstance(operation.layer, Dropout):
        yield Masked(operation, None)


def _off_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    yield reading.with_change(np.ones_like)


def shown_masks(operation: Operation, place: Place) -> Iterator[Operation]:
    """The mask that the engine's values show, if they show one: 0 or 1 / (1 - rate) everywhere."""
    layer = operation.layer
    if not isinstance(layer, Dropout) or not layer.rate:
        return
    scale = 1 / (1 - layer.rate)
    base = place.x if place.check.kind == "forward" else place.dy
    found = place.arithmetic.wide(place.found)
    if found.shape == base.shape:
        yield Masked(operation, np.where(np.abs(found) > 0.5 * scale * np.abs(base), scale, 0.0))


def kept_values(record: Arrays, layer: Dropout, below: str) -> tuple[np.ndarray, np.ndarray]:
    """Which values a recorded step shows as kept, and of which it shows whether they were: those that are not 0 in
    the layer's input, or in the gradient of its output. ``below`` is the layer before.
    """
    x = record[f"output/{below}" if below else "input"]
    kept, known = np.zeros(x.shape, bool), np.zeros(x.shape, bool)
    pairs = [(x, record[f"output/{layer.name}"])]
    if below:
        pairs.append((record[f"output_grad/{layer.name}"], record[f"output_grad/{below}"]))
    for base, found in pairs:
        if base.shape == found.shape == kept.shape:
            kept |= np.abs(found) > 0.5 / (1 - layer.rate) * np.abs(base)
            known |= base != 0
    return kept, known


def _own_tensor(reading: Reading, place: Place) -> Iterator[Reading]:
    name = place.check.subject[len("mask of ") :]
    rate = next(layer.rate for layer in place.problem.model.layers if layer.name == name and hasattr(layer, "rate"))
    found = place.arithmetic.wide(place.found)
    yield reading.with_change(always(np.where(found > 0.5 / (1 - rate), 1 / (1 - rate), 0.0)), 2)


CONVENTIONS = (
    Convention(
        "dropout.rate_inverted",
        "Dropout rate taken for the share kept",
        "The engine keeps the share of values that the job wants dropped.",
        "TensorFlow 1's keep_prob against rate; Keras, PyTorch, Caffe and Lasagne give the share dropped.",
        "Pass 1 - rate where a framework asks for keep_prob.",
        {"layer": _other_masks, "mask": _other_mask_tensors},
        2,
    ),
    Convention(
        "dropout.not_rescaled",
        "Dropout without rescaling",
        "Kept values are not divided by 1 - rate, so that training sees smaller sums than evaluation.",
        "The original form of dropout scales in evaluation; Lasagne with rescale=False.",
        "Divide by 1 - rate in training (inverted dropout): rescale=True in Lasagne, the default elsewhere.",
        {"layer": _unscaled, "mask": _unscaled_tensor},
        2,
    ),
    Convention(
        "dropout.off",
        "Dropout off in training",
        "Nothing is dropped while training.",
        "A network left in evaluation mode: model.eval() in PyTorch, training=False in TensorFlow, "
        "deterministic=True in Lasagne.",
        "Switch to training mode before the step: model.train(), training=True, deterministic=False.",
        {"layer": _off, "mask": _off_tensor},
        1,
    ),
    Convention(
        "dropout.own_mask",
        "Dropout draws its own mask",
        "The engine drops the right share of values, but others than the platform's mask for this step says.",
        "Every framework's dropout layer draws from its own generator.",
        "Multiply by the platform's mask, or compare engines without dropout.",
        {"layer": shown_masks, "mask": _own_tensor},
        6,
    ),
)
