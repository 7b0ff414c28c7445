"""Whether a tensor as a whole has the right size, where single elements may be off by much: mixed precision.

Half precision leaves an element of a gradient so much room (5 u_h times the sum of its products' absolute values, ten
or more times the element itself where they cancel) that a gradient or an update a tenth too large would pass. Its size
along the direction expected is known far better, since roundings of different elements are as often up as down:

    |sum (found - expected) d| <= min(6 sqrt(sum (e d)^2), sum e |d|) + 2 u_h sum d^2

with e the bounds of the elements and d what is expected itself. By Hoeffding's inequality the sum of independent errors
of mean zero, each within e, exceeds the first term with a chance below 2 exp(-18) = 3e-8. Elements of one output
channel are not independent: they share the errors of its output's gradient. But e adds up the absolute values of n
roundings, which makes it wider than their sum is by a factor near sqrt(n). The second term is for roundings that all
go the same way: of two factors that hold one value everywhere, as the pixels of a blank image.
"""

from __future__ import annotations

import numpy as np

from crosstrain.compare.certificate.comparison import Check
from crosstrain.compare.numerics.bounds import Bounded

#: Kind of the check of a gradient.
SIZE = "gradient, size"
#: Standard deviations that a sum of independent errors of the largest size may reach.
_DEVIATIONS = 6.0


def size(
    kind: str,
    subject: str,
    step: int,
    found: np.ndarray,
    wanted: Bounded,
    half: float,
    start: float | np.ndarray = 0.0,
    layer: str = "",
) -> Check | None:
    """The check of what goes from ``start`` to ``found`` and should go to ``wanted``; ``half`` is the unit roundoff.

    None where nothing is expected to move, or the values cannot be compared (which other checks say).
    """
    value = np.asarray(wanted.value)
    if found is None or found.shape != value.shape:
        return None
    direction = value - start
    length = float(np.sum(direction**2))
    off = float(np.sum((found.astype(value.dtype) - value) * direction))
    if not 0 < length < np.inf or not np.isfinite(off):
        return None
    error = np.broadcast_to(np.asarray(wanted.error, dtype=value.dtype), value.shape) * np.abs(direction)
    # A norm that cannot be told apart from rounding bounds nothing.
    bound = min(_DEVIATIONS * float(np.sqrt(np.sum(error**2))), float(np.sum(error))) + 2 * half * length
    detail = ""
    if abs(off) > bound:
        detail = f": {1 + off / length:.6g} times as large as expected, must be 1 within {bound / length:.2g}"
    return Check(
        kind, subject, step, abs(off) / bound, detail, None, 1 + off / length, 1.0, bound / length,
        int(abs(off) > bound), 1, layer,
    )  # fmt: skip
