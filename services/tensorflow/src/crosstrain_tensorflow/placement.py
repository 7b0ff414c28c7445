"""Tensor and pipeline parallel training by explicit device placement, in one process.

Layers are placed on the devices of pipeline stages; a convolution or dense layer is cut by its output channels among
the tensor devices of its stage, and their outputs are concatenated. Every layer is differentiated by itself, so that
its backward pass runs where its forward pass ran; micro-batches depend on one another only through the sums of
gradients, and TensorFlow runs those on different devices at the same time.
"""

from typing import Any, Dict, List, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.model import Convolution, Dense, Model
from crosstrain_service.parallel.shares import share_sizes
from crosstrain_service.training import Execution

#: Between a parameter's name and the number of its part.
PART = "#"


class Placement:
    """Where each layer and each part of a parameter lies."""

    def __init__(self, model: Model, execution: Execution) -> None:
        parallel = execution.parallel
        self._kind = "/GPU:%d" if execution.device == "cuda" else "/CPU:%d"
        self._tensor = parallel.tensor
        stages = _stages(model, parallel.pipeline)
        self._stage = {layer.name: stage for layer, stage in zip(model.layers, stages)}
        self._outputs = {layer.name: layer.out_channels if isinstance(layer, Convolution) else layer.units
                         for layer in model.layers_of(Convolution) + model.layers_of(Dense)}
        self.micro_batches = (parallel.micro_batches or parallel.pipeline) if parallel.pipeline > 1 else 1

    def devices(self, layer: str) -> List[str]:
        """One device for each part of a layer; the first is also that of everything that is not cut."""
        first = self._stage[layer] * self._tensor
        return [self._kind % (first + index) for index in range(len(self.sizes(layer)) or 1)]

    def sizes(self, layer: str) -> List[int]:
        """Output channels of each part; nothing for a layer that is not cut."""
        outputs = self._outputs.get(layer, 0)
        return [size for size in share_sizes(outputs, self._tensor) if size] if self._tensor > 1 else []

    def cut(self, parameter: str, value: Any) -> Dict[str, Tuple[str, Any]]:
        """Parts of a parameter, its gradient or state in TensorFlow's layout, by name with their device."""
        layer = parameter.rsplit(".", 1)[0]
        devices, sizes = self.devices(layer), self.sizes(layer)
        if len(sizes) < 2:
            return {parameter: (devices[0], value)}
        found, start = {}, 0
        for index, size in enumerate(sizes):
            found["%s%s%d" % (parameter, PART, index)] = (devices[index], value[..., start:start + size])
            start += size
        return found


def _stages(model: Model, count: int) -> List[int]:
    """Stage of each layer: cut before layers with parameters, so that multiplications are spread evenly."""
    shapes, parameters = model.output_shapes(), model.parameter_shapes()
    costs = []
    for layer in model.layers:
        cost = 0
        if layer.name + ".weight" in parameters:
            cost = _product(parameters[layer.name + ".weight"]) * _product(shapes[layer.name][1:])
        costs.append(cost)
    total, done, stage, found = float(sum(costs)), 0.0, 0, []
    left = sum(cost > 0 for cost in costs)
    for cost in costs:
        if cost and found and stage < count - 1:
            # The middle of the layer decides; what is left must fill the other stages.
            if (done + cost / 2) * count >= total * (stage + 1) or left <= count - 1 - stage:
                stage += 1
        found.append(stage)
        done += cost
        left -= cost > 0
    return found


def differentiate(network: Any, placement: Placement, run: Any, x: tf.Tensor, loss_of: Any,
                  parameters: Dict[str, tf.Variable]) -> Tuple[tf.Tensor, Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """Loss, and its gradients by layers' outputs and by parameters.

    ``loss_of`` gives from logits the loss to report and the one to differentiate. ``run.outputs`` is filled.
    """
    y = network.entry(x)
    passes = []
    for stage in network.stages:
        devices = placement.devices(stage.name)
        pieces = []
        for device, piece in zip(devices, stage.pieces):
            with tf.device(device), tf.GradientTape() as tape:
                tape.watch(y)
                output = piece.run(y, run)
            pieces.append((device, tape, output, [name for name in piece.parameters]))
        passes.append((stage.name, y, pieces))
        with tf.device(devices[0]):
            y = pieces[0][2] if len(pieces) == 1 else tf.concat([piece[2] for piece in pieces], -1)
        run.outputs[stage.name] = y
    last = placement.devices(network.stages[-1].name)[0]
    with tf.device(last):
        with tf.GradientTape() as tape:
            tape.watch(y)
            loss, total = loss_of(network.logits(y))
        upstream = tape.gradient(total, y)
    by_output: Dict[str, tf.Tensor] = {}
    by_parameter: Dict[str, tf.Tensor] = {}
    for name, before, pieces in reversed(passes):
        by_output[name] = upstream
        found, start = [], 0
        for device, tape, output, names in pieces:
            with tf.device(device):
                size = output.shape[-1]
                part = upstream if len(pieces) == 1 else upstream[..., start:start + size]
                start += size
                gradients = tape.gradient(output, [before] + [parameters[item] for item in names],
                                          output_gradients=part)
            found.append(gradients[0])
            by_parameter.update(zip(names, gradients[1:]))
        with tf.device(placement.devices(name)[0]):
            upstream = found[0] if len(found) == 1 else tf.add_n(found)
    return loss, by_output, by_parameter


def _product(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def joined(parts: Dict[str, Any]) -> Dict[str, Any]:
    """Arrays in TensorFlow's layout by canonical names from those of parts; "<parameter>#<part>.<slot>" as well."""
    found: Dict[str, List[Any]] = {}
    for name, value in parts.items():
        before, part, after = name.partition(PART)
        found.setdefault(before + after.lstrip("0123456789") if part else name, []).append(value)
    return {name: values[0] if len(values) == 1 else np.concatenate(values, -1) for name, values in found.items()}
