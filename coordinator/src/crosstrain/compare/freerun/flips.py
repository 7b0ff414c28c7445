"""Where drift is born: the first decision (sign of a ReLU, choice of a pool) that two runs take differently.

Until then their difference stays near rounding; a flip makes it jump. A flip is explained by rounding if
the values that compete lie closer together, in both runs, than the rounding bound of the layer that
computed them. An exact tie of the reference that the engine decides otherwise counts by the engine's own
gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crosstrain.compare.numerics import bounds
from crosstrain.compare.numerics.bounds import FLOAT32, Arrays, Bounded
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


def first_flip(
    network: Network, step: int, x: np.ndarray, parameters: Arrays, outputs: Arrays, reference: Arrays
) -> Flip | None:
    """The first layer of a step whose decisions differ; None if all agree.

    ``x``, ``parameters`` and ``outputs`` are the engine's, ``reference`` holds the reference's outputs of
    the same batch in its own run.
    """
    wide = {name: FLOAT32.wide(value) for name, value in parameters.items()}
    engine = {name: FLOAT32.wide(value) for name, value in outputs.items()}
    entry = FLOAT32.wide(x)
    flips = decision_flips(network.decisions(entry, engine), network.decisions(entry, reference))
    error = np.zeros_like(entry)
    before, reference_before = entry, entry
    for layer in network.layers:
        found = flips.get(layer.name)
        if found is not None and len(found):
            return _describe(layer, step, found, before, reference_before, error)
        error = _own_error(layer, before, error, wide, engine[layer.name].shape)
        before, reference_before = engine[layer.name], reference[layer.name]
    return None


def _own_error(
    layer: Layer, before: np.ndarray, error: np.ndarray, params: Arrays, shape: tuple[int, ...]
) -> np.ndarray:
    """Rounding bound of a layer's output: its own where it computes, that of its input where it only
    chooses.
    """
    if isinstance(layer, (Relu, Flatten)) or (isinstance(layer, Pool) and layer.kind == "max"):
        return layer.forward(error, params)[0] if not isinstance(layer, Relu) else error
    if isinstance(layer, Dropout):
        return error
    piece = bounds.forward(layer, Bounded(before), params, FLOAT32)
    return np.asarray(piece.output.error).reshape(shape)


def _describe(
    layer: Layer,
    step: int,
    found: np.ndarray,
    before: np.ndarray,
    reference_before: np.ndarray,
    error: np.ndarray,
) -> Flip:
    at = tuple(found.T)
    if isinstance(layer, Relu):
        gap, reference_gap, bound = np.abs(before[at]), np.abs(reference_before[at]), error[at]
        decisions = before.size
    else:
        chosen = layer.forward(before, {})[1].indices
        reference_chosen = layer.forward(reference_before, {})[1].indices
        flat = (*at[:2],)

        def values(array: np.ndarray, index: np.ndarray) -> np.ndarray:
            return array.reshape(*array.shape[:2], -1)[(*flat, index[at])]

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


def explains(flip: Flip | None, departed_step: int) -> bool:
    """Whether a flip explains a departure: its gap is within the rounding bound, and it is not later."""
    return flip is not None and flip.is_rounding and 0 <= flip.step <= departed_step
