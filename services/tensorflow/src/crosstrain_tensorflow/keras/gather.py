"""Batches gathered from the memory-mapped data set by ``tf.data`` alone.

Handing a batch from Python to ``tf.data`` takes the interpreter's lock from the training thread for a good part of
a millisecond. Here Python sets the order once per epoch; the rest runs in TensorFlow's threads.
"""

from typing import Any, Optional, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Rows

#: TensorFlow's operations expect their inputs at multiples of this, bytes.
ALIGNMENT = 64


class Gather:
    """A ``tf.data.Dataset`` of (x, labels) over rows of a data set, for any order and number of batches.

    With ``shares`` above 0 an element is one of that many shares of a batch, (x, labels, weights): weights (B,)
    are 1 / size of the whole batch, or 0 for the one row of an empty share.
    """

    def __init__(self, rows: Rows, dtype: str, prefetch: int, shares: int = 0) -> None:
        self._source = _source(rows)
        with tf.device("/CPU:0"):
            pixels, labels = _shared(rows.pixels), _shared(rows.labels)
            # A captured tensor, not a constant: no optimizer makes a multiplication of this division.
            divisor = tf.constant(rows.divisor)
            self._order = tf.Variable(np.zeros(0, np.int64), trainable=False, shape=(None,), name="order")
            self._totals = tf.Variable(np.zeros(0, np.int64), trainable=False, shape=(None,), name="totals")
        is_scaled = rows.pixels.dtype == np.uint8
        size = rows.batch_size

        def batch(index: tf.Tensor) -> Any:
            return read(self._order[index * size:(index + 1) * size])

        def read(chosen: tf.Tensor) -> Any:
            x = tf.gather(pixels, chosen)
            if is_scaled:
                x = tf.cast(x, tf.float32) / divisor
            return tf.cast(x, dtype), tf.gather(labels, chosen)

        def share(index: tf.Tensor) -> Any:
            step, part = index // shares, index % shares
            chosen = self._order[step * size:(step + 1) * size]
            quotient, larger = tf.size(chosen, tf.int64) // shares, tf.size(chosen, tf.int64) % shares
            start = part * quotient + tf.minimum(part, larger)
            rows = chosen[start:start + quotient + tf.cast(part < larger, tf.int64)]
            real = tf.cast(tf.size(rows) > 0, dtype)
            rows = tf.cond(real > 0, lambda: rows, lambda: chosen[:1])
            total = tf.cast(tf.reduce_sum(self._totals[step:step + 1]), dtype)
            return read(rows) + (tf.fill([tf.size(rows)], tf.math.divide_no_nan(real, total)),)

        # Without an end: ``fit`` is told the number of steps, and what is beyond the order is an empty batch.
        self.dataset = with_options(tf.data.Dataset.counter().map(share if shares else batch),
                                    max(1, prefetch) * max(1, shares))

    def serves(self, rows: Rows) -> bool:
        """Whether this is the pipeline for the arrays of ``rows``."""
        return self._source == _source(rows)

    def start(self, rows: Rows) -> None:
        """Sets the row numbers of the next call of ``fit``."""
        self._order.assign(rows.order)
        totals = rows.totals
        if totals is None:
            starts = np.arange(0, len(rows.order), rows.batch_size)
            totals = np.minimum(rows.batch_size, len(rows.order) - starts)
        self._totals.assign(totals)


def with_options(dataset: tf.data.Dataset, prefetch: int) -> tf.data.Dataset:
    """``dataset`` fetched ahead, with one thread and nothing that TensorFlow tunes while it runs."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = 1
    return dataset.prefetch(prefetch).with_options(options)


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
