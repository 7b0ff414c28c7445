"""Operations on channels-last tensors that TensorFlow does not offer in the form the canonical function needs."""

from typing import List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from .geometry import Padding, Pads
from .shares import Share, Sum


def to_channels_last(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """(B, C, spatial...) to (B, spatial..., C), by a reshape alone where that is the same; (B, F) unchanged.

    ``shape`` is the static shape without the batch.
    """
    if len(shape) == 1:
        return x
    if shape[0] == 1 or int(np.prod(shape[1:])) == 1:
        return tf.reshape(x, (-1,) + tuple(shape[1:]) + (shape[0],))
    return tf.transpose(x, [0] + list(range(2, len(shape) + 1)) + [1])


def to_channels_first(x: tf.Tensor) -> tf.Tensor:
    """(B, spatial..., C) to (B, C, spatial...)."""
    rank = len(x.shape)
    return tf.transpose(x, [0, rank - 1] + list(range(1, rank - 1)))


def pad(x: tf.Tensor, pads: Optional[Pads], value: float = 0.0) -> tf.Tensor:
    """Pads the spatial dimensions of (B, spatial..., C) with ``value``; ``None`` pads nothing."""
    if pads is None:
        return x
    return tf.pad(x, [(0, 0)] + [tuple(pair) for pair in pads] + [(0, 0)], constant_values=value)


def convolution(x: tf.Tensor,
                kernel: tf.Tensor,
                stride: Sequence[int],
                padding: Padding) -> tf.Tensor:
    """Cross-correlation of (B, spatial..., I) with a kernel (spatial..., I, O), without a bias."""
    x = pad(x, padding.pads)
    if len(stride) == 1:
        return tf.nn.conv1d(x, kernel, stride[0], padding.mode)
    return tf.nn.conv2d(x, kernel, list(stride), padding.mode)


def max_pool(x: tf.Tensor,
             kernel: Sequence[int],
             stride: Sequence[int],
             padding: Padding) -> tf.Tensor:
    """Maximum of every window; explicit padding is minus infinity and so is never chosen.

    TensorFlow's gradient goes to the first maximum in row-major order.
    """
    pool = tf.nn.max_pool1d if len(kernel) == 1 else tf.nn.max_pool2d
    return pool(pad(x, padding.pads, -np.inf), list(kernel), list(stride), padding.mode)


def average_pool(x: tf.Tensor,
                 kernel: Sequence[int],
                 stride: Sequence[int],
                 padding: Padding) -> tf.Tensor:
    """Mean of every window, corrected by ``padding.factors`` where the divisor is not the kernel's area."""
    pool = tf.nn.avg_pool1d if len(kernel) == 1 else tf.nn.avg_pool2d
    y = pool(pad(x, padding.pads), list(kernel), list(stride), padding.mode)
    return y if padding.factors is None else y * tf.constant(padding.factors, y.dtype)


def local_response_norm(x: tf.Tensor,
                        size: int,
                        alpha_sum: float,
                        beta: float,
                        k: float) -> tf.Tensor:
    """``x / (k + alpha_sum * sum x^2) ** beta`` over ``size`` neighbouring channels of (B, spatial..., C).

    TensorFlow's own operation takes float32 alone (its alpha multiplies the sum); in float64 the sum over
    channels is a product with a band matrix of ones.
    """
    radius = (size - 1) // 2
    if x.dtype == tf.float32:
        flat = tf.expand_dims(x, 1) if len(x.shape) == 3 else x
        y = tf.nn.local_response_normalization(flat, radius, k, alpha_sum, beta)
        return tf.squeeze(y, 1) if len(x.shape) == 3 else y
    channel = np.arange(x.shape[-1])
    band = np.abs(channel[:, np.newaxis] - channel) <= radius
    total = tf.tensordot(tf.square(x), tf.constant(band, x.dtype), 1)
    return x * tf.pow(k + alpha_sum * total, -beta)


def within_channel_norm(x: tf.Tensor,
                        size: int,
                        alpha_sum: float,
                        beta: float,
                        k: float) -> tf.Tensor:
    """``x / (k + alpha_sum * sum x^2) ** beta``, the sum over ``size`` positions per dimension of (B, spatial..., C).

    An average over the zero-padded squares has the divisor ``size ** dims`` in every window.
    """
    dims = len(x.shape) - 2
    pool = tf.nn.avg_pool1d if dims == 1 else tf.nn.avg_pool2d
    squares = pad(tf.square(x), [(size // 2, size // 2)] * dims)
    total = pool(squares, [size] * dims, [1] * dims, "VALID") * (alpha_sum * size ** dims)
    return x * tf.pow(k + total, -beta)


def moments_of_shares(x: tf.Tensor, share: Share) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mean and biased variance (C,) over the shares (B, spatial..., C) of all data ranks, and the number of values.

    Two sums, as ``tf.nn.moments`` does it: the mean of squares minus the squared mean would cancel. The
    mean in the second needs no gradient, since deviations from it add up to 0. Factors instead of divisions: of a
    division by a constant a graph makes a product, which rounds otherwise than what is recorded outside of it.
    """
    axes = list(range(len(x.shape) - 1))
    real = tf.cast(share.real, x.dtype)
    count = tf.cast(share.total, x.dtype) * float(np.prod(x.shape[1:-1]))
    part = real / count
    mean = share.add([tf.reduce_sum(x, axes) * part])[0]
    deviations = tf.math.squared_difference(x, tf.stop_gradient(mean))
    variance = share.add([tf.reduce_sum(deviations, axes) * part])[0]
    return mean, variance, count


def mean_of_shares(values: List[tf.Tensor], share: Share) -> List[tf.Tensor]:
    """Means of tensors over the data ranks, those whose share is empty left out."""
    real = tf.cast(share.real, values[0].dtype)
    *sums, ranks = share.add([value * real for value in values] + [real])
    return [value / ranks for value in sums]


def moments_by_weights(x: tf.Tensor, weights: tf.Tensor, add: Sum) -> Tuple[tf.Tensor, tf.Tensor]:
    """Mean and biased variance (C,) as :func:`moments_of_shares`, by a weight for each row (B,).

    The weights of all rows of all ranks add up to 1.
    """
    axes = list(range(len(x.shape) - 1))
    weights = tf.reshape(weights, [-1] + [1] * (len(x.shape) - 1)) * (1.0 / float(np.prod(x.shape[1:-1])))
    mean = add([tf.reduce_sum(x * weights, axes)])[0]
    deviations = tf.math.squared_difference(x, tf.stop_gradient(mean))
    return mean, add([tf.reduce_sum(deviations * weights, axes)])[0]
