"""Keras layers for what Keras 2.3.1 lacks or, in canonical semantics, does differently.

Shapes given to constructors leave the batch out.
"""

from typing import Any, Callable, Sequence

from . import device  # noqa: F401  prepares Theano's compile directory

# isort: split
import keras
import numpy as np
from keras import backend as K

from . import operations

Variable = Any


def zeros(shape: Sequence[int], dtype: Any = None) -> np.ndarray:
    """An initializer; Keras's own compile a Theano function for every variable."""
    return np.zeros(shape)


def ones(shape: Sequence[int], dtype: Any = None) -> np.ndarray:
    """As :func:`zeros`."""
    return np.ones(shape)


class Expression(keras.layers.Layer):
    """A layer without parameters: ``function`` of one tensor (or of a list of tensors), giving ``shape``."""

    def __init__(self, function: Callable[[Any], Variable], shape: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self._function = function
        self._shape = tuple(shape)

    def call(self, inputs: Any) -> Variable:
        return self._function(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (None,) + self._shape


class Convolution2D(keras.layers.Conv2D):
    """Keras's convolution with any zero padding, which Keras itself would need another layer for."""

    def __init__(self, pads: Sequence[Any], shape: Sequence[int], output_shape: Sequence[int], **options: Any) -> None:
        super().__init__(padding="valid", **options)
        self._pads = pads
        self._shape = tuple(shape)
        self._result_shape = tuple(output_shape)

    def call(self, inputs: Variable) -> Variable:
        kernel = self.kernel.dimshuffle(3, 2, 0, 1)
        kernel_shape = (self.filters, self._shape[0]) + self.kernel_size
        result = operations.convolution(inputs, kernel, self._pads, self.strides, self._shape, kernel_shape)
        return K.bias_add(result, self.bias, data_format="channels_first") if self.use_bias else result

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (None,) + self._result_shape


class BatchNormalization(keras.layers.Layer):
    """Batch norm per channel (axis 1): in training by ``moments`` of the batch, which may be those of all ranks; if
    ``alone`` by the batch's own; by loaded statistics otherwise.
    """

    def __init__(self, epsilon: float, moments: Callable[[Variable], Any], **options: Any) -> None:
        super().__init__(**options)
        self._epsilon = epsilon
        self._moments = moments

    def build(self, input_shape: Any) -> None:
        shape = (input_shape[1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer=ones)
        self.beta = self.add_weight(name="beta", shape=shape, initializer=zeros)
        self.moving_mean = self.add_weight(name="moving_mean", shape=shape, initializer=zeros, trainable=False)
        self.moving_variance = self.add_weight(name="moving_variance", shape=shape, initializer=ones, trainable=False)
        super().build(input_shape)

    def call(self, inputs: Variable, training: bool = True, alone: bool = False) -> Variable:
        mean, variance = self.moving_mean, self.moving_variance
        if alone:
            mean, variance = operations.batch_moments(inputs)
        elif training:
            mean, variance = self._moments(inputs)
        return operations.batch_norm(inputs, self.gamma, self.beta, mean, variance, self._epsilon)
