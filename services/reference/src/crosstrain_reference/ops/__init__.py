"""Operations of a convolutional network: pure functions, each with its backward pass."""

from .activations import relu, relu_backward
from .convolution import convolution, convolution_backward, convolution_output_shape
from .dense import dense, dense_backward
from .dropout import dropout, dropout_backward
from .normalization import (
    alpha_sum_from_average,
    batch_norm,
    batch_norm_backward,
    batch_statistics,
    lrn,
    lrn_backward,
    lrn_sum,
)
from .padding import pad, pad_backward, pad_output_shape
from .pooling import (
    average_pool,
    average_pool_backward,
    max_pool,
    max_pool_backward,
    pool_output_shape,
)
from .shape import flatten, unflatten

__all__ = [
    "alpha_sum_from_average",
    "average_pool",
    "average_pool_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_statistics",
    "convolution",
    "convolution_backward",
    "convolution_output_shape",
    "dense",
    "dense_backward",
    "dropout",
    "dropout_backward",
    "flatten",
    "lrn",
    "lrn_backward",
    "lrn_sum",
    "max_pool",
    "max_pool_backward",
    "pad",
    "pad_backward",
    "pad_output_shape",
    "pool_output_shape",
    "relu",
    "relu_backward",
    "unflatten",
]
