"""Bound of the gradient of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain.compare.numerics.bounds import Arithmetic, Bounded
from crosstrain_reference import cross_entropy_gradient, softmax


def loss_gradient(logits: np.ndarray, labels: np.ndarray, incoming: Any, arithmetic: Arithmetic) -> Bounded:
    """(softmax - one hot) / N for logits with an error.

    softmax = exp(z - log sum exp): an absolute error of the exponent is a relative one of the result, and the
    exponent is rounded at the size of its operands. The label's element is a difference with 1.
    """
    share = softmax(logits)
    moved = np.zeros_like(logits) + incoming
    top = np.abs(logits).max(axis=1, keepdims=True)
    size = arithmetic.floor * (1 + top + np.sqrt(logits.shape[1]))
    size = share * (size + moved + (share * moved).sum(axis=1, keepdims=True))
    wanted = cross_entropy_gradient(logits, labels)
    return Bounded(wanted, size / len(labels) + arithmetic.floor * np.abs(wanted) + arithmetic.tiny)
