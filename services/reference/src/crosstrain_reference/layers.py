"""Layers: descriptions of operations, each able to run forward and backward on given arrays.

A layer holds no parameters.  ``params`` maps names such as "conv1.weight" to arrays for the whole network, so
that a layer can also be checked alone, on inputs and gradients recorded elsewhere.  Shapes given to
``output_shape`` and ``parameter_shapes`` leave out the batch: ``(C, H, W)``, ``(C, L)`` or ``(features,)``.
"""

from dataclasses import dataclass
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import ops

Shape = Tuple[int, ...]
Arrays = Dict[str, np.ndarray]
Statistics = Tuple[np.ndarray, np.ndarray]
Params = Mapping[str, np.ndarray]
Mask = Optional[np.ndarray]
Given = Optional[Statistics]


class Trace(NamedTuple):
    """What a forward call leaves for the backward call.

    ``indices`` are the choices of a max pool (see :func:`ops.max_pool`); ``statistics`` the mean and biased
    variance that a batch norm used; ``mask`` the dropout mask, or None where nothing was dropped.
    """

    x: np.ndarray
    train: bool
    mask: Optional[np.ndarray] = None
    statistics: Optional[Statistics] = None
    indices: Optional[np.ndarray] = None


@dataclass(frozen=True)
class Layer:
    """Base of all layers.  ``name`` is unique within a network."""

    name: str

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of one output sample for an input sample of the given shape."""
        return shape

    def parameter_shapes(self, shape: Shape) -> Dict[str, Shape]:
        """Return the shape of every parameter, in a fixed order."""
        return {}

    def forward(
        self,
        x: np.ndarray,
        params: Mapping[str, np.ndarray],
        train: bool = True,
        mask: Optional[np.ndarray] = None,
        statistics: Optional[Statistics] = None,
    ) -> Tuple[np.ndarray, Trace]:
        """Return the output and what :meth:`backward` needs.

        ``mask`` is used by Dropout in training; ``statistics`` by BatchNorm in evaluation.
        """
        raise NotImplementedError

    def backward(
        self, dy: np.ndarray, trace: Trace, params: Mapping[str, np.ndarray]
    ) -> Tuple[np.ndarray, Arrays]:
        """Return the gradient of the input and of every parameter."""
        raise NotImplementedError


def _optional_bias(layer: Layer, params: Mapping[str, np.ndarray], bias: bool) -> Optional[np.ndarray]:
    return params[layer.name + ".bias"] if bias else None


def _weight_gradients(layer: Layer, dw: np.ndarray, db: np.ndarray, bias: bool) -> Arrays:
    gradients = {layer.name + ".weight": dw}
    if bias:
        gradients[layer.name + ".bias"] = db
    return gradients


@dataclass(frozen=True)
class Convolution(Layer):
    """Cross-correlation; parameters ``weight`` ``(O, I, kernel...)`` and, with ``bias``, ``bias`` ``(O,)``."""

    out_channels: int
    kernel: Shape
    stride: Shape
    pad_begin: Shape
    pad_end: Shape
    bias: bool = True

    def output_shape(self, shape: Shape) -> Shape:
        weight = self.parameter_shapes(shape)[self.name + ".weight"]
        full = ops.convolution_output_shape((1,) + shape, weight, self.stride, self.pad_begin, self.pad_end)
        return full[1:]

    def parameter_shapes(self, shape: Shape) -> Dict[str, Shape]:
        shapes = {self.name + ".weight": (self.out_channels, shape[0]) + tuple(self.kernel)}
        if self.bias:
            shapes[self.name + ".bias"] = (self.out_channels,)
        return shapes

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        w, b = params[self.name + ".weight"], _optional_bias(self, params, self.bias)
        return ops.convolution(x, w, b, self.stride, self.pad_begin, self.pad_end), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        w = params[self.name + ".weight"]
        dx, dw, db = ops.convolution_backward(dy, trace.x, w, self.stride, self.pad_begin, self.pad_end)
        return dx, _weight_gradients(self, dw, db, self.bias)


@dataclass(frozen=True)
class Pool(Layer):
    """Pooling of ``kind`` "max" or "average"; see :mod:`crosstrain_reference.ops.pooling`."""

    kind: str
    kernel: Shape
    stride: Shape
    pad_begin: Shape
    pad_end: Shape
    round_mode: str = "floor"
    count_include_pad: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("max", "average"):
            raise ValueError(f"layer {self.name}: pool kind is {self.kind!r}, expected 'max' or 'average'")

    def _window(self) -> Tuple[Shape, Shape, Shape, Shape, str]:
        return self.kernel, self.stride, self.pad_begin, self.pad_end, self.round_mode

    def output_shape(self, shape: Shape) -> Shape:
        return ops.pool_output_shape((1,) + shape, *self._window())[1:]

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        if self.kind == "max":
            y, indices = ops.max_pool(x, *self._window())
            return y, Trace(x, train, indices=indices)
        y = ops.average_pool(x, *self._window(), count_include_pad=self.count_include_pad)
        return y, Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        shape = trace.x.shape
        if self.kind == "max":
            return ops.max_pool_backward(dy, trace.indices, shape, *self._window()), {}
        include = self.count_include_pad
        return ops.average_pool_backward(dy, shape, *self._window(), count_include_pad=include), {}


@dataclass(frozen=True)
class Dense(Layer):
    """Fully connected layer; parameters ``weight`` ``(units, in)`` and, with ``bias``, ``bias`` ``(units,)``."""

    units: int
    bias: bool = True

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ValueError(f"layer {self.name}: input has shape {shape}, flatten it first")
        return (self.units,)

    def parameter_shapes(self, shape: Shape) -> Dict[str, Shape]:
        shapes = {self.name + ".weight": (self.units,) + shape}
        if self.bias:
            shapes[self.name + ".bias"] = (self.units,)
        return shapes

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        w, b = params[self.name + ".weight"], _optional_bias(self, params, self.bias)
        return ops.dense(x, w, b), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        dx, dw, db = ops.dense_backward(dy, trace.x, params[self.name + ".weight"])
        return dx, _weight_gradients(self, dw, db, self.bias)


@dataclass(frozen=True)
class Relu(Layer):
    """``max(x, 0)``."""

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        return ops.relu(x), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        return ops.relu_backward(dy, trace.x), {}


@dataclass(frozen=True)
class Flatten(Layer):
    """Samples of any shape to vectors, in the order C, H, W."""

    def output_shape(self, shape: Shape) -> Shape:
        return (int(np.prod(shape)),)

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        return ops.flatten(x), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        return ops.unflatten(dy, trace.x.shape), {}


@dataclass(frozen=True)
class Dropout(Layer):
    """Multiplication with a given mask in training, nothing in evaluation; ``rate`` is the share dropped."""

    rate: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate < 1.0:
            raise ValueError(f"layer {self.name}: rate is {self.rate!r}, expected 0 <= rate < 1")

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        if not train or (mask is None and self.rate == 0.0):
            return x.copy(), Trace(x, train)
        if mask is None:
            raise ValueError(f"layer {self.name}: training with dropout needs a mask")
        return ops.dropout(x, mask), Trace(x, train, mask=mask)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        return (dy.copy() if trace.mask is None else ops.dropout_backward(dy, trace.mask)), {}


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalization with parameters ``gamma`` and ``beta`` ``(C,)``: batch statistics in training, given ones
    in evaluation."""

    eps: float

    def parameter_shapes(self, shape: Shape) -> Dict[str, Shape]:
        return {self.name + ".gamma": shape[:1], self.name + ".beta": shape[:1]}

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        if train:
            statistics = ops.batch_statistics(x)
        elif statistics is None:
            raise ValueError(f"layer {self.name}: evaluating batch norm needs a mean and a variance")
        gamma, beta = params[self.name + ".gamma"], params[self.name + ".beta"]
        mean, var = statistics
        y = ops.batch_norm(x, gamma, beta, mean, var, self.eps)
        return y, Trace(x, train, statistics=(mean, var))

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        mean, var = trace.statistics
        gamma = params[self.name + ".gamma"]
        dx, dgamma, dbeta = ops.batch_norm_backward(dy, trace.x, gamma, mean, var, self.eps, trace.train)
        return dx, {self.name + ".gamma": dgamma, self.name + ".beta": dbeta}


@dataclass(frozen=True)
class LRN(Layer):
    """Local response normalization across channels or within each; ``alpha`` multiplies the sum of squares."""

    size: int
    alpha: float
    beta: float
    k: float
    region: str = "across_channels"

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        return ops.lrn(x, self.size, self.alpha, self.beta, self.k, self.region), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        return ops.lrn_backward(dy, trace.x, self.size, self.alpha, self.beta, self.k, self.region), {}


@dataclass(frozen=True)
class Pad(Layer):
    """Explicit padding with ``value`` (``-inf`` where a max pool follows)."""

    pad_begin: Shape
    pad_end: Shape
    value: float = 0.0

    def output_shape(self, shape: Shape) -> Shape:
        return ops.pad_output_shape((1,) + shape, self.pad_begin, self.pad_end)[1:]

    def forward(
        self, x: np.ndarray, params: Params, train: bool = True, mask: Mask = None, statistics: Given = None
    ) -> Tuple[np.ndarray, Trace]:
        return ops.pad(x, self.pad_begin, self.pad_end, self.value), Trace(x, train)

    def backward(self, dy: np.ndarray, trace: Trace, params: Params) -> Tuple[np.ndarray, Arrays]:
        return ops.pad_backward(dy, trace.x.shape, self.pad_begin, self.pad_end), {}
