"""Rounding of float32 arrays to shorter formats, to nearest with ties to even."""

import numpy as np


def to_bfloat16(x):
    """Values of 8 significant bits, as float32."""
    return _rounded(x, 16)


def to_tf32(x):
    """Values of 11 significant bits, as float32."""
    return _rounded(x, 13)


def _rounded(x, dropped):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    half = np.uint64((1 << (dropped - 1)) - 1)
    odd = (bits >> np.uint64(dropped)) & np.uint64(1)
    bits = (bits + half + odd) >> np.uint64(dropped) << np.uint64(dropped)
    return bits.astype(np.uint32).view(np.float32)
