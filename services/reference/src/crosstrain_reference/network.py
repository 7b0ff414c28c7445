"""A chain of layers with forward and backward passes."""

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from .layers import Arrays, Layer, Pool, Relu, Shape, Statistics, Trace
from .losses import cross_entropy, cross_entropy_gradient


class Forward(NamedTuple):
    """Every layer's output and trace, by layer name in the order of the chain."""

    x: np.ndarray
    outputs: Arrays
    traces: Dict[str, Trace]

    @property
    def statistics(self) -> Dict[str, Statistics]:
        """Mean and biased variance of every batch norm layer."""
        return {name: t.statistics for name, t in self.traces.items() if t.statistics is not None}


class Backward(NamedTuple):
    """Gradients with respect to every layer's output, the network's input and every parameter.

    The gradient with respect to a layer's input is that of the output of the layer before it.
    """

    outputs: Arrays
    x: np.ndarray
    params: Arrays


class LossAndGradients(NamedTuple):
    """One training step short of the update; ``loss`` is the mean over the batch."""

    loss: np.floating
    gradients: Arrays
    forward: Forward
    backward: Backward


class Network:
    """Layers applied one after another.  Holds no parameters."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        """Raises ValueError for an empty chain or a repeated name."""
        self.layers: List[Layer] = list(layers)
        names = [layer.name for layer in self.layers]
        if not names:
            raise ValueError("network: no layers")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"network: layer names used more than once: {repeated}")

    def layer(self, name: str) -> Layer:
        """Return the layer of that name; KeyError if there is none."""
        return {layer.name: layer for layer in self.layers}[name]

    def output_shapes(self, input_shape: Shape) -> Dict[str, Shape]:
        """Return the shape of one sample after every layer; ``input_shape`` is ``(C, H, W)`` or ``(C, L)``."""
        shapes = {}
        shape = tuple(input_shape)
        for layer in self.layers:
            shape = shapes[layer.name] = layer.output_shape(shape)
        return shapes

    def parameter_shapes(self, input_shape: Shape) -> Dict[str, Shape]:
        """Return the shape of every parameter, in the order of the layers."""
        shapes: Dict[str, Shape] = {}
        shape = tuple(input_shape)
        for layer in self.layers:
            shapes.update(layer.parameter_shapes(shape))
            shape = layer.output_shape(shape)
        return shapes

    def forward(
        self,
        x: np.ndarray,
        params: Mapping[str, np.ndarray],
        masks: Optional[Mapping[str, np.ndarray]] = None,
        train: bool = True,
        statistics: Optional[Mapping[str, Statistics]] = None,
    ) -> Forward:
        """Run all layers on ``x`` ``(N, C, spatial...)``.

        ``masks`` gives every Dropout layer its scaled mask in training; ``statistics`` gives every BatchNorm
        layer mean and variance in evaluation.
        """
        outputs: Arrays = {}
        traces: Dict[str, Trace] = {}
        y = x
        for layer in self.layers:
            mask = (masks or {}).get(layer.name)
            given = (statistics or {}).get(layer.name)
            y, traces[layer.name] = layer.forward(y, params, train, mask, given)
            outputs[layer.name] = y
        return Forward(x, outputs, traces)

    def backward(self, dy: np.ndarray, forward: Forward, params: Mapping[str, np.ndarray]) -> Backward:
        """Propagate ``dy``, the gradient with respect to the last layer's output."""
        outputs: Arrays = {}
        gradients: Arrays = {}
        for layer in reversed(self.layers):
            outputs[layer.name] = dy
            dy, own = layer.backward(dy, forward.traces[layer.name], params)
            gradients.update(own)
        ordered = {name: gradients[name] for name in params if name in gradients}
        return Backward({layer.name: outputs[layer.name] for layer in self.layers}, dy, ordered)

    def loss_and_gradients(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        params: Mapping[str, np.ndarray],
        masks: Optional[Mapping[str, np.ndarray]] = None,
    ) -> LossAndGradients:
        """Return the mean cross-entropy of the last layer's output, taken as logits, and all gradients."""
        forward = self.forward(x, params, masks, train=True)
        logits = forward.outputs[self.layers[-1].name]
        backward = self.backward(cross_entropy_gradient(logits, labels), forward, params)
        return LossAndGradients(cross_entropy(logits, labels), backward.params, forward, backward)

    def decisions(self, x: np.ndarray, outputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the branches taken by ReLU and max-pool layers, from outputs recorded anywhere.

        ``x`` is the network's input and ``outputs`` maps layer names to outputs; a layer is left out where its own
        output (ReLU) or its input (max pool) is missing.  ReLU layers give booleans, true where the output is
        positive; max pools give the index of the chosen element (see :func:`ops.max_pool`).
        """
        found: Arrays = {}
        before: Optional[np.ndarray] = x
        for layer in self.layers:
            own = outputs.get(layer.name)
            if isinstance(layer, Relu) and own is not None:
                found[layer.name] = own > 0
            if isinstance(layer, Pool) and layer.kind == "max" and before is not None:
                _, trace = layer.forward(before, {})
                found[layer.name] = trace.indices
            before = own
        return found


def decision_flips(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Arrays:
    """Return where two results of :meth:`Network.decisions` differ.

    Per layer that both hold, an integer array ``(flips, dimensions)`` of coordinates in the layer's output.
    """
    return {name: np.argwhere(first[name] != second[name]) for name in first if name in second}
