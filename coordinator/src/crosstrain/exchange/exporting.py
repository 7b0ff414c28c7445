"""What the exports share: checked arrays, layer names, refusals, and the geometry of padding as plain numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crosstrain_service import model as plain
from crosstrain_service import weights as canonical
from crosstrain_service.errors import CrosstrainError

Arrays = dict[str, np.ndarray]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Export:
    """A Python source file that builds the network, and the file of its weights."""

    source: str
    weights: bytes


def refused(layer: str, message: str) -> CrosstrainError:
    """The error of a layer that the other tool cannot express."""
    return CrosstrainError("INVALID_MODEL", f"layer {layer!r} cannot be exported: {message}", f"model.layers[{layer}]")


def taken(weights: Mapping[str, np.ndarray], layer: str, parts: Sequence[str]) -> list[np.ndarray]:
    """Parts of a layer as float32. Raises CrosstrainError (``INVALID_WEIGHTS``) naming the missing one."""
    found = []
    for part in parts:
        name = f"{layer}.{part}"
        if name not in weights:
            raise CrosstrainError("INVALID_WEIGHTS", f"{name!r} is missing", name)
        found.append(np.asarray(weights[name], np.float32))
    return found


def prepared(model: plain.Model, weights: Mapping[str, np.ndarray]) -> Arrays:
    """Parameters and batch norm statistics of a network that is to become Python source, as float32.

    Raises CrosstrainError (``INVALID_WEIGHTS``) naming an array that is missing (statistics too), of another
    shape or beyond float32; (``INVALID_MODEL``) naming a layer whose function is not fully stated.
    """
    for layer in model.layers:
        if not _NAME.fullmatch(layer.name):
            raise refused(layer.name, "its name is not a letter followed by letters, digits and '_'")
        if isinstance(layer, plain.BatchNorm) and layer.epsilon is None:
            raise refused(layer.name, "its epsilon is the default of whatever framework trained it; state the value")
        if isinstance(layer, plain.LocalResponseNorm) and layer.size % 2 == 0:
            raise refused(layer.name, "a window of an even number of elements has no centre")
    parameters, statistics = canonical.check_weights(weights, model)
    for name in model.statistics_shapes():
        if name not in statistics:
            raise CrosstrainError("INVALID_WEIGHTS", f"{name!r} is missing", name)
    arrays = {}
    for name, value in {**parameters, **statistics}.items():
        with np.errstate(over="ignore"):
            arrays[name] = np.ascontiguousarray(value, np.float32)
        if not np.isfinite(arrays[name]).all():
            raise CrosstrainError("INVALID_WEIGHTS", f"{name!r} holds a value that float32 cannot", name)
    return arrays


def names_of(model: plain.Model, reserved: Collection[str] = ()) -> dict[str, str]:
    """By layer a name that is not ``reserved``: its own, or that with ``_`` behind it; all are different."""
    used = {layer.name for layer in model.layers}
    found = {}
    for layer in model.layers:
        name = layer.name
        if name in reserved:
            name = unused(name + "_", {*used, *reserved})
            used.add(name)
        found[layer.name] = name
    return found


def unused(name: str, used: Collection[str]) -> str:
    """``name``, followed by as many ``_`` as make it differ from those ``used``."""
    while name in used:
        name += "_"
    return name


def heading(model: plain.Model, kind: str, shape: plain.Shape, order: str, divisor: float | None) -> str:
    """Docstring of an exported source file; ``shape`` and ``order``: of a sample, as the tool takes it."""
    title = re.sub(r"[^A-Za-z0-9_.-]", "_", model.name)
    scaled = "in the scale of the training data (bytes are divided by 255 unless the job says otherwise)"
    if divisor is not None:
        scaled = f"stored values divided by {divisor!r}"
    sizes = ", ".join(map(str, shape))
    return (
        f'"""{title} as a {kind}, written by Crosstrain.\n\n'
        f"Input: float32 of the shape (batch, {sizes}), {order},\n{scaled}.\n"
        f'Output: logits of the shape (batch, {model.classes}), without softmax.\n"""\n'
    )


def constants(model: plain.Model, shape: plain.Shape, divisor: float | None) -> str:
    """The same facts for programs."""
    stated = "" if divisor is None else f"DIVISOR = {divisor!r}\n"
    return f"INPUT_SHAPE = {tuple(shape)!r}\nCLASSES = {model.classes}\n{stated}"


def pool_windows(layer: plain.Pool, shape: plain.Shape) -> tuple[tuple[int, ...], list[list[int]]]:
    """How a pool over ``shape`` (C, spatial...) becomes one with explicit padding, rounding down.

    Returns the padding at the end that the last window reaches, and per dimension the number of elements that
    each window of an average counts: those inside input and padding, or the input alone unless
    ``count_include_pad``.
    """
    ends, lengths = [], []
    counts = plain.output_shape(layer, shape)[1:]
    for size, count, kernel, stride, begin, end in zip(
        shape[1:], counts, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end, strict=True
    ):
        ends.append(max((count - 1) * stride + kernel - size - begin, 0))
        low, high = (-begin, size + end) if layer.count_include_pad else (0, size)
        firsts = [index * stride - begin for index in range(count)]
        lengths.append([min(first + kernel, high) - max(first, low) for first in firsts])
    return tuple(ends), lengths


def uneven(layer: plain.Pool, lengths: list[list[int]]) -> bool:
    """Whether some window of an average counts other than all elements of the kernel."""
    return any(length != size for row, size in zip(lengths, layer.kernel, strict=True) for length in row)
