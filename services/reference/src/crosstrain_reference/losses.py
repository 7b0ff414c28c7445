"""Softmax cross-entropy from logits, and accuracy.

``logits`` has shape ``(N, K)`` and ``labels`` ``(N,)`` with integers 0..K-1.  Wrong shapes raise ValueError,
and so does a label out of range, named with its row.
"""

import numpy as np

from .ops.checks import same_dtype


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return ``exp(logits)`` normalized over classes, shifted by the row's maximum so that nothing overflows."""
    same_dtype("softmax", logits=logits)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def cross_entropy_per_sample(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return ``log(sum_k exp(logits_k)) - logits_label`` for every sample, shape ``(N,)``."""
    _check(logits, labels)
    shifted = logits - logits.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(labels.shape[0]), labels]
    return np.log(np.exp(shifted).sum(axis=1)) - chosen


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.floating:
    """Return the mean of :func:`cross_entropy_per_sample`, a scalar of the logits' type."""
    return cross_entropy_per_sample(logits, labels).mean()


def cross_entropy_gradient(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the gradient of :func:`cross_entropy`: ``(softmax - one_hot) / N``."""
    _check(logits, labels)
    gradient = softmax(logits)
    gradient[np.arange(labels.shape[0]), labels] -= 1
    gradient /= labels.shape[0]
    return gradient


def accuracy_count(logits: np.ndarray, labels: np.ndarray) -> int:
    """Return how many rows have their first largest logit at the label."""
    _check(logits, labels)
    return int(np.count_nonzero(logits.argmax(axis=1) == labels))


def _check(logits: np.ndarray, labels: np.ndarray) -> None:
    same_dtype("cross_entropy", logits=logits)
    if logits.ndim != 2 or 0 in logits.shape or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"cross_entropy: logits have shape {logits.shape} and labels {labels.shape}, expected (N, K) and (N,)"
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(f"cross_entropy: labels have type {labels.dtype}, expected integers")
    wrong = np.flatnonzero((labels < 0) | (labels >= logits.shape[1]))
    if wrong.size:
        raise ValueError(
            f"cross_entropy: row {wrong[0]} has label {labels[wrong[0]]}, expected 0..{logits.shape[1] - 1}"
        )
