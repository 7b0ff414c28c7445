"""Lasagne layers for what Lasagne 0.1 lacks or, in canonical semantics, does differently.

Other modules take Lasagne from here, since it needs :mod:`.lasagne_downsample` to be imported at all.
"""

from typing import Any, Callable, Sequence

from . import lasagne_downsample  # noqa: F401

# isort: split
import lasagne
import numpy as np
from lasagne.layers import Conv2DLayer, Layer

from . import operations
from .device import T

Variable = Any


class Expression(Layer):
    """A layer without parameters: ``function`` of one tensor, giving ``shape`` (without the batch)."""

    def __init__(
        self, incoming: Layer, function: Callable[[Variable], Variable], shape: Sequence[int], **options: Any
    ) -> None:
        self._function = function
        self._shape = tuple(shape)
        super().__init__(incoming, **options)

    def get_output_shape_for(self, input_shape: Any) -> Any:
        return (input_shape[0],) + self._shape

    def get_output_for(self, input: Variable, **options: Any) -> Variable:
        return self._function(input)


class MaskLayer(Layer):
    """Dropout by a given mask; nothing if ``deterministic``."""

    def __init__(self, incoming: Layer, mask: Variable, **options: Any) -> None:
        super().__init__(incoming, **options)
        self._mask = mask

    def get_output_for(self, input: Variable, deterministic: bool = False, **options: Any) -> Variable:
        return input if deterministic else input * self._mask


class PaddedConv2DLayer(Conv2DLayer):
    """Lasagne's convolution with Theano's own zero padding, which may be asymmetric; Lasagne copies the input
    to pad it.
    """

    def __init__(self, incoming: Layer, pads: Any, output_shape: Sequence[int], **options: Any) -> None:
        self._pads = pads
        self._shape = tuple(output_shape)
        super().__init__(incoming, pad=0, **options)

    def get_output_shape_for(self, input_shape: Any) -> Any:
        return (input_shape[0],) + self._shape

    def get_output_for(self, input: Variable, **options: Any) -> Variable:
        result = operations.convolution(
            input, self.W, self._pads, self.stride, self.input_shape[1:], self.get_W_shape()
        )
        return result if self.b is None else result + self.b.dimshuffle("x", 0, "x", "x")


class BatchNormLayer(Layer):
    """Batch norm per channel; Lasagne 0.1 has none.

    Canonical (``momentum`` None): in training by ``moments`` of the batch, which may be those of all ranks, with
    ``batch_statistics`` by the batch's own, otherwise by loaded statistics. Native: ``theano.tensor.nnet.bn`` with
    its running averages (unbiased variance), whose new values are in ``updates`` after a training pass.
    """

    def __init__(
        self,
        incoming: Layer,
        epsilon: float,
        momentum: Any = None,
        moments: Callable[[Variable], Any] = operations.batch_moments,
        **options: Any
    ) -> None:
        super().__init__(incoming, **options)
        self._batch_moments = moments
        shape = (self.input_shape[1],)
        self._epsilon = epsilon
        self._momentum = momentum
        self.gamma = self.add_param(lasagne.init.Constant(1), shape, name="gamma", regularizable=False)
        self.beta = self.add_param(lasagne.init.Constant(0), shape, name="beta", regularizable=False)
        self.mean = self.add_param(lasagne.init.Constant(0), shape, name="mean", trainable=False, regularizable=False)
        self.variance = self.add_param(
            lasagne.init.Constant(1), shape, name="variance", trainable=False, regularizable=False
        )
        self.updates: Any = []
        #: (mean, biased variance) of the input in the latest pass with ``batch_statistics``.
        self.moments: Any = None

    def get_output_for(
        self, input: Variable, deterministic: bool = False, batch_statistics: bool = False, **options: Any
    ) -> Variable:
        if batch_statistics:
            self.moments = operations.batch_moments(input)
            return operations.batch_norm(input, self.gamma, self.beta, *self.moments, epsilon=self._epsilon)
        if self._momentum is None:
            moments = (self.mean, self.variance) if deterministic else self._batch_moments(input)
            return operations.batch_norm(input, self.gamma, self.beta, *moments, epsilon=self._epsilon)
        axes = "spatial" if input.ndim > 2 else "per-activation"
        if deterministic:
            return self._shaped(T.nnet.bn.batch_normalization_test, axes)(
                input, self.gamma, self.beta, self.mean, self.variance
            )
        return self._train(input, axes)

    def _shaped(self, function: Any, axes: str) -> Any:
        def call(input: Variable, *vectors: Variable) -> Variable:
            return function(
                input,
                *[_broadcast(vector, input.ndim) for vector in vectors],
                axes=axes,
                epsilon=self._epsilon,
            )

        return call

    def _train(self, input: Variable, axes: str) -> Variable:
        vectors = [_broadcast(vector, input.ndim) for vector in (self.gamma, self.beta)]
        running = [_broadcast(vector, input.ndim) for vector in (self.mean, self.variance)]
        found = T.nnet.bn.batch_normalization_train(
            input,
            vectors[0],
            vectors[1],
            axes=axes,
            epsilon=self._epsilon,
            running_average_factor=1 - self._momentum,
            running_mean=running[0],
            running_var=running[1],
        )
        self.updates = [(self.mean, T.flatten(found[3])), (self.variance, T.flatten(found[4]))]
        return found[0]


def _broadcast(vector: Variable, ndim: int) -> Variable:
    return vector.dimshuffle(*(["x", 0] + ["x"] * (ndim - 2)))


def seed(value: int) -> None:
    """Fixes the seeds that Lasagne's layers draw when they are built."""
    lasagne.random.set_rng(np.random.RandomState(value & 0xFFFFFFFF))
