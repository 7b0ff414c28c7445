"""Batches gathered from the memory-mapped data set by ``tf.data`` alone.

Handing a batch from Python to ``tf.data`` takes the interpreter's lock from the training thread for a good part of
a millisecond. Here Python sets the order once per epoch; the rest runs in TensorFlow's threads.
"""

import weakref
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Rows
from crosstrain_service.parallel.shares import share_slice

from .pipeline import close_queue, with_options

#: TensorFlow's operations expect their inputs at multiples of this, bytes.
ALIGNMENT = 64


class Gather:
    """A ``tf.data.Dataset`` of (x, labels) over rows of a data set, for any order and number of batches.

    With ``shares`` above 0 an element is one of that many shares of a batch, (x, labels, weights): weights (B,)
    are 1 / size of the whole batch, or 0 for the one row of an empty share. ``pack`` makes of these what is to be an
    element of the data set.

    What is to be read stands in a queue, at which the data set waits: one iterator serves all epochs.
    """

    def __init__(self,
                 rows: Rows,
                 dtype: str,
                 prefetch: int,
                 shares: int = 0,
                 pack: Callable[..., Any] = lambda *element: element) -> None:
        self._source = _source(rows)
        self._shares = shares
        self._weight_type = tf.as_dtype(dtype).as_numpy_dtype
        with tf.device("/CPU:0"):
            pixels, labels = _shared(rows.pixels), _shared(rows.labels)
            # A captured tensor, not a constant: no optimizer makes a multiplication of this division.
            divisor = tf.constant(rows.divisor)
            self._order = tf.Variable(np.zeros(0, np.int64), trainable=False, shape=(None,), name="order")
            # Of each element: where its rows begin and end in the order, and their weight.
            self._queue = tf.queue.FIFOQueue(-1, [tf.int64, tf.int64, dtype], [(), (), ()])
        # An iterator that waits at the queue could not be let go of.
        weakref.finalize(self, close_queue, self._queue)
        order, queue = self._order, self._queue
        is_scaled = rows.pixels.dtype == np.uint8

        def element(_: tf.Tensor) -> Any:  # without a reference to this object, which ends before its data set
            start, stop, weight = queue.dequeue()
            chosen = order[start:stop]
            x = tf.gather(pixels, chosen)
            if is_scaled:
                x = tf.cast(x, tf.float32) / divisor
            found = tf.cast(x, dtype), tf.gather(labels, chosen)
            return pack(*found, tf.fill([stop - start], weight)) if shares else pack(*found)

        ahead = max(1, prefetch) * max(1, shares)
        self.dataset = with_options(tf.data.Dataset.counter().map(element).prefetch(ahead))

    def serves(self, rows: Rows) -> bool:
        """Whether this is the pipeline for the arrays of ``rows``."""
        return self._source == _source(rows)

    def start(self, rows: Rows) -> None:
        """Has the rows of the next call of ``fit`` read; those of the one before must have been."""
        self._order.assign(rows.order)
        starts = np.arange(0, len(rows.order), rows.batch_size)
        sizes = np.minimum(rows.batch_size, len(rows.order) - starts)
        totals = sizes if rows.totals is None else rows.totals
        elements = [(start + part.start, start + max(part.stop, part.start + 1), (part.stop > part.start) / total)
                    for start, size, total in zip(starts, sizes, totals) for part in self._parts(size)]
        begins, ends, weights = zip(*elements)
        self._queue.enqueue_many((np.array(begins), np.array(ends), np.array(weights, self._weight_type)))

    def _parts(self, size: int) -> List[slice]:
        """The shares of a batch; an empty one begins with the batch, whose first row stands in for it."""
        if not self._shares:
            return [slice(0, size)]
        found = [share_slice(size, self._shares, index) for index in range(self._shares)]
        return [part if part.stop > part.start else slice(0, 0) for part in found]


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
