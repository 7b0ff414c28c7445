"""The network in plain TensorFlow: a ``tf.Module`` of variables and operations, channels last inside."""

from collections import OrderedDict
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

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

from . import operations
from .geometry import convolution_padding, pool_padding
from .layout import Layout
from .placement import PART, Placement
from .shares import Share

#: Constants of Keras's BatchNormalization, which users of plain TensorFlow take for want of another default.
NATIVE_EPSILON = 1e-3
NATIVE_MOMENTUM = 0.99


class Pass:
    """One forward pass: what it is for, and what it notes down.

    ``normalize_by_batch`` makes batch norm use the batch's own statistics, ``update_statistics`` also averages
    them into the running ones (native). ``masks`` (canonical layout) and ``step`` (for dropout drawn by
    TensorFlow) are used if ``drop``. ``share`` is this data rank's place where there are several: the batch whose
    statistics count is that of all ranks together then. ``outputs`` and ``statistics`` are filled.
    """

    def __init__(self,
                 training: bool = False,
                 update_statistics: bool = False,
                 drop: Optional[bool] = None,
                 masks: Optional[Mapping[str, tf.Tensor]] = None,
                 step: Optional[tf.Tensor] = None,
                 share: Optional[Share] = None) -> None:
        self.normalize_by_batch = training
        self.update_statistics = update_statistics
        self.drop = training if drop is None else drop
        self.masks = masks or {}
        self.step = step
        self.share = share
        self.outputs: Dict[str, tf.Tensor] = OrderedDict()
        self.statistics: Dict[str, Tuple[tf.Tensor, tf.Tensor]] = OrderedDict()


class Piece(NamedTuple):
    """What one device computes of a layer, and the parameters it does it with."""

    run: Callable[[tf.Tensor, Pass], tf.Tensor]
    parameters: List[str]


class Stage(NamedTuple):
    """A canonical layer; its pieces give parts of the output's channels, in order."""

    name: str
    pieces: List[Piece]

    def run(self, x: tf.Tensor, run: Pass) -> tf.Tensor:
        """The layer's output."""
        parts = [piece.run(x, run) for piece in self.pieces]
        return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


class Network(tf.Module):
    """``variables_by_name`` holds the trained parameters, ``running`` the evaluation statistics.

    All start at 0 (gamma and variance at 1); names are canonical, layouts are those of :class:`Layout`.
    ``compute`` is the type of products and activations if it is not that of the variables, ``dtype``; logits,
    and what normalises, have the type of the variables. With ``native`` batch norm and dropout are
    TensorFlow's own; with ``local_batch_norm`` each data rank normalises
    by its own share, and running statistics average the means over the ranks. Without ``fused`` a bias
    is added by an operation that no kernel takes in.
    """

    def __init__(self,
                 model: Model,
                 layout: Layout,
                 dtype: tf.DType,
                 native: bool,
                 seed: int,
                 local_batch_norm: bool = False,
                 compute: Optional[tf.DType] = None,
                 placement: Optional[Placement] = None,
                 fused: bool = True) -> None:
        super().__init__(name="network")
        self._dtype = dtype
        self._compute = compute or dtype
        self._native = native
        self._local_batch_norm = local_batch_norm
        self._seed = seed & 0x7FFFFFFF
        self._layout = layout
        self._input_shape = model.input_shape
        self._placement = placement
        self._fused = fused
        self.variables_by_name: Dict[str, tf.Variable] = OrderedDict()
        for name, shape in model.parameter_shapes().items():
            value = layout.to_framework(name, np.zeros(shape, dtype.as_numpy_dtype))
            parts = {name: (None, value)} if placement is None else placement.cut(name, value)
            for part, (device, part_value) in parts.items():
                with tf.device(device):
                    self.variables_by_name[part] = self._variable(part, part_value)
        self.running = OrderedDict(
            (name, self._variable(name, np.zeros(shape, dtype.as_numpy_dtype), trainable=False))
            for name, shape in model.statistics_shapes().items()
        )
        shapes = model.input_shapes()
        self.stages: List[Stage] = [
            Stage(layer.name, self._pieces(layer, shapes[layer.name], index))
            for index, layer in enumerate(model.layers)
        ]

    def _biased(self, y: tf.Tensor, bias: Optional[tf.Variable]) -> tf.Tensor:
        if bias is None:
            return y
        return tf.nn.bias_add(y, self._used(bias)) if self._fused else y + self._used(bias)

    def _variable(self, name: str, value: np.ndarray, trainable: bool = True) -> tf.Variable:
        if name.split(PART)[0].endswith((".gamma", ".running_var")):
            value = value + 1
        safe = "".join(char if char.isalnum() else "_" for char in name)
        return tf.Variable(value, trainable=trainable, dtype=self._dtype, name=safe)

    def __call__(self, x: tf.Tensor, run: Pass) -> tf.Tensor:
        """Logits (B, K) for ``x`` in canonical layout."""
        y = self.entry(x)
        for stage in self.stages:
            y = stage.run(y, run)
            run.outputs[stage.name] = y
        return self.logits(y)

    def logits(self, y: tf.Tensor) -> tf.Tensor:
        """The last layer's output in the type of the variables."""
        return tf.cast(y, self._dtype)

    def entry(self, x: tf.Tensor) -> tf.Tensor:
        """The input of the first layer for ``x`` in canonical layout."""
        return tf.cast(operations.to_channels_last(x, self._input_shape), self._compute)

    def _used(self, value: Optional[tf.Variable]) -> Optional[tf.Tensor]:
        """A parameter in the type of products."""
        return value if value is None or self._compute == self._dtype else tf.cast(value, self._compute)

    def _wide(self, function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """A function computed in the type of the variables."""
        return tf.cast(function(tf.cast(x, self._dtype)), self._compute)

    def _pieces(self, layer: Layer, shape: Shape, index: int) -> List[Piece]:
        own = [name for name in self.variables_by_name if name.rsplit(".", 1)[0] == layer.name]
        parts = sorted({name.partition(PART)[2] for name in own}, key=lambda part: int(part or 0)) or [""]
        found = []
        for part in parts:
            names = [name for name in own if name.partition(PART)[2] == part]
            found.append(Piece(self._stage(layer, shape, index, PART + part if part else ""), names))
        return found

    def _stage(self,
               layer: Layer,
               shape: Shape,
               index: int,
               part: str) -> Callable[[tf.Tensor, Pass], tf.Tensor]:
        if isinstance(layer, Convolution):
            kernel, bias = self._weights(layer.name, part)
            padding = convolution_padding(layer, shape[1:])
            return lambda x, run: self._biased(
                operations.convolution(x, self._used(kernel), layer.stride, padding), bias)
        if isinstance(layer, Pool):
            pool = operations.max_pool if layer.kind == "max" else operations.average_pool
            padding = pool_padding(layer, shape[1:])
            return lambda x, run: pool(x, layer.kernel, layer.stride, padding)
        if isinstance(layer, Dense):
            weight, bias = self._weights(layer.name, part)
            return lambda x, run: self._biased(tf.matmul(x, self._used(weight)), bias)
        if isinstance(layer, Relu):
            return lambda x, run: tf.nn.relu(x)
        if isinstance(layer, Flatten):
            return self._flatten(layer, shape)
        if isinstance(layer, Dropout):
            return lambda x, run: self._dropout(layer, shape, index, x, run)
        if isinstance(layer, BatchNorm):
            return lambda x, run: self._wide(lambda wide: self._batch_norm(layer, wide, run), x)
        if isinstance(layer, LocalResponseNorm):
            within = layer.region == "within_channel"
            norm = operations.within_channel_norm if within else operations.local_response_norm
            return lambda x, run: self._wide(
                lambda wide: norm(wide, layer.size, layer.alpha_sum, layer.beta, layer.k), x)
        if isinstance(layer, Pad):
            pads = tuple(zip(layer.begin, layer.end))
            return lambda x, run: operations.pad(x, pads)
        raise TypeError("layer %r of unknown kind %s" % (layer.name, type(layer).__name__))

    def _weights(self, name: str, part: str) -> Tuple[tf.Variable, Optional[tf.Variable]]:
        return self.variables_by_name[name + ".weight" + part], self.variables_by_name.get(name + ".bias" + part)

    def _flatten(self, layer: Flatten, shape: Shape) -> Callable[[tf.Tensor, Pass], tf.Tensor]:
        size = int(np.prod(shape))
        if layer.name in self._layout.transposed:
            return lambda x, run: tf.reshape(operations.to_channels_first(x), (-1, size))
        return lambda x, run: tf.reshape(x, (-1, size))

    def _dropout(self,
                 layer: Dropout,
                 shape: Shape,
                 index: int,
                 x: tf.Tensor,
                 run: Pass) -> tf.Tensor:
        if not run.drop or layer.rate == 0:
            return x
        if self._native:
            rank = run.share.rank if run.share is not None else 0
            seed = tf.stack([tf.constant(self._seed + (rank << 32), tf.int64), run.step * 4096 + index])
            return tf.nn.experimental.stateless_dropout(x, layer.rate, seed)
        return x * tf.cast(operations.to_channels_last(run.masks[layer.name], shape), x.dtype)

    def _batch_norm(self, layer: BatchNorm, x: tf.Tensor, run: Pass) -> tf.Tensor:
        gamma, beta = (self.variables_by_name["%s.%s" % (layer.name, part)] for part in ("gamma", "beta"))
        mean, variance = (self.running["%s.running_%s" % (layer.name, part)] for part in ("mean", "var"))
        epsilon = NATIVE_EPSILON if layer.epsilon is None else layer.epsilon
        if not run.normalize_by_batch:
            return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
        together = run.share is not None and run.share.add is not None and not self._local_batch_norm
        fused = run.update_statistics and self._native and len(x.shape) == 4 and x.dtype == tf.float32
        if together:
            batch_mean, batch_variance, count = operations.moments_of_shares(x, run.share)
            y = tf.nn.batch_normalization(x, batch_mean, batch_variance, beta, gamma, epsilon)
            if fused:
                batch_variance *= count / tf.maximum(count - 1, 1)
        elif fused:
            # The fused operation returns the variance with Bessel's correction.
            y, batch_mean, batch_variance = tf.compat.v1.nn.fused_batch_norm(x, gamma, beta, epsilon=epsilon)
        else:
            batch_mean, batch_variance = tf.nn.moments(x, list(range(len(x.shape) - 1)))
            y = tf.nn.batch_normalization(x, batch_mean, batch_variance, beta, gamma, epsilon)
        run.statistics[layer.name] = (batch_mean, batch_variance)
        if run.update_statistics and self._native:
            momentum = NATIVE_MOMENTUM if layer.momentum is None else layer.momentum
            if self._local_batch_norm and run.share is not None and run.share.add is not None:
                batch_mean, batch_variance = operations.mean_of_shares([batch_mean, batch_variance], run.share)
            mean.assign_sub((mean - batch_mean) * (1.0 - momentum))
            variance.assign_sub((variance - batch_variance) * (1.0 - momentum))
        return y
