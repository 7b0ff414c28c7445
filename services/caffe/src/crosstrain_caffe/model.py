"""A model as Caffe's network message, written as prototxt.

Caffe's layouts are the canonical ones (N, C, H, W; kernels (out, in, kh, kw); dense (out, in); flatten in
C-H-W order) and its convolution is a cross-correlation. One dimension is computed as two with height 1. No layer
works in place, so every layer's output and its gradient stay in the blob named like the layer.

Names of the model's layers are letters, digits and "_", so what is added here has a "." in its name:
``in.x``, ``in.labels``, ``mask.<layer>``, ``constant.<layer>...`` are inputs, ``<layer>.<part>`` steps on the
way to a layer's output, ``loss.mean`` the loss.

What Caffe has no layer for: padding is a concatenation with constant inputs; average pooling whose divisor
differs from Caffe's is multiplied by a constant input; canonical dropout multiplies with the mask as an input.
"""

from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from caffe.proto import caffe_pb2
from google.protobuf import text_format

from crosstrain_service.errors import CrosstrainError, invalid_field
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
from crosstrain_service.training import WeightDecay

from .pooling import plan

#: Networks of one run: the training one, the one that predicts, and the one that normalises by the batch.
TRAIN, PREDICT, STATISTICS = "train", "predict", "statistics"

#: Names of the input and output blobs.
X, LABELS, LOSS = "in.x", "in.labels", "loss.mean"

#: Where a batch norm layer's statistics are, by network; the same name shares them.
_NORM = {TRAIN: "%s.norm", PREDICT: "%s.fixed", STATISTICS: "%s.batch"}

#: Caffe counts the elements of an array in an int, and ends the process beyond.
_MAX_BLOB = 2 ** 31 - 1
_LOWEST = float(np.finfo(np.float32).min)


class Network(NamedTuple):
    """A network and how to use it.

    ``blobs``: name of the blob with a layer's output, by layer; ``logits``: that of the last; ``masks``: input blob
    by dropout layer; ``constants``: value per sample of every constant input; ``norms``: Caffe's layer
    with the statistics, by batch norm layer.
    """

    message: Any
    blobs: Dict[str, str]
    logits: str
    masks: Dict[str, str]
    constants: Dict[str, np.ndarray]
    norms: Dict[str, str]

    @property
    def text(self) -> str:
        """The network as prototxt."""
        return text_format.MessageToString(self.message)


#: Layer and number of the blob in Caffe, by the part of a canonical parameter.
_PLACES = {"weight": 0, "bias": 1, "gamma": 0, "beta": 1}


def place(parameter: str) -> Tuple[str, int]:
    """Caffe's layer, and the number of its blob, that hold a canonical parameter."""
    layer, part = parameter.rsplit(".", 1)
    return layer, _PLACES[part]


def network(model: Model, batch: int, purpose: str, native: bool, decay: Optional[WeightDecay] = None) -> Network:
    """The network of a model for inputs (batch, ...); ``native`` leaves conventions to Caffe.

    ``decay`` decides which parameters Caffe's weight decay applies to; in native semantics all. Raises
    ``INVALID_FIELD`` for a constant that canonical semantics need, ``UNSUPPORTED`` as ``pooling.plan`` and where
    a batch is too large for Caffe.
    """
    for name, shape in [("the input", model.input_shape), *model.output_shapes().items()]:
        size = batch * int(np.prod(shape, dtype=np.int64))
        if size > _MAX_BLOB:
            message = "engine caffe does not support more than %d values in one array: %s of a batch of %d has %d"
            raise CrosstrainError("UNSUPPORTED", message % (_MAX_BLOB, name, batch, size), "training.batch_size")
    return _Builder(model, batch, purpose, native, decay).built


def image_shape(shape: Shape) -> Shape:
    """A shape without the batch as Caffe has it: (C, L) is (C, 1, L)."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


def _wide(sizes: Shape, fill: int) -> Tuple[int, int]:
    return (fill, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


class _Builder:
    def __init__(self, model: Model, batch: int, purpose: str, native: bool, decay: Optional[WeightDecay]) -> None:
        self._batch = batch
        self._purpose = purpose
        self._native = native
        self._decay = decay
        self._net = caffe_pb2.NetParameter(name=model.name)
        self.built = Network(self._net, OrderedDict(), "", OrderedDict(), OrderedDict(), OrderedDict())
        # Caffe leaves out gradients that no parameter needs: of layers before the first one with parameters.
        first = model.layers[0]
        self._net.force_backward = purpose == TRAIN and not isinstance(first, (Convolution, Dense, BatchNorm))
        self._input(X, image_shape(model.input_shape))
        top, shapes = X, model.input_shapes()
        for layer in model.layers:
            top = self._add(layer, top, image_shape(shapes[layer.name]))
            self.built.blobs[layer.name] = top
        self.built = self.built._replace(logits=top)
        if purpose == TRAIN:
            self._input(LABELS, ())
            loss = self._layer(LOSS, "SoftmaxWithLoss", [top, LABELS])
            if not native:
                loss.loss_param.normalization = caffe_pb2.LossParameter.VALID

    def _input(self, name: str, shape: Shape) -> str:
        layer = self._layer(name, "Input", [])
        layer.input_param.shape.add(dim=(self._batch,) + shape)
        return name

    def _constant(self, name: str, value: np.ndarray) -> str:
        self.built.constants[name] = value.astype(np.float32)
        return self._input(name, value.shape)

    def _layer(self, top: str, kind: str, bottoms: Sequence[str], name: str = "") -> Any:
        return self._net.layer.add(name=name or top, type=kind, bottom=bottoms, top=[top])

    def _add(self, layer: Layer, bottom: str, shape: Shape) -> str:
        for kind, method in self._METHODS.items():
            if isinstance(layer, kind):
                return method(self, layer, bottom, shape)
        raise TypeError("unknown layer %r" % type(layer).__name__)

    def _trained(self, message: Any, *parameters: str) -> None:
        """Says for each parameter whether it is decayed; Caffe would decay all."""
        if self._native:
            return
        for name in parameters:
            decayed = self._decay is not None and self._decay.applies_to(name)
            message.param.add(lr_mult=1.0, decay_mult=1.0 if decayed else 0.0)

    def _convolution(self, layer: Convolution, bottom: str, shape: Shape) -> str:
        pad = _wide(layer.pad_begin, 0)
        if layer.pad_begin != layer.pad_end:
            bottom = self._padded(layer.name + ".padded", bottom, shape, pad, _wide(layer.pad_end, 0), 0.0)
            pad = (0, 0)
        message = self._layer(layer.name, "Convolution", [bottom])
        parameter = message.convolution_param
        parameter.num_output, parameter.bias_term = layer.out_channels, layer.bias
        parameter.kernel_h, parameter.kernel_w = _wide(layer.kernel, 1)
        parameter.stride_h, parameter.stride_w = _wide(layer.stride, 1)
        parameter.pad_h, parameter.pad_w = pad
        self._trained(message, layer.name + ".weight", *([layer.name + ".bias"] if layer.bias else []))
        return layer.name

    def _dense(self, layer: Dense, bottom: str, shape: Shape) -> str:
        message = self._layer(layer.name, "InnerProduct", [bottom])
        message.inner_product_param.num_output = layer.units
        message.inner_product_param.bias_term = layer.bias
        self._trained(message, layer.name + ".weight", *([layer.name + ".bias"] if layer.bias else []))
        return layer.name

    def _pool(self, layer: Pool, bottom: str, shape: Shape) -> str:
        name = layer.name
        wide = Pool(name, layer.kind, _wide(layer.kernel, 1), _wide(layer.stride, 1), _wide(layer.pad_begin, 0),
                    _wide(layer.pad_end, 0), layer.round_mode, layer.count_include_pad)
        chosen = plan(wide, (shape[1], shape[2]), self._native)
        if any(chosen.begin) or any(chosen.end):
            value = _LOWEST if layer.kind == "max" else 0.0
            bottom = self._padded(name + ".padded", bottom, shape, chosen.begin, chosen.end, value)
        top = name if chosen.factor is None else name + ".pooled"
        parameter = self._layer(top, "Pooling", [bottom]).pooling_param
        kinds = {"max": caffe_pb2.PoolingParameter.MAX, "average": caffe_pb2.PoolingParameter.AVE}
        parameter.pool = kinds[layer.kind]
        parameter.kernel_h, parameter.kernel_w = wide.kernel
        parameter.stride_h, parameter.stride_w = wide.stride
        parameter.pad_h, parameter.pad_w = chosen.pad
        if chosen.ceil is not None:
            modes = caffe_pb2.PoolingParameter
            parameter.round_mode = modes.CEIL if chosen.ceil else modes.FLOOR
        if chosen.factor is not None:
            value = np.broadcast_to(chosen.factor, shape[:1] + chosen.factor.shape)
            self._product(name, top, self._constant("constant.%s.factor" % name, value))
        return name

    def _product(self, top: str, first: str, second: str) -> str:
        message = self._layer(top, "Eltwise", [first, second])
        message.eltwise_param.operation = caffe_pb2.EltwiseParameter.PROD
        return top

    def _padded(self, top: str, bottom: str, shape: Shape, begin: Shape, end: Shape, value: float) -> str:
        """The name of the padded blob: ``top``, or ``bottom`` if nothing is padded.

        A concatenation of one input is no way out: it shares gradients in a way that a flatten layer breaks.
        """
        sizes = list(shape)
        axes = [axis for axis in (0, 1) if begin[axis] or end[axis]]
        if not axes:
            return bottom
        for axis in axes:
            parts: List[str] = []
            for side, amount in (("begin", begin[axis]), ("end", end[axis])):
                if side == "end":
                    parts.append(bottom)
                if amount:
                    block = list(sizes)
                    block[1 + axis] = amount
                    name = "constant.%s.%s%d" % (top, side, axis)
                    parts.append(self._constant(name, np.full(block, value, np.float32)))
            sizes[1 + axis] += begin[axis] + end[axis]
            part = top if axis == axes[-1] else top + ".rows"
            self._layer(part, "Concat", parts).concat_param.axis = 2 + axis
            bottom = part
        return top

    def _pad(self, layer: Pad, bottom: str, shape: Shape) -> str:
        return self._padded(layer.name, bottom, shape, _wide(layer.begin, 0), _wide(layer.end, 0), 0.0)

    def _relu(self, layer: Relu, bottom: str, shape: Shape) -> str:
        self._layer(layer.name, "ReLU", [bottom])
        return layer.name

    def _flatten(self, layer: Flatten, bottom: str, shape: Shape) -> str:
        self._layer(layer.name, "Flatten", [bottom])
        return layer.name

    def _dropout(self, layer: Dropout, bottom: str, shape: Shape) -> str:
        if self._purpose != TRAIN:
            return bottom
        if self._native:
            self._layer(layer.name, "Dropout", [bottom]).dropout_param.dropout_ratio = layer.rate
            return layer.name
        self.built.masks[layer.name] = self._input("mask.%s" % layer.name, shape)
        return self._product(layer.name, bottom, self.built.masks[layer.name])

    def _batch_norm(self, layer: BatchNorm, bottom: str, shape: Shape) -> str:
        if layer.epsilon is None and not self._native:
            raise invalid_field("model.layers[%s].epsilon" % layer.name, "canonical semantics need a value")
        # Caffe's own statistics belong to the training network; native predictions share them by the name.
        purpose = TRAIN if self._native and self._purpose == PREDICT else self._purpose
        name = _NORM[purpose] % layer.name
        message = self._layer(layer.name + ".normalised", "BatchNorm", [bottom], name)
        if not self._native:
            for _ in range(3):
                message.param.add(lr_mult=0.0, decay_mult=0.0)
        if layer.epsilon is not None:
            message.batch_norm_param.eps = layer.epsilon
        if self._native and layer.momentum is not None:
            message.batch_norm_param.moving_average_fraction = layer.momentum
        message.batch_norm_param.use_global_stats = self._purpose == PREDICT
        self.built.norms[layer.name] = name
        scale = self._layer(layer.name, "Scale", [layer.name + ".normalised"])
        scale.scale_param.bias_term = True
        self._trained(scale, layer.name + ".gamma", layer.name + ".beta")
        return layer.name

    def _local_response_norm(self, layer: LocalResponseNorm, bottom: str, shape: Shape) -> str:
        if len(shape) != 3:
            raise CrosstrainError("INVALID_MODEL", "layer %r needs channels and space" % layer.name)
        parameter = self._layer(layer.name, "LRN", [bottom]).lrn_param
        parameter.local_size, parameter.beta = layer.size, layer.beta
        if layer.region == "within_channel":
            if layer.k != 1:
                raise CrosstrainError(
                    "UNSUPPORTED", "engine caffe does not support layer %r with k = %r: Caffe adds 1 within a channel, "
                    "whatever k is" % (layer.name, layer.k), "model.layers[%s].k" % layer.name)
            parameter.norm_region = caffe_pb2.LRNParameter.WITHIN_CHANNEL
            # Caffe averages over a square, also where one dimension is added to the layer's.
            parameter.alpha = layer.alpha_sum * layer.size ** 2
            if not self._native:
                # With cuDNN the default is its divisive normalisation, not compared with this one.
                parameter.engine = caffe_pb2.LRNParameter.CAFFE
            return layer.name
        # Caffe divides its alpha by the size.
        parameter.alpha, parameter.k = layer.alpha_sum * layer.size, layer.k
        return layer.name

    _METHODS: Dict[type, Any] = {
        Convolution: _convolution,
        Dense: _dense,
        Pool: _pool,
        Pad: _pad,
        Relu: _relu,
        Flatten: _flatten,
        Dropout: _dropout,
        BatchNorm: _batch_norm,
        LocalResponseNorm: _local_response_norm,
    }
