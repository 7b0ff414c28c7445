"""What Caffe's pooling computes for given sizes, and what a model asks for.

Caffe rounds the number of windows up unless told otherwise, drops a last window that starts in the padding
only if there is padding, pads the same before and after, and divides an average by the part of the window
inside the padded input. Windows beyond that are expressed by explicit padding and a constant factor.
"""

from typing import List, NamedTuple, Optional, Tuple

import numpy as np

from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Pool, windows


class Plan(NamedTuple):
    """How a pooling layer is expressed; all sizes are (height, width).

    ``begin`` and ``end``: explicit padding before it; ``pad``: Caffe's own; ``ceil``: Caffe's rounding, None
    to leave it to Caffe; ``factor``: float32 (height, width) to multiply averages with, or None.
    """

    begin: Tuple[int, int]
    end: Tuple[int, int]
    pad: Tuple[int, int]
    ceil: Optional[bool]
    factor: Optional[np.ndarray]


def caffe_windows(size: int, kernel: int, stride: int, pad: int, padded: bool, ceil: bool) -> int:
    """Number of windows that Caffe makes along one dimension; ``padded``: if either dimension is."""
    span = size + 2 * pad - kernel
    count = (-(-span // stride) if ceil else span // stride) + 1
    if padded and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def plan(layer: Pool, size: Tuple[int, int], native: bool) -> Plan:
    """The plan for a layer of two dimensions whose input has ``size``.

    In native semantics Caffe's own rounding and divisor are kept; raises ``UNSUPPORTED`` if its rounding
    would give another output size than the model has.
    """
    dims = list(zip(size, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end))
    wanted = [windows(n, k, s, b, e, layer.round_mode) for n, k, s, b, e in dims]
    padded = any(layer.pad_begin)
    if layer.pad_begin == layer.pad_end:
        ceil = native or layer.round_mode == "ceil"
        own = [caffe_windows(n, k, s, b, padded, ceil) for n, k, s, b, _ in dims]
        if own == wanted:
            factor = None
            if layer.kind == "average" and padded and not layer.count_include_pad and not native:
                factor = _factor(layer, size, wanted, layer.pad_end)
            return Plan((0, 0), (0, 0), layer.pad_begin, None if native else ceil, factor)
        if native:
            raise CrosstrainError(
                "UNSUPPORTED",
                "engine caffe does not support layer %r in native semantics: Caffe rounds the output size up to %s, "
                "the model has %s; give the layer round_mode ceil, or use canonical semantics"
                % (layer.name, tuple(own), tuple(wanted)), "model.layers[%s].round_mode" % layer.name)
    # Padding to exactly what the windows reach leaves nothing to round or to clip.
    end = tuple(max(0, (count - 1) * s + k - n - b) for count, (n, k, s, b, _) in zip(wanted, dims))
    factor = None
    if layer.kind == "average":
        factor = _factor(layer, size, wanted, None)
    return Plan(layer.pad_begin, end, (0, 0), False, factor)


def _factor(
    layer: Pool, size: Tuple[int, int], counts: List[int], own_end: Optional[Tuple[int, ...]]
) -> Optional[np.ndarray]:
    """Caffe's divisor over the model's, per window; None if they are all equal.

    ``own_end``: Caffe's padding at the end, to which it clips windows; None if it clips none.
    """
    divided = [np.ones(()), np.ones(())]
    for at, (n, count, k, s, b, e) in enumerate(
            zip(size, counts, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end)):
        first = np.arange(count) * s - b
        last = first + k
        own = np.full(count, k) if own_end is None else np.minimum(last, n + own_end[at]) - first
        low, high = (-b, n + e) if layer.count_include_pad else (0, n)
        wanted = np.minimum(last, high) - np.maximum(first, low)
        divided = [np.multiply.outer(divided[0], own), np.multiply.outer(divided[1], wanted)]
    if (divided[0] == divided[1]).all():
        return None
    return (divided[0] / divided[1]).astype(np.float32)
