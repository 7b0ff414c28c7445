"""Where drift is born: the first decision (sign of a ReLU, choice of a pool) that two runs take differently.

Until then their difference stays near rounding; a flip makes it jump. A flip is explained by rounding if
the values that compete lie closer together, in both runs, than the rounding bound of the layer that
computed them. An exact tie of the reference that the engine decides otherwise counts by the engine's own
gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain.compare.certificate.comparison import NotComparable, group
from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import FLOAT32, Arithmetic, Arrays, Bounded
from crosstrain_reference import Dropout, Flatten, Layer, Network, Pool, Relu, decision_flips


@dataclass(frozen=True)
class Flip:
    """The flips of one layer at one step; ``ratio`` is the largest gap over its bound, at most 1 if
    rounding.
    """

    step: int
    layer: str
    count: int
    decisions: int
    coordinates: tuple[int, ...]
    gap: float
    reference_gap: float
    bound: float
    ratio: float

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains every flip of the layer."""
        return self.ratio <= 1.0

    def __str__(self) -> str:
        place = ", ".join(map(str, self.coordinates))
        return (
            f"step {self.step}, layer {self.layer}: {self.count} of {self.decisions} decisions differ; "
            f"the widest, at ({place}), has the gap {self.gap:.2e} ({self.reference_gap:.2e} in the "
            f"reference), rounding bound {self.bound:.2e}"
        )


def first_flip_of_runs(
    network: Network, engine: Mapping[int, Arrays], reference: Mapping[int, Arrays]
) -> Flip | None:
    """The first flip over the training steps that two runs both recorded; None if every decision agrees.

    Both map steps to recorded tensors by name (``input``, ``output/<layer>``, ``parameter/<name>``,
    ``mask/<layer>``); the evaluation (step -1) is left out.

    Raises:
        NotComparable: no step in common, an output missing, of another shape or no floating-point type, or
            steps whose batches are not bitwise the same.
    """
    steps = sorted(step for step in engine.keys() & reference.keys() if step >= 0)
    if not steps:
        raise NotComparable("no step is recorded in both runs")
    for step in steps:
        mine, other = engine[step], reference[step]
        _comparable(network, step, mine, other)
        found = first_flip(
            network, step, mine["input"], group(mine, "parameter"), group(mine, "output"), group(other, "output"),
            bounds.arithmetic_of(mine["input"].dtype), group(mine, "mask"),
        )  # fmt: skip
        if found is not None:
            return found
    return None


def _comparable(network: Network, step: int, engine: Arrays, reference: Arrays) -> None:
    for name in ("input", *(f"output/{layer.name}" for layer in network.layers)):
        for record, whose in ((engine, "the engine"), (reference, "the reference")):
            if name not in record:
                raise NotComparable(f"step {step}: {name} of {whose} is not recorded")
            if record[name].dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
                raise NotComparable(f"step {step}: {name} of {whose} has the type {record[name].dtype}")
        if engine[name].shape != reference[name].shape:
            raise NotComparable(f"step {step}: {name} has the shapes {engine[name].shape} and {reference[name].shape}")
    if not np.array_equal(engine["input"].astype(np.float64), reference["input"].astype(np.float64)):
        raise NotComparable(f"step {step}: the runs recorded different batches")


def first_flip(
    network: Network,
    step: int,
    x: NDArray[Any],
    parameters: Arrays,
    outputs: Arrays,
    reference: Arrays,
    arithmetic: Arithmetic = FLOAT32,
    masks: Mapping[str, NDArray[Any]] | None = None,
) -> Flip | None:
    """The first layer of a step whose decisions differ; None if all agree.

    ``x``, ``parameters``, ``outputs`` and the scaled dropout ``masks`` are the engine's, ``reference`` holds
    the reference's outputs of the same batch in its own run; ``arithmetic`` is the engine's.
    """
    wide = {name: arithmetic.wide(value) for name, value in parameters.items()}
    engine = {name: arithmetic.wide(value) for name, value in outputs.items()}
    reference = {name: arithmetic.wide(value) for name, value in reference.items()}
    scales = {name: arithmetic.wide(value) for name, value in (masks or {}).items()}
    entry = arithmetic.wide(x)
    flips = decision_flips(network.decisions(entry, engine), network.decisions(entry, reference))
    error = np.zeros_like(entry)
    before, reference_before = entry, entry
    for layer in network.layers:
        found = flips.get(layer.name)
        if found is not None and len(found):
            return _describe(layer, step, found, before, reference_before, error)
        error = _own_error(layer, before, error, wide, engine[layer.name].shape, arithmetic, scales.get(layer.name))
        before, reference_before = engine[layer.name], reference[layer.name]
    return None


def _own_error(
    layer: Layer,
    before: NDArray[Any],
    error: NDArray[Any],
    params: Arrays,
    shape: tuple[int, ...],
    arithmetic: Arithmetic,
    mask: NDArray[Any] | None,
) -> NDArray[Any]:
    """Rounding bound of a layer's output: its own where it computes, that of its input where it only
    chooses.
    """
    if isinstance(layer, (Relu, Flatten)) or (isinstance(layer, Pool) and layer.kind == "max"):
        return error if isinstance(layer, Relu) else np.asarray(layer.forward(error, params)[0])
    if isinstance(layer, Dropout):
        return error / (1 - layer.rate) if mask is None else error * mask
    piece = bounds.forward(layer, Bounded(before), params, arithmetic)
    return np.asarray(piece.output.error).reshape(shape)


def _describe(
    layer: Layer,
    step: int,
    found: NDArray[Any],
    before: NDArray[Any],
    reference_before: NDArray[Any],
    error: NDArray[Any],
) -> Flip:
    at = tuple(found.T)
    if isinstance(layer, Relu):
        gap, reference_gap, bound = np.abs(before[at]), np.abs(reference_before[at]), error[at]
        decisions = before.size
    else:
        chosen, reference_chosen = _choices(layer, before), _choices(layer, reference_before)
        flat = (*at[:2],)

        def values(array: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(array.reshape(*array.shape[:2], -1)[(*flat, index[at])])

        gap = values(before, chosen) - values(before, reference_chosen)
        reference_gap = values(reference_before, reference_chosen) - values(reference_before, chosen)
        bound = values(error, chosen) + values(error, reference_chosen)
        decisions = chosen.size
    widest = np.maximum(gap, reference_gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(widest == 0, 0.0, widest / bound)
    worst = int(np.argmax(ratio))
    return Flip(
        step,
        layer.name,
        len(found),
        decisions,
        tuple(int(axis[worst]) for axis in at),
        float(gap[worst]),
        float(reference_gap[worst]),
        float(bound[worst]),
        float(ratio[worst]),
    )


def _choices(layer: Layer, before: NDArray[Any]) -> NDArray[Any]:
    indices = layer.forward(before, {})[1].indices
    if indices is None:
        raise ValueError(f"layer {layer.name} takes no decisions")
    return indices


def explains(flip: Flip | None, departed_step: int) -> bool:
    """Whether a flip explains a departure: its gap is within the rounding bound, and it is not later."""
    return flip is not None and flip.is_rounding and 0 <= flip.step <= departed_step
