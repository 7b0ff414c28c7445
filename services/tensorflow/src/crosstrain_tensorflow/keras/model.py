"""The network as a functional Keras model, canonical layout at its inputs, channels last inside."""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
    Shape,
)
from crosstrain_service.training import Parallel, Training

from .. import native
from ..geometry import convolution_padding, pool_padding
from ..layout import Layout
from ..shares import Sum
from . import compat
from .layers import Factors, LocalResponseNormalization, Padding, ReplicaDropout, SharedBatchNorm

layers = keras.layers

#: Name of the model's data input.
INPUT = "x"
#: Name of its input for the weights of rows, where batch norm spans several replicas.
WEIGHTS = "weights"
#: What a training step calls the loss of its batch.
BATCH_LOSS = "batch_loss"
ONE_RANK = Parallel()


class Stage(NamedTuple):
    """The Keras layers that make up one canonical layer, and its mask's input name and layers if it has one."""

    name: str
    layers: List[keras.layers.Layer]
    mask: Optional[str] = None
    mask_layers: Optional[List[keras.layers.Layer]] = None


class ReportingModel(keras.Model):
    """A model whose training step also returns the loss of its batch as ``logs[BATCH_LOSS]``, if its loss has it.

    To read it after the step takes operations of their own, whose code is cold by then: 0.2 to 0.3 ms on a CPU.
    """

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Dict[str, Any]:
        """Called by Keras at the end of its training step."""
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        value = self.loss.in_step()
        if value is not None:
            logs[BATCH_LOSS] = value
        return logs


class KerasNetwork:
    """``training`` is the model to fit, ``inference`` the same layers without dropout.

    ``variables_by_name`` holds trained variables and ``running`` evaluation statistics by canonical names.
    ``mask_inputs`` maps dropout layers to inputs of ``training`` (canonical semantics only).
    """

    def __init__(self,
                 model: Model,
                 training: Training,
                 layout: Layout,
                 dtype: str,
                 is_native: bool,
                 parallel: Parallel = ONE_RANK,
                 add: Optional[Sum] = None) -> None:
        self._settings = training
        self._layout = layout
        self._dtype = dtype
        self._native = is_native
        self._parallel = parallel
        self._add = add
        #: Whether ``training`` has the input :data:`WEIGHTS`.
        self.weighted = not is_native and parallel.data > 1 and bool(model.layers_of(BatchNorm))
        self._count = 0
        self.variables_by_name: Dict[str, Any] = OrderedDict()
        self.running: Dict[str, Any] = OrderedDict()
        self.dropouts: List[keras.layers.Dropout] = []
        self.mask_inputs: Dict[str, str] = OrderedDict()
        self._entry = self._channels_last(model.input_shape)
        shapes = model.input_shapes()
        self.stages = [self._stage(layer, shapes[layer.name]) for layer in model.layers]
        self._connect(model, shapes)
        self._collect(model)

    def _connect(self, model: Model, shapes: Dict[str, Shape]) -> None:
        x = keras.Input(model.input_shape, dtype=self._dtype, name=INPUT)
        inputs = {INPUT: x}  # Keras 3 sorts the names of a plain dictionary, as tf.data does
        trained = plain = _chain(self._entry, x)
        weights = inputs[WEIGHTS] = keras.Input((), dtype=self._dtype, name=WEIGHTS) if self.weighted else None
        if weights is None:
            del inputs[WEIGHTS]
        for stage in self.stages:
            if stage.layers and isinstance(stage.layers[-1], SharedBatchNorm):
                plain = _chain(stage.layers, plain)
                trained = stage.layers[0]([trained, weights])
            elif stage.mask is None:
                shared = plain is trained
                trained = _chain(stage.layers, trained)
                plain = trained if shared else _chain(stage.layers, plain)
            else:
                self.mask_inputs[stage.name] = stage.mask
                mask = inputs[stage.mask] = keras.Input(shapes[stage.name], dtype=self._dtype, name=stage.mask)
                trained = stage.layers[0]([trained, _chain(stage.mask_layers, mask)])
        # A model with one input is called with a tensor, not with a dictionary of one.
        several = bool(self.mask_inputs) or self.weighted
        #: What ``training`` is called with.
        self.symbolic_inputs = inputs if several else x
        self.training = ReportingModel(self.symbolic_inputs, trained)
        self.inference = keras.Model(x, plain) if several else self.training

    def entry(self, x: tf.Tensor) -> tf.Tensor:
        """The input of the first layer, channels last, for ``x`` in canonical layout."""
        return _chain(self._entry, x)

    def forward(self,
                x: tf.Tensor,
                masks: Dict[str, tf.Tensor],
                training: bool,
                drop: bool = True,
                weights: Optional[tf.Tensor] = None) -> Dict[str, tf.Tensor]:
        """Output of every canonical layer, from the models' own layers called one after the other.

        ``weights`` (B,) of the rows for batch norm over several replicas; if not given, the rows are all there are.
        """
        outputs: Dict[str, tf.Tensor] = OrderedDict()
        alone = weights is None
        y = _chain(self._entry, x)
        for stage in self.stages:
            if stage.mask is not None:
                if drop:
                    y = stage.layers[0]([y, _chain(stage.mask_layers, masks[stage.name])])
            else:
                for layer in stage.layers:
                    if isinstance(layer, SharedBatchNorm):
                        if weights is None:
                            weights = tf.fill(tf.shape(y)[:1], 1 / tf.cast(tf.shape(y)[0], y.dtype))
                        layer.alone = alone
                        y = layer([y, weights] if training else y)
                        layer.alone = False
                    elif isinstance(layer, layers.BatchNormalization):
                        y = layer(y, training=training)
                    elif isinstance(layer, layers.Dropout):
                        y = layer(y, training=training and drop)
                    else:
                        y = layer(y)
            outputs[stage.name] = y
        return outputs

    def _stage(self, layer: Layer, shape: Shape) -> Stage:
        if isinstance(layer, Dropout) and not self._native:
            if layer.rate == 0:
                return Stage(layer.name, [])
            self._count += 1
            return Stage(layer.name, [layers.Multiply(**self._options())], "mask%d" % self._count,
                         self._channels_last(shape))
        return Stage(layer.name, self._layers(layer, shape))

    def _layers(self, layer: Layer, shape: Shape) -> List[keras.layers.Layer]:
        if isinstance(layer, Convolution):
            padding = convolution_padding(layer, shape[1:])
            kind = layers.Conv1D if len(layer.kernel) == 1 else layers.Conv2D
            made = kind(layer.out_channels, layer.kernel, strides=layer.stride, padding=padding.mode.lower(),
                        use_bias=layer.bias, **self._weight_options(layer))
            return self._padding(padding.pads, 0.0) + [made]
        if isinstance(layer, Pool):
            return self._pool(layer, shape)
        if isinstance(layer, Dense):
            return [layers.Dense(layer.units, use_bias=layer.bias, **self._weight_options(layer))]
        if isinstance(layer, Relu):
            return [layers.Activation("relu", **self._options())]
        if isinstance(layer, Flatten):
            order: List[keras.layers.Layer] = []
            if layer.name in self._layout.transposed:
                order.append(layers.Permute((len(shape),) + tuple(range(1, len(shape))), **self._options()))
            return order + [layers.Flatten(**self._options())]
        if isinstance(layer, Dropout):
            seed = (self._settings.seed + len(self.dropouts)) & 0x7FFFFFFF
            kind = ReplicaDropout if compat.KERAS_3 and self._parallel.data > 1 else layers.Dropout
            made = kind(layer.rate, seed=seed, **dict(self._options(), **compat.dropout_options()))
            self.dropouts.append(made)
            return [made]
        if isinstance(layer, BatchNorm):
            return [self._batch_norm(layer)]
        if isinstance(layer, LocalResponseNorm):
            return [LocalResponseNormalization(layer.size, layer.alpha_sum, layer.beta, layer.k,
                                               layer.region == "within_channel", **self._options())]
        if isinstance(layer, Pad):
            pads = tuple(zip(layer.begin, layer.end))
            kind = layers.ZeroPadding1D if len(pads) == 1 else layers.ZeroPadding2D
            return [kind(pads[0] if len(pads) == 1 else pads, **self._options())]
        raise TypeError("layer %r of unknown kind %s" % (layer.name, type(layer).__name__))

    def _pool(self, layer: Pool, shape: Shape) -> List[keras.layers.Layer]:
        padding = pool_padding(layer, shape[1:])
        kinds = {
            ("max", 1): layers.MaxPooling1D, ("max", 2): layers.MaxPooling2D,
            ("average", 1): layers.AveragePooling1D, ("average", 2): layers.AveragePooling2D,
        }
        dims = len(layer.kernel)
        size, stride = (layer.kernel, layer.stride) if dims == 2 else (layer.kernel[0], layer.stride[0])
        made = kinds[layer.kind, dims](size, strides=stride, padding=padding.mode.lower(), **self._options())
        found = self._padding(padding.pads, -np.inf if layer.kind == "max" else 0.0) + [made]
        if padding.factors is not None:
            found.append(Factors(padding.factors, **self._options()))
        return found

    def _batch_norm(self, layer: BatchNorm) -> keras.layers.Layer:
        options = self._options()
        if self.weighted:
            return SharedBatchNorm(layer.epsilon, self._add, **options)
        if self._parallel.data > 1 and not self._parallel.local_batch_norm:
            options["synchronized"] = True
        if layer.epsilon is not None:
            options.update(compat.batch_norm_options(layer.epsilon) if not options.get("synchronized") else {},
                           epsilon=layer.epsilon)
        if layer.momentum is not None:
            options["momentum"] = layer.momentum
        return layers.BatchNormalization(
            gamma_regularizer=self._regularizer(layer.name + ".gamma"),
            beta_regularizer=self._regularizer(layer.name + ".beta"), **options)

    def _padding(self, pads: Any, value: float) -> List[keras.layers.Layer]:
        return [] if pads is None else [Padding(pads, value, **self._options())]

    def _channels_last(self, shape: Shape) -> List[keras.layers.Layer]:
        if len(shape) == 1:
            return []
        target = tuple(shape[1:]) + (shape[0],)
        if shape[0] == 1 or int(np.prod(shape[1:])) == 1:
            return [layers.Reshape(target, **self._options())]
        return [layers.Permute(tuple(range(2, len(shape) + 1)) + (1,), **self._options())]

    def _options(self) -> Dict[str, Any]:
        return {"dtype": self._dtype}

    def _weight_options(self, layer: Layer) -> Dict[str, Any]:
        # Zeros, since initial tensors come from the platform and determinism forbids unseeded drawing.
        return dict(
            self._options(), kernel_initializer="zeros", bias_initializer="zeros",
            kernel_regularizer=self._regularizer(layer.name + ".weight"),
            bias_regularizer=self._regularizer(layer.name + ".bias"),
        )

    def _regularizer(self, parameter: str) -> Any:
        if not self._native or not native.l2_rate(self._settings):
            return None
        decay = self._settings.weight_decay
        return keras.regularizers.L2(decay.rate) if decay.applies_to(parameter) else None

    def _collect(self, model: Model) -> None:
        for layer, stage in zip(model.layers, self.stages):
            if isinstance(layer, (Convolution, Dense)):
                self.variables_by_name[layer.name + ".weight"] = stage.layers[-1].kernel
                if layer.bias:
                    self.variables_by_name[layer.name + ".bias"] = stage.layers[-1].bias
            elif isinstance(layer, BatchNorm):
                made = stage.layers[-1]
                self.variables_by_name[layer.name + ".gamma"] = made.gamma
                self.variables_by_name[layer.name + ".beta"] = made.beta
                self.running[layer.name + ".running_mean"] = made.moving_mean
                self.running[layer.name + ".running_var"] = made.moving_variance


def _chain(chain: List[keras.layers.Layer], x: Any) -> Any:
    for layer in chain:
        x = layer(x)
    return x
