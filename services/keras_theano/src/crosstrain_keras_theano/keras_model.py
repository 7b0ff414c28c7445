"""A Keras model of a network, in canonical or native semantics.

Canonical: Keras's convolution and dense layers; ReLU, pooling, dropout by given masks and batch norm as
layers of our own (:mod:`.keras_layers`); the model ends in logits. The network is applied a second time for
evaluation where dropout or batch norm make a difference, with the same variables.

Native: Keras's layers as its users write them (activation ReLU, MaxPooling, Dropout, BatchNormalization,
softmax at the end), under Keras's learning phase. Its ``Flatten`` permutes ``channels_first`` data to H, W,
C, so features stay in that order up to the next dense layer. Padding that Keras cannot express, ceil rounding
and local response normalisation are Theano's operations in a layer of our own.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Optional

import numpy as np

from crosstrain_service import model as spec
from crosstrain_service.training import Execution, Training

from . import device  # noqa: F401  prepares Theano's compile directory

# isort: split
import keras
from keras import backend as K

from . import operations
from .keras_layers import BatchNormalization, Convolution2D, Expression, ones, zeros
from .model import DenseLayout, FeatureLayout, KernelLayout, Layout, Network, Stored
from .ranks import Team

Variable = Any

#: A native batch norm's constants where the model leaves them open (Keras's own).
_DEFAULT_EPSILON, _DEFAULT_MOMENTUM = 1e-3, 0.99


class KerasNetwork(Network):
    """The network's variables, and the Keras model that trains it (``model``, not compiled)."""

    def __init__(
        self, model: spec.Model, training: Training, execution: Execution, team: Optional[Team] = None
    ) -> None:
        super().__init__()
        self._team = team
        self._spec = model
        self._native = execution.native
        self._decay = training.weight_decay
        self._seed = training.seed
        self._inputs = model.input_shapes()
        self._shapes = model.output_shapes()
        self._layers: Dict[str, List[Any]] = OrderedDict()
        self._order = Layout()
        self.x = keras.layers.Input(model.input_shape)
        for layer in model.layers_of(spec.Dropout) if not self._native else ():
            self.masks[layer.name] = keras.layers.Input(self._inputs[layer.name])
        final = self._train_pass()
        self.model = keras.models.Model([self.x] + list(self.masks.values()), final)
        self._evaluation_pass()

    def _train_pass(self) -> Variable:
        tensor = self.x
        for layer in self._spec.layers:
            self._layers[layer.name] = self._build(layer)
            if layer.name in self.masks:
                tensor = self._layers[layer.name][0]([tensor, self.masks[layer.name]])
            else:
                for item in self._layers[layer.name]:
                    tensor = item(tensor)
            self.outputs[layer.name] = (tensor, self._order)
            self._store(layer)
        self.logits = tensor
        return keras.layers.Activation("softmax")(tensor) if self._native else tensor

    def _evaluation_pass(self) -> None:
        """Sets ``logits``, ``phase`` and ``moments``; the training graph serves where nothing depends on the
        mode.
        """
        depends = self._spec.layers_of(spec.BatchNorm) + self._spec.layers_of(spec.Dropout)
        if not depends:
            return
        if self._native:
            self.phase = K.learning_phase()
            return
        self.logits = self._again(statistics=False)
        if self._spec.layers_of(spec.BatchNorm):
            self._again(statistics=True)

    def _again(self, statistics: bool) -> Variable:
        """Applies the layers once more, dropout left out; with ``statistics`` batch norm uses and notes
        moments.
        """
        tensor = self.x
        for layer in self._spec.layers:
            if isinstance(layer, spec.Dropout):
                continue
            if isinstance(layer, spec.BatchNorm):
                if statistics:
                    self.moments[layer.name] = operations.batch_moments(tensor) + (Layout(),)
                tensor = self._layers[layer.name][0](tensor, training=False, alone=statistics)
                continue
            for item in self._layers[layer.name]:
                tensor = item(tensor)
        return tensor

    def _build(self, layer: spec.Layer) -> List[Any]:
        """The Keras layers, one after the other, that make one layer of the specification."""
        shape, result = self._inputs[layer.name], self._shapes[layer.name]
        if isinstance(layer, spec.Convolution):
            return self._convolution(layer, shape, result)
        if isinstance(layer, spec.Pool):
            return [self._pool(layer, shape, result)]
        if isinstance(layer, spec.Dense):
            return [keras.layers.Dense(layer.units, use_bias=layer.bias, **self._variables("kernel", "bias"))]
        if isinstance(layer, spec.Relu):
            return [keras.layers.Activation("relu") if self._native else Expression(operations.relu, result)]
        if isinstance(layer, spec.Flatten):
            return [self._flatten(shape)]
        if isinstance(layer, spec.Dropout):
            if self._native:
                # Keras draws an unrepeatable seed where none is given.
                return [keras.layers.Dropout(layer.rate, seed=(self._seed + len(self._layers)) % (1 << 31) or 1)]
            return [Expression(lambda pair: pair[0] * pair[1], result)]
        if isinstance(layer, spec.BatchNorm):
            return [self._batch_norm(layer)]
        if isinstance(layer, spec.LocalResponseNorm):
            return [Expression(lambda x: operations.local_response_norm(x, layer, shape[0]), result)]
        return [self._zero_padding(tuple(zip(layer.begin, layer.end)), result)]

    def _convolution(self, layer: spec.Convolution, shape: Any, result: Any) -> List[Any]:
        pads = tuple(zip(layer.pad_begin, layer.pad_end))
        options = dict(
            filters=layer.out_channels,
            kernel_size=layer.kernel,
            strides=layer.stride,
            use_bias=layer.bias,
            data_format="channels_first",
            **self._variables("kernel", "bias"),
        )
        kind = keras.layers.Conv1D if len(layer.kernel) == 1 else keras.layers.Conv2D
        if not any(before or after for before, after in pads):
            return [kind(padding="valid", **options)]
        # Keras's "same" on Theano pads kernel // 2 on both sides, which even kernels make too long.
        if all(before == after == size // 2 and size % 2 for (before, after), size in zip(pads, layer.kernel)):
            return [kind(padding="same", **options)]
        if not self._native and len(layer.kernel) == 2:
            return [Convolution2D(pads, shape, result, **options)]
        padded = (shape[0],) + tuple(size + before + after for size, (before, after) in zip(shape[1:], pads))
        return [self._zero_padding(pads, padded), kind(padding="valid", **options)]

    def _zero_padding(self, pads: Any, result: Any) -> Any:
        if len(pads) == 2:
            return keras.layers.ZeroPadding2D(pads, data_format="channels_first")
        # Keras pads (B, L, C) only.
        return Expression(lambda x: operations.pad(x, pads), result)

    def _pool(self, layer: spec.Pool, shape: Any, result: Any) -> Any:
        pads = operations.pool_pads(layer, shape)
        padded = any(before or after for before, after in pads)
        if layer.kind == "average" and padded:
            return Expression(lambda x: operations.average_pool(x, layer, shape), result)
        if layer.kind == "max" and not self._native:
            return Expression(lambda x: operations.max_pool(x, layer, shape), result)
        if padded:
            return Expression(lambda x: operations.theano_max_pool(x, layer, shape), result)
        name = {"max": "MaxPooling%dD", "average": "AveragePooling%dD"}[layer.kind] % len(layer.kernel)
        return getattr(keras.layers, name)(layer.kernel, layer.stride, data_format="channels_first")

    def _flatten(self, shape: Any) -> Any:
        if len(shape) == 1:
            # Keras's Flatten refuses what is flat.
            return Expression(lambda x: x, shape)
        if not self._native:
            # Under this name Keras leaves the order as it is.
            return keras.layers.Flatten(data_format="channels_last")
        size = int(np.prod(shape))
        axes = tuple(range(1, len(shape))) + (0,)
        self._order = FeatureLayout(np.arange(size).reshape(shape).transpose(axes).ravel())
        return keras.layers.Flatten()

    def _batch_norm(self, layer: spec.BatchNorm) -> Any:
        if not self._native:
            moments = operations.batch_moments if self._team is None else self._team.moments
            return BatchNormalization(layer.epsilon, moments)
        return keras.layers.BatchNormalization(
            axis=1,
            epsilon=_DEFAULT_EPSILON if layer.epsilon is None else layer.epsilon,
            momentum=_DEFAULT_MOMENTUM if layer.momentum is None else layer.momentum,
            moving_mean_initializer=zeros,
            moving_variance_initializer=ones,
            **self._variables("gamma", "beta", biases=True),
        )

    def _variables(self, *parts: str, **options: bool) -> Dict[str, Any]:
        """Arguments for a layer's variables: initial values, which are loaded later, and Keras's own l2 (rate
        times the sum of squares) where native semantics decay weights.
        """
        found: Dict[str, Any] = {part + "_initializer": ones if part == "gamma" else zeros for part in parts}
        decay = self._decay
        if not self._native or decay is None or not decay.rate or decay.decoupled:
            return found
        wanted = parts if decay.include_biases else () if options.get("biases") else parts[:1]
        found.update((part + "_regularizer", keras.regularizers.l2(decay.rate)) for part in wanted)
        return found

    def _store(self, layer: spec.Layer) -> None:
        """Notes the variables of a layer that has been applied."""
        built = self._layers[layer.name][-1]
        if isinstance(layer, spec.Convolution):
            # (O, I, H, W) to (H, W, I, O).
            spatial = tuple(range(2, 2 + len(layer.kernel)))
            self._keep(layer, built.kernel, KernelLayout(spatial + (1, 0)), built.bias)
        elif isinstance(layer, spec.Dense):
            self._keep(layer, built.kernel, DenseLayout(self._order), built.bias)
            self._order = Layout()
            self.outputs[layer.name] = (self.outputs[layer.name][0], self._order)
        elif isinstance(layer, spec.BatchNorm):
            for part, variable in (("gamma", built.gamma), ("beta", built.beta)):
                self.parameters["%s.%s" % (layer.name, part)] = Stored(variable, self._order)
            for part, variable in (
                ("running_mean", built.moving_mean),
                ("running_var", built.moving_variance),
            ):
                self.statistics["%s.%s" % (layer.name, part)] = Stored(variable, self._order)

    def _keep(self, layer: Any, kernel: Variable, layout: Layout, bias: Optional[Variable]) -> None:
        self.parameters[layer.name + ".weight"] = Stored(kernel, layout)
        if layer.bias:
            self.parameters[layer.name + ".bias"] = Stored(bias, Layout())
