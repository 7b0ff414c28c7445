"""How canonical padding and rounding are expressed with TensorFlow's paddings "VALID" and "SAME".

Plain arithmetic on spatial sizes, one integer per spatial dimension; imports no framework.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from crosstrain_service.model import Convolution, Pool, windows

Pads = Tuple[Tuple[int, int], ...]


class Padding(NamedTuple):
    """Pad explicitly by ``pads`` (begin, end) per dimension, or not at all, then use ``mode``.

    ``factors`` multiply the result of an average pool, shape ``(*output, 1)``, or are None.
    """

    mode: str
    pads: Optional[Pads] = None
    factors: Optional[np.ndarray] = None


def same_padding(size: int, kernel: int, stride: int) -> Tuple[int, int]:
    """The padding that "SAME" means: ``max((ceil(n / s) - 1) s + k - n, 0)``, the odd one at the end."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def convolution_padding(layer: Convolution, spatial: Sequence[int]) -> Padding:
    """Padding of a convolution over an input of the sizes ``spatial``."""
    pads = tuple(zip(layer.pad_begin, layer.pad_end))
    if not any(map(any, pads)):
        return Padding("VALID")
    if pads == _same(layer, spatial):
        return Padding("SAME")
    return Padding("VALID", pads)


def pool_padding(layer: Pool, spatial: Sequence[int]) -> Padding:
    """Padding of a pool over an input of the sizes ``spatial``, "ceil" and the average's divisor included."""
    counts = _window_counts(layer, spatial)
    pads = tuple(
        (begin, max((count - 1) * stride + kernel - size - begin, 0))
        for count, stride, kernel, size, begin in zip(
            counts, layer.stride, layer.kernel, spatial, layer.pad_begin)
    )
    padded = any(map(any, pads))
    # "SAME" leaves padding out of maxima and of the average's divisor.
    ignores_padding = layer.kind == "max" or not layer.count_include_pad
    if padded and ignores_padding and pads == _same(layer, spatial):
        return Padding("SAME")
    factors = average_factors(layer, spatial, counts) if layer.kind == "average" else None
    return Padding("VALID", pads if padded else None, factors)


def average_factors(layer: Pool,
                    spatial: Sequence[int],
                    counts: Sequence[int]) -> Optional[np.ndarray]:
    """Kernel area divided by the canonical divisor of every window (float64), or None where all are 1.

    The divisor is the part of the window inside input and padding, or inside the input alone unless
    ``count_include_pad``.
    """
    factors = np.ones(())
    for size, count, kernel, stride, begin, end in zip(
            spatial, counts, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end):
        start = stride * np.arange(count)
        low, high = (0, begin + size + end) if layer.count_include_pad else (begin, begin + size)
        length = np.minimum(start + kernel, high) - np.maximum(start, low)
        factors = factors[..., np.newaxis] * (kernel / length)
    return None if (factors == 1).all() else factors[..., np.newaxis]


def _window_counts(layer: Pool, spatial: Sequence[int]) -> List[int]:
    sizes = zip(spatial, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end)
    return [windows(*size, round_mode=layer.round_mode) for size in sizes]


def _same(layer: object, spatial: Sequence[int]) -> Pads:
    return tuple(same_padding(*sizes) for sizes in zip(spatial, layer.kernel, layer.stride))
