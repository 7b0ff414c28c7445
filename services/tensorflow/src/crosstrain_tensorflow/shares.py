"""What one data rank gets of a batch, and what it hands back; the loss that all ranks minimise together.

That loss is the mean over the whole batch. A rank computes the sum over its own rows divided by the size of the
whole batch, so that the sum over ranks is the gradient wanted however unequal the shares are.
"""

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow as tf

from crosstrain_service.parallel.shares import share_slice
from crosstrain_service.training import Training

#: Adds lists of tensors up over all data ranks, differentiably: the gradient of the sum is the sum of gradients.
Sum = Callable[[List[tf.Tensor]], List[tf.Tensor]]


class Share(NamedTuple):
    """Rows of a batch.

    ``real`` is 1, or 0 for a row that stands in for an empty share and must weigh nothing; ``total`` is the number of
    samples in the whole batch; both scalars. ``rank`` is the data rank. ``add`` adds up over the ranks, None alone.
    """

    x: tf.Tensor
    labels: tf.Tensor
    masks: Dict[str, tf.Tensor]
    real: Any = 1.0
    total: Any = None
    rank: int = 0
    add: Optional[Sum] = None

    @property
    def rows(self) -> int:
        """Number of rows, a stand-in included."""
        return int(self.labels.shape[0])

    def part(self, rows: slice) -> "Share":
        """Some of the rows."""
        masks = {name: mask[rows] for name, mask in self.masks.items()}
        return self._replace(x=self.x[rows], labels=self.labels[rows], masks=masks)


def fixed_rows(training: Training, ranks: int) -> Optional[int]:
    """Rows of every share of every batch on so many data ranks; None if the shares of a run differ in size."""
    rows, rest = divmod(training.batch_size, ranks)
    return rows if training.drop_last and not rest else None


def shares_of(samples: int, count: int) -> Iterator[Tuple[slice, float]]:
    """Rows of ``count`` near-equal shares, each with 1; of an empty one the first row, standing in for it, and 0."""
    for index in range(count):
        rows = share_slice(samples, count, index)
        yield (rows, 1.0) if rows.stop > rows.start else (slice(0, 1), 0.0)


def split(share: Share, count: int) -> List[Share]:
    """``count`` near-equal shares of one; an empty one is the first row, with ``real`` 0."""
    return [share.part(rows)._replace(real=share.real if real else 0.0, rank=share.rank * count + index)
            for index, (rows, real) in enumerate(shares_of(share.rows, count))]


def pieces(share: Share, count: int) -> List[Share]:
    """``share`` cut into at most ``count`` near-equal pieces, none of them empty, to compute one after the other."""
    cuts = [share_slice(share.rows, count, index) for index in range(count)]
    return [share.part(rows) for rows in cuts if rows.stop > rows.start]


def loss_sum(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy added up over the rows, from logits (B, K) and labels (B,)."""
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def scaled(value: tf.Tensor, share: Share) -> tf.Tensor:
    """A share's sum over rows as its addend in the mean over the whole batch."""
    return value * (tf.cast(share.real, value.dtype) / tf.cast(share.total, value.dtype))
