"""The canonical operations as Theano expressions.

All take and give tensors (B, C, H, W) or (B, C, L); one-dimensional layers pass through the two-dimensional
operation with a unit width. Where Theano's own operation has another gradient at ties or at zero, the
gradient is replaced (``OpFromGraph``), so that forward passes stay those of Theano.
"""

from itertools import product
from typing import Any, Sequence, Tuple

import numpy as np

from crosstrain_service.model import LocalResponseNorm, Pool, windows

from .device import T, floating, pool_2d, theano

Variable = Any
Pads = Sequence[Tuple[int, int]]


def relu(x: Variable) -> Variable:
    """max(x, 0) with gradient 0 at exactly 0; NaN stays NaN.

    ``T.nnet.relu`` has gradient 0.5 there and ``T.maximum`` 1. ``T.switch(x > 0, x, 0)`` has 0, but costs
    seven times as much as this on a CPU.
    """
    entry = x.type()

    def gradient(inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        return [output_gradients[0] * T.cast(T.gt(inputs[0], 0), entry.dtype)]

    operation = theano.OpFromGraph(
        [entry], [T.maximum(entry, floating(0))], inline=True, lop_overrides=gradient, name="relu"
    )
    return operation(x)


def pad(x: Variable, pads: Pads, value: float = 0.0) -> Variable:
    """x with ``value`` around its last dimensions; ``pads`` gives (before, after) for each."""
    if not any(before or after for before, after in pads):
        return x
    first = x.ndim - len(pads)
    shape = [x.shape[axis] for axis in range(x.ndim)]
    inside = [slice(None)] * x.ndim
    for axis, (before, after) in enumerate(pads, first):
        inside[axis] = slice(before, before + shape[axis])
        shape[axis] = shape[axis] + before + after
    return T.set_subtensor(T.alloc(floating(value), *shape)[tuple(inside)], x)


def convolution(
    x: Variable,
    kernel: Variable,
    pads: Pads,
    stride: Sequence[int],
    input_shape: Sequence[int],
    kernel_shape: Sequence[int],
) -> Variable:
    """Theano's convolution (kernel (O, I, H, W), flipped) with zero padding of its own, also an asymmetric
    one.

    ``input_shape`` (C, H, W) and ``kernel_shape`` let Theano choose its implementation.
    """
    border = tuple(before if before == after else (before, after) for before, after in pads)
    return T.nnet.conv2d(
        x,
        kernel,
        input_shape=(None,) + tuple(input_shape),
        filter_shape=tuple(kernel_shape),
        border_mode=border,
        subsample=tuple(stride),
    )


def pool_pads(layer: Pool, shape: Sequence[int]) -> Tuple[Tuple[int, int], ...]:
    """Padding (before, after) per dimension after which rounding down gives the wanted number of windows.

    ``shape`` is (C, H, W) or (C, L). Rounded up, the last window may reach beyond the padding at the end.
    """
    pads = []
    for size, kernel, stride, begin, end in zip(shape[1:], layer.kernel, layer.stride, layer.pad_begin, layer.pad_end):
        count = windows(size, kernel, stride, begin, end, layer.round_mode)
        reach = (count - 1) * stride + kernel
        pads.append((begin, max(end, reach - size - begin)))
    return tuple(pads)


def max_pool(x: Variable, layer: Pool, shape: Sequence[int]) -> Variable:
    """Largest element of every window; the gradient goes to the first of equal maxima, in row-major order.

    ``shape`` (C, H, W) or (C, L) is that of ``x`` without the batch. Padding is -inf.
    """
    pads = pool_pads(layer, shape)
    padded = pad(x, pads, -np.inf)
    sizes = [size + before + after for size, (before, after) in zip(shape[1:], pads)]
    places = _window_elements(layer, sizes)
    apart = all(stride >= kernel for stride, kernel in zip(layer.stride, layer.kernel))
    entry = padded.type()

    def gradient(inputs: Any, outputs: Any, output_gradients: Any) -> Any:
        largest, given = outputs[0], output_gradients[0]
        result = T.zeros_like(inputs[0])
        # One fused pass per window element: where it is the maximum and none before it was.
        free = None
        for place in places:
            value = inputs[0][place]
            chosen = T.eq(value, largest) if free is None else T.and_(free, T.eq(value, largest))
            share = given * T.cast(chosen, entry.dtype)
            place_result = result[place]
            result = T.set_subtensor(place_result, share) if apart else T.inc_subtensor(place_result, share)
            other = T.neq(value, largest)
            free = other if free is None else T.and_(free, other)
        return [result]

    operation = theano.OpFromGraph(
        [entry],
        [_largest([entry[place] for place in places])],
        inline=True,
        lop_overrides=gradient,
        name="max_pool",
    )
    return operation(padded)


def _window_elements(layer: Pool, sizes: Sequence[int]) -> Sequence[Tuple[slice, ...]]:
    """Index, for each element of a window in row-major order, of that element of every window.

    ``sizes`` are those of the padded input.
    """
    counts = [(size - kernel) // stride + 1 for size, kernel, stride in zip(sizes, layer.kernel, layer.stride)]
    every = slice(None)
    return [
        (every, every)
        + tuple(
            slice(offset, offset + (count - 1) * stride + 1, stride)
            for offset, count, stride in zip(offsets, counts, layer.stride)
        )
        for offsets in product(*[range(kernel) for kernel in layer.kernel])
    ]


def _largest(values: Sequence[Variable]) -> Variable:
    """Elementwise maximum, in pairs: a chain of many would nest too deeply in the generated code."""
    values = list(values)
    while len(values) > 1:
        pairs = [T.maximum(first, second) for first, second in zip(values[::2], values[1::2])]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def average_pool(x: Variable, layer: Pool, shape: Sequence[int]) -> Variable:
    """Mean of every window of ``x`` (B, *shape), padding being 0: Theano's sum pooling over a constant
    divisor.

    With ``count_include_pad`` the divisor is the part of the window inside input and padding, else inside the
    input.
    """
    pads = pool_pads(layer, shape)
    total = theano_pool(pad(x, pads), layer, "sum")
    return total / floating(_divisors(layer, shape))


def _divisors(layer: Pool, shape: Sequence[int]) -> np.ndarray:
    result = np.ones((), np.int64)
    for size, kernel, stride, begin, end in zip(shape[1:], layer.kernel, layer.stride, layer.pad_begin, layer.pad_end):
        start = stride * np.arange(windows(size, kernel, stride, begin, end, layer.round_mode))
        low, high = (0, begin + size + end) if layer.count_include_pad else (begin, begin + size)
        result = result[..., np.newaxis] * (np.minimum(start + kernel, high) - np.maximum(start, low))
    return result[np.newaxis, np.newaxis]


def theano_pool(x: Variable, layer: Pool, mode: str) -> Variable:
    """Theano's own pooling of ``x`` without padding, rounded down; its maximum has a gradient at every tie."""
    flat = x.ndim == 3
    result = pool_2d(
        x.dimshuffle(0, 1, 2, "x") if flat else x,
        ws=layer.kernel + (1,) if flat else layer.kernel,
        stride=layer.stride + (1,) if flat else layer.stride,
        ignore_border=True,
        mode=mode,
    )
    return result[:, :, :, 0] if flat else result


def theano_max_pool(x: Variable, layer: Pool, shape: Sequence[int]) -> Variable:
    """Theano's own maximum pooling, for any padding and rounding."""
    return theano_pool(pad(x, pool_pads(layer, shape), -np.inf), layer, "max")


def local_response_norm(x: Variable, layer: LocalResponseNorm, channels: int) -> Variable:
    """x / (k + alpha_sum * sum of x^2 over ``size`` channels)^beta for x (B, C, ...); Theano has no such
    operation. Within a channel the sum over positions is Theano's sum pooling.
    """
    half = layer.size // 2
    if layer.region == "within_channel":
        dims = x.ndim - 2
        window = Pool(layer.name, "average", (layer.size,) * dims, (1,) * dims, (half,) * dims, (half,) * dims)
        total = theano_pool(pad(T.sqr(x), [(half, half)] * dims), window, "sum")
        return x / (floating(layer.k) + floating(layer.alpha_sum) * total) ** floating(layer.beta)
    squares = pad(T.sqr(x), [(half, half)] + [(0, 0)] * (x.ndim - 2))
    total = squares[:, 0:channels]
    for offset in range(1, layer.size):
        total = total + squares[:, offset : offset + channels]
    return x / (floating(layer.k) + floating(layer.alpha_sum) * total) ** floating(layer.beta)


def batch_moments(x: Variable) -> Tuple[Variable, Variable]:
    """Mean and biased variance per channel of x (B, C, ...), each (C,)."""
    axes = [0] + list(range(2, x.ndim))
    mean = T.mean(x, axis=axes)
    centred = x - _per_channel(mean, x.ndim)
    return mean, T.mean(T.sqr(centred), axis=axes)


def batch_norm(
    x: Variable, gamma: Variable, beta: Variable, mean: Variable, variance: Variable, epsilon: float
) -> Variable:
    """gamma (x - mean) / sqrt(variance + epsilon) + beta per channel of x (B, C, ...); the others are (C,)."""
    scale = gamma / T.sqrt(variance + floating(epsilon))
    return (x - _per_channel(mean, x.ndim)) * _per_channel(scale, x.ndim) + _per_channel(beta, x.ndim)


def _per_channel(vector: Variable, ndim: int) -> Variable:
    return vector.dimshuffle(*(["x", 0] + ["x"] * (ndim - 2)))


def cross_entropy(logits: Variable, labels: Variable) -> Variable:
    """Loss (B,) of logits (B, K) and integer labels (B,): log sum exp minus the label's logit, without
    clipping.
    """
    # The shift cancels out of value and gradient alike.
    shift = theano.gradient.disconnected_grad(T.max(logits, axis=1, keepdims=True))
    shifted = logits - shift
    chosen = shifted[T.arange(labels.shape[0]), labels]
    return T.log(T.sum(T.exp(shifted), axis=1)) - chosen
