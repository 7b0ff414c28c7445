"""What both engines share of a network: variables by canonical name, and layouts.

Theano's convolution flips its kernels, so kernels are turned by 180 degrees on the way in and out, together
with their gradients and their optimizer state. Theano stores dense weights as (in, out).
"""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

Variable = Any


class Layout:
    """How a framework lays out an array that is the same in canonical form."""

    def to_framework(self, array: np.ndarray) -> np.ndarray:
        """The array as the framework stores it (may be a view)."""
        return array

    def to_canonical(self, array: np.ndarray) -> np.ndarray:
        """The array in canonical form (may be a view)."""
        return array


class KernelLayout(Layout):
    """Kernels turned by 180 degrees, then transposed by ``axes`` (None: not transposed)."""

    def __init__(self, axes: Optional[Tuple[int, ...]] = None) -> None:
        self._axes = axes
        self._inverse = None if axes is None else tuple(int(axis) for axis in np.argsort(axes))

    def to_framework(self, array: np.ndarray) -> np.ndarray:
        turned = _turned(array)
        return turned if self._axes is None else turned.transpose(self._axes)

    def to_canonical(self, array: np.ndarray) -> np.ndarray:
        return _turned(array if self._inverse is None else array.transpose(self._inverse))


def _turned(kernel: np.ndarray) -> np.ndarray:
    return kernel[(slice(None), slice(None)) + (slice(None, None, -1),) * (kernel.ndim - 2)]


class FeatureLayout(Layout):
    """Last axis in another order: framework position i holds canonical feature ``order[i]``."""

    def __init__(self, order: np.ndarray) -> None:
        self._order = order
        self._inverse = np.argsort(order)

    def to_framework(self, array: np.ndarray) -> np.ndarray:
        return array[..., self._order]

    def to_canonical(self, array: np.ndarray) -> np.ndarray:
        return array[..., self._inverse]


class DenseLayout(Layout):
    """(out, in) stored as (in, out), the inputs in the order of ``features``."""

    def __init__(self, features: Layout) -> None:
        self._features = features

    def to_framework(self, array: np.ndarray) -> np.ndarray:
        return self._features.to_framework(array).T

    def to_canonical(self, array: np.ndarray) -> np.ndarray:
        return self._features.to_canonical(array.T)


class Stored(NamedTuple):
    """A shared variable and its layout; ``sign`` is -1 where the framework keeps the negative of the
    canonical value.
    """

    variable: Variable
    layout: Layout
    sign: int = 1

    def value(self) -> np.ndarray:
        """A copy of the value in canonical form, C-contiguous."""
        raw = self.variable.get_value(borrow=True)
        found = np.array(self.layout.to_canonical(np.asarray(raw)), order="C")
        return found if self.sign > 0 else -found

    def set(self, array: np.ndarray) -> None:
        """Sets the value from canonical form, converted to the variable's type."""
        raw = np.array(self.layout.to_framework(np.asarray(array)), dtype=self.variable.dtype, order="C")
        self.variable.set_value(raw if self.sign > 0 else -raw, borrow=True)


class Network:
    """A network's variables; filled by the builder of each framework.

    - ``x``, ``labels`` and ``masks`` (by layer, canonical semantics only): inputs of the training graph;
    - ``outputs``: every layer's output in the training graph, with its layout;
    - ``loss``: mean loss over the batch without penalties;
    - ``objective``: what the training step differentiates where that has the same value but more factors, or None;
      ``weights``: inputs of it that are 1 for every sample;
    - ``penalty``: the framework's own L2 penalty in native semantics, or None;
    - ``logits``: (B, K) in evaluation mode, a function of ``x`` and perhaps of ``phase``;
    - ``phase``: Keras's learning phase where the graphs depend on it, or None;
    - ``parameters`` and ``statistics``: shared variables by canonical name;
    - ``moments``: per batch norm layer, mean and biased variance of its input, all layers normalising by the
      batch's own and dropout off; a function of ``x`` alone.
    """

    def __init__(self) -> None:
        self.x: Variable = None
        self.labels: Variable = None
        self.masks: Dict[str, Variable] = OrderedDict()
        self.outputs: Dict[str, Tuple[Variable, Layout]] = OrderedDict()
        self.loss: Variable = None
        self.objective: Optional[Variable] = None
        self.weights: List[Variable] = []
        self.penalty: Optional[Variable] = None
        self.logits: Variable = None
        self.phase: Optional[Variable] = None
        self.parameters: Dict[str, Stored] = OrderedDict()
        self.statistics: Dict[str, Stored] = OrderedDict()
        self.moments: Dict[str, Tuple[Variable, Variable, Layout]] = OrderedDict()
