"""The network as plain data: layers, shapes and parameter names.

One definition serves every engine. Shapes leave the batch out: ``(C, H, W)`` or
``(C, L)`` before a :class:`Flatten`, ``(F,)`` after it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple, Union

from .errors import CrosstrainError

Shape = Tuple[int, ...]

#: Largest number of values one layer may produce per sample, against absurd requests.
MAX_ACTIVATIONS = 1 << 28
#: Largest number of elements of one parameter.
MAX_PARAMETERS = 1 << 30


@dataclass(frozen=True)
class Convolution:
    """Cross-correlation; weight ``(out_channels, in_channels, *kernel)``, bias ``(out_channels,)``."""

    name: str
    out_channels: int
    kernel: Shape
    stride: Shape
    pad_begin: Shape
    pad_end: Shape
    bias: bool = True


@dataclass(frozen=True)
class Pool:
    """Pooling; ``kind`` is "max" or "average", ``round_mode`` "floor" or "ceil"."""

    name: str
    kind: str
    kernel: Shape
    stride: Shape
    pad_begin: Shape
    pad_end: Shape
    round_mode: str = "floor"
    count_include_pad: bool = False


@dataclass(frozen=True)
class Dense:
    """Fully connected; weight ``(units, inputs)``, bias ``(units,)``."""

    name: str
    units: int
    bias: bool = True


@dataclass(frozen=True)
class Relu:
    """max(x, 0); canonical gradient at exactly 0 is 0."""

    name: str


@dataclass(frozen=True)
class Flatten:
    """(C, H, W) to (C*H*W,) in that order."""

    name: str


@dataclass(frozen=True)
class Dropout:
    """Inverted dropout with the share ``rate`` set to zero."""

    name: str
    rate: float


@dataclass(frozen=True)
class BatchNorm:
    """Per channel (or feature); gamma and beta ``(C,)``. ``None``: the framework's default (native only)."""

    name: str
    epsilon: Optional[float] = None
    momentum: Optional[float] = None


@dataclass(frozen=True)
class LocalResponseNorm:
    """x / (k + alpha_sum * sum x^2)^beta over a window of odd ``size``; x is 0 outside the input.

    ``region`` "across_channels": ``size`` channels at the same position; "within_channel": ``size`` positions of
    the same channel in every spatial dimension, around the position.
    """

    name: str
    size: int
    alpha_sum: float
    beta: float
    k: float
    region: str = "across_channels"


@dataclass(frozen=True)
class Pad:
    """Zeros around the spatial dimensions."""

    name: str
    begin: Shape
    end: Shape


Layer = Union[Convolution, Pool, Dense, Relu, Flatten, Dropout, BatchNorm, LocalResponseNorm, Pad]


@dataclass(frozen=True)
class Model:
    """A sequential network giving ``classes`` logits per sample of shape ``input_shape``."""

    name: str
    input_shape: Shape
    classes: int
    layers: Tuple[Layer, ...]

    def output_shapes(self) -> Dict[str, Shape]:
        """Shape of every layer's output without the batch, in order of execution.

        Raises :class:`CrosstrainError` (``INVALID_MODEL``) naming the layer that does not fit.
        """
        shapes: Dict[str, Shape] = OrderedDict()
        shape = self.input_shape
        for layer in self.layers:
            shape = output_shape(layer, shape)
            shapes[layer.name] = shape
        return shapes

    def input_shapes(self) -> Dict[str, Shape]:
        """Shape of every layer's input without the batch, in order of execution."""
        outputs = list(self.output_shapes().values())
        return OrderedDict(zip([layer.name for layer in self.layers], [self.input_shape] + outputs[:-1]))

    def parameter_shapes(self) -> Dict[str, Shape]:
        """Canonical shape of every trained parameter by name, in order of execution."""
        shapes: Dict[str, Shape] = OrderedDict()
        inputs = self.input_shapes()
        for layer in self.layers:
            entry = inputs[layer.name]
            if isinstance(layer, Convolution):
                shapes[layer.name + ".weight"] = (layer.out_channels, entry[0]) + layer.kernel
                if layer.bias:
                    shapes[layer.name + ".bias"] = (layer.out_channels,)
            elif isinstance(layer, Dense):
                shapes[layer.name + ".weight"] = (layer.units, entry[0])
                if layer.bias:
                    shapes[layer.name + ".bias"] = (layer.units,)
            elif isinstance(layer, BatchNorm):
                shapes[layer.name + ".gamma"] = (entry[0],)
                shapes[layer.name + ".beta"] = (entry[0],)
        return shapes

    def statistics_shapes(self) -> Dict[str, Shape]:
        """Shape of the evaluation statistics of every batch norm layer: running_mean, running_var."""
        shapes: Dict[str, Shape] = OrderedDict()
        inputs = self.input_shapes()
        for layer in self.layers_of(BatchNorm):
            for part in ("running_mean", "running_var"):
                shapes["%s.%s" % (layer.name, part)] = (inputs[layer.name][0],)
        return shapes

    def layers_of(self, kind: type) -> List[Layer]:
        """The layers of one class, in order."""
        return [layer for layer in self.layers if isinstance(layer, kind)]

    def validate(self) -> "Model":
        """Raises :class:`CrosstrainError` (``INVALID_MODEL``) unless all layers fit; returns self."""
        if not self.layers:
            raise _error("the model has no layers", "model.layers")
        names = [layer.name for layer in self.layers]
        for name in names:
            if names.count(name) > 1:
                raise _error("layer name %r is used more than once" % name, "model.layers")
        final = list(self.output_shapes().values())[-1]
        if final != (self.classes,):
            raise _error(
                "the last layer %r gives %s values per sample, but the data has %d classes"
                % (names[-1], "x".join(map(str, final)), self.classes),
                "model.layers",
            )
        return self


def windows(size: int, kernel: int, stride: int, pad_begin: int, pad_end: int, round_mode: str = "floor") -> int:
    """Number of windows along one dimension; below 1 if not even one fits.

    With "ceil" a last partial window counts only if it starts inside the input or its
    padding at the beginning, as Caffe and PyTorch do.
    """
    span = size + pad_begin + pad_end - kernel
    if span < 0:
        return 0
    if round_mode == "floor":
        return span // stride + 1
    count = -(-span // stride) + 1
    if (count - 1) * stride >= size + pad_begin:
        count -= 1
    return count


def output_shape(layer: Layer, shape: Shape) -> Shape:
    """Shape after one layer; raises ``INVALID_MODEL`` if the layer cannot take ``shape``."""
    name = layer.name
    if isinstance(layer, (Convolution, Pool, Pad)):
        dims = len(shape) - 1
        if dims not in (1, 2):
            raise _error("layer %r needs channels and 1 or 2 spatial dimensions, but gets %s"
                         % (name, _text(shape)), name)
    if isinstance(layer, (Convolution, Pool)):
        for field in ("kernel", "stride", "pad_begin", "pad_end"):
            if len(getattr(layer, field)) != dims:
                raise _error("layer %r: %s has %d values, but the input %s has %d spatial dimensions"
                             % (name, field, len(getattr(layer, field)), _text(shape), dims), name)
        rounding = layer.round_mode if isinstance(layer, Pool) else "floor"
        spatial = tuple(
            windows(size, *sizes, round_mode=rounding)
            for size, *sizes in zip(shape[1:], layer.kernel, layer.stride, layer.pad_begin, layer.pad_end)
        )
        if min(spatial) < 1:
            raise _error("layer %r: kernel %s does not fit into its input %s with padding %s and %s"
                         % (name, _text(layer.kernel), _text(shape[1:]), _text(layer.pad_begin),
                            _text(layer.pad_end)), name)
        if isinstance(layer, Pool):
            for kernel, begin, end in zip(layer.kernel, layer.pad_begin, layer.pad_end):
                if max(begin, end) >= kernel:
                    raise _error("layer %r: padding %d must be smaller than the kernel %d, or a window "
                                 "would hold nothing but padding" % (name, max(begin, end), kernel), name)
        channels = layer.out_channels if isinstance(layer, Convolution) else shape[0]
        result: Shape = (channels,) + spatial
    elif isinstance(layer, Pad):
        if not len(layer.begin) == len(layer.end) == len(shape) - 1:
            raise _error("layer %r: begin and end need %d values each" % (name, len(shape) - 1), name)
        result = shape[:1] + tuple(n + b + e for n, b, e in zip(shape[1:], layer.begin, layer.end))
    elif isinstance(layer, Dense):
        if len(shape) != 1:
            raise _error("layer %r is dense and needs a flatten layer before it: its input is %s"
                         % (name, _text(shape)), name)
        result = (layer.units,)
    elif isinstance(layer, Flatten):
        result = (_product(shape),)
    elif isinstance(layer, LocalResponseNorm) and len(shape) < 2:
        raise _error("layer %r normalises %s, but its input %s has none" % (
            name, layer.region.replace("_", " "), _text(shape)), name)
    elif isinstance(layer, LocalResponseNorm) and layer.region == "within_channel" and _product(
            shape[:1] + tuple(size + layer.size - 1 for size in shape[1:])) > MAX_ACTIVATIONS:
        raise _error("layer %r: a window of %d gives more than %d values per sample with its padding"
                     % (name, layer.size, MAX_ACTIVATIONS), name)
    else:
        result = shape
    if _product(result) > MAX_ACTIVATIONS:
        raise _error("layer %r gives %s values per sample, more than %d"
                     % (name, _text(result), MAX_ACTIVATIONS), name)
    weight = 0
    if isinstance(layer, Convolution):
        weight = layer.out_channels * shape[0] * _product(layer.kernel)
    elif isinstance(layer, Dense):
        weight = layer.units * shape[0]
    if weight > MAX_PARAMETERS:
        raise _error("layer %r has %d weights, more than %d" % (name, weight, MAX_PARAMETERS), name)
    return result


def _product(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _text(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def _error(message: str, where: str) -> CrosstrainError:
    field = where if where.startswith("model") else "model.layers[%s]" % where
    return CrosstrainError("INVALID_MODEL", message, field)
