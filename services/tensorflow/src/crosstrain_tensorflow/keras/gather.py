"""Batches gathered from the memory-mapped data set by ``tf.data`` alone.

Handing a batch from Python to ``tf.data`` takes the interpreter's lock from the training thread for a good part of
a millisecond. Here Python sets the order once per epoch; the rest runs in TensorFlow's threads.
"""

import itertools
import weakref
from typing import Any, Callable, Iterator, Optional, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Rows

from ..shares import shares_of
from .pipeline import close_queue, with_options

#: TensorFlow's operations expect their inputs at multiples of this, bytes.
ALIGNMENT = 64


class Gather:
    """A ``tf.data.Dataset`` of (x, labels) over rows of a data set, for any order and number of batches.

    ``batch`` is the number of rows of every element if they are equal.
    With ``shares`` above 0 an element is one of that many shares of a batch, (x, labels, weights): weights (B,)
    are 1 / size of the whole batch, or 0 for the one row of an empty share. ``pack`` makes of these what is to be an
    element of the data set.

    What is to be read stands in a queue, at which the data set waits: one iterator serves all epochs.
    """

    def __init__(self,
                 rows: Rows,
                 dtype: str,
                 prefetch: int,
                 batch: Optional[int] = None,
                 shares: int = 0,
                 pack: Callable[..., Any] = lambda *element: element) -> None:
        self._source = _source(rows)
        self._shares = shares
        self._weight_type = tf.as_dtype(dtype).as_numpy_dtype
        with tf.device("/CPU:0"):
            pixels, labels = _shared(rows.pixels), _shared(rows.labels)
            # A captured tensor, not a constant: no optimizer makes a multiplication of this division.
            divisor = tf.constant(rows.divisor)
            # Of each element its rows, and their weights; ready-made, since every operation of the data set takes a
            # core from training.
            self._queue = queue = tf.queue.FIFOQueue(-1, [tf.int64, dtype] if shares else [tf.int64])
        # An iterator that waits at the queue could not be let go of.
        weakref.finalize(self, close_queue, queue)
        is_scaled = rows.pixels.dtype == np.uint8

        def element(_: tf.Tensor) -> Any:  # without a reference to this object, which ends before its data set
            chosen, *weights = tf.nest.flatten(queue.dequeue())
            for part in [chosen] + weights:
                part.set_shape((batch,))
            x = tf.gather(pixels, chosen)
            if is_scaled:
                x = tf.cast(x, tf.float32) / divisor
            return pack(tf.cast(x, dtype), tf.gather(labels, chosen), *weights)

        ahead = max(1, prefetch) * max(1, shares)
        self.dataset = with_options(tf.data.Dataset.counter().map(element).prefetch(ahead))

    def serves(self, rows: Rows) -> bool:
        """Whether this is the pipeline for the arrays of ``rows``."""
        return self._source == _source(rows)

    def start(self, rows: Rows) -> None:
        """Has the rows of the next call of ``fit`` read; those of the one before must have been."""
        for size, elements in itertools.groupby(self._elements(rows), lambda element: len(element[0])):
            chosen, weights = zip(*elements)
            columns = [np.stack(chosen)]
            if self._shares:
                columns.append(np.repeat(np.array(weights, self._weight_type)[:, None], size, 1))
            self._queue.enqueue_many(columns)

    def _elements(self, rows: Rows) -> Iterator[Tuple[np.ndarray, float]]:
        """Rows and their weight of every element; one row stands in for an empty share."""
        for index, start in enumerate(range(0, len(rows.order), rows.batch_size)):
            batch = rows.order[start:start + rows.batch_size]
            total = len(batch) if rows.totals is None else rows.totals[index]
            for part, real in shares_of(len(batch), max(1, self._shares)):
                yield batch[part], real / total


def can_gather(rows: Optional[Rows]) -> bool:
    """Whether TensorFlow can read the arrays where they are and would compute the same bits as the platform.

    TensorFlow flushes denormal numbers to zero: only the quotients of bytes are known to be none.
    """
    if rows is None:
        return False
    for array in (rows.pixels, rows.labels):
        if not (array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0 and array.size):
            return False
    tiny = np.finfo(np.float32).tiny
    if rows.pixels.dtype == np.uint8:
        return bool(tiny <= rows.divisor and tiny <= np.float32(1) / rows.divisor)
    return bool(rows.divisor == 1)


def _source(rows: Rows) -> Tuple[Any, ...]:
    return (rows.pixels.ctypes.data, rows.labels.ctypes.data, len(rows.labels), rows.divisor, rows.batch_size)


class _Memory:
    """An array's memory declared writable, which NumPy demands before it hands it over; nothing writes to it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__array_interface__ = dict(array.__array_interface__, data=(array.ctypes.data, False))


def _shared(array: np.ndarray) -> tf.Tensor:
    """A tensor on the CPU in the memory of ``array``, which it keeps alive."""
    return tf.experimental.dlpack.from_dlpack(np.asarray(_Memory(array)).__dlpack__())
