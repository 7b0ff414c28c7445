"""Translation between canonical arrays (channels first) and TensorFlow's (channels last), in NumPy.

Kernels: OIHW to HWIO, OIL to LIO. Dense weights: (out, in) to (in, out). Activations: NCHW to NHWC.
TensorFlow flattens in the order H, W, C. Where a dense layer follows (perhaps after a ReLU), the rows of its
weight are permuted once, here, so that no step pays for it; anywhere else the network transposes
before it flattens.
"""

from typing import Dict, Set, Tuple

import numpy as np

from crosstrain_service.model import Convolution, Dense, Flatten, Model, Relu, Shape


class Layout:
    """Where each tensor of ``model`` differs from canonical layout."""

    def __init__(self, model: Model) -> None:
        self._kinds = {layer.name: layer for layer in model.layers}
        #: Flatten layers before which the network must transpose to C, H, W.
        self.transposed: Set[str] = set()
        # By layer: shape (C, spatial...) of the feature map whose values come in the order spatial..., C.
        self._rows: Dict[str, Shape] = {}
        self._outputs: Dict[str, Shape] = {}
        inputs = model.input_shapes()
        for index, layer in enumerate(model.layers):
            if isinstance(layer, Flatten):
                self._plan_flatten(model, index, inputs[layer.name])

    def _plan_flatten(self, model: Model, index: int, shape: Shape) -> None:
        if len(shape) == 1 or shape[0] == 1 or int(np.prod(shape[1:])) == 1:
            return
        names = [model.layers[index].name]
        for layer in model.layers[index + 1:]:
            if isinstance(layer, Dense):
                self._rows[layer.name] = shape
                self._outputs.update((name, shape) for name in names)
                return
            if not isinstance(layer, Relu):
                break
            names.append(layer.name)
        self.transposed.add(model.layers[index].name)

    def to_framework(self, parameter: str, value: np.ndarray) -> np.ndarray:
        """A parameter, its gradient or its optimizer state from canonical layout."""
        layer, part = self._split(parameter)
        if part != "weight":
            return value
        if isinstance(layer, Convolution):
            return np.ascontiguousarray(np.moveaxis(value, (1, 0), (-2, -1)))
        shape = self._rows.get(layer.name)
        if shape is None:
            return np.ascontiguousarray(value.T)
        rows = np.moveaxis(value.reshape((-1,) + shape), (1, 0), (-2, -1))
        return np.ascontiguousarray(rows.reshape(-1, value.shape[0]))

    def to_canonical(self, parameter: str, value: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`to_framework`; always a copy."""
        layer, part = self._split(parameter)
        if part != "weight":
            return np.array(value)
        if isinstance(layer, Convolution):
            return np.array(np.moveaxis(value, (-2, -1), (1, 0)), order="C")
        shape = self._rows.get(layer.name)
        if shape is None:
            return np.array(value.T, order="C")
        rows = np.moveaxis(value.reshape(shape[1:] + (shape[0], -1)), (-2, -1), (1, 0))
        return np.array(rows.reshape(value.shape[1], -1), order="C")

    def output_to_canonical(self, layer: str, value: np.ndarray) -> np.ndarray:
        """A layer's output or the gradient of it, (B, spatial..., C) or (B, F), in canonical layout; a copy."""
        shape = self._outputs.get(layer)
        if shape is not None:
            value = value.reshape((-1,) + shape[1:] + shape[:1])
            return np.array(np.moveaxis(value, -1, 1), order="C").reshape(len(value), -1)
        return np.array(np.moveaxis(value, -1, 1), order="C")

    def _split(self, parameter: str) -> Tuple[object, str]:
        name, part = parameter.rsplit(".", 1)
        return self._kinds[name], part
