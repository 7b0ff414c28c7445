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
    """A ``tf.data.Dataset`` of (x, labels) over rows of a data set, for any order and number of batches."""

    def __init__(self, rows: Rows, dtype: str, prefetch: int) -> None:
        self._source = _source(rows)
        with tf.device("/CPU:0"):
            pixels, labels = _shared(rows.pixels), _shared(rows.labels)
            # A captured tensor, not a constant: no optimizer makes a multiplication of this division.
            divisor = tf.constant(rows.divisor)
            self._order = tf.Variable(np.zeros(0, np.int64), trainable=False, shape=(None,), name="order")
        is_scaled = rows.pixels.dtype == np.uint8
        size = rows.batch_size

        def batch(index: tf.Tensor) -> Any:
            chosen = self._order[index * size:(index + 1) * size]
            x = tf.gather(pixels, chosen)
            if is_scaled:
                x = tf.cast(x, tf.float32) / divisor
            return tf.cast(x, dtype), tf.gather(labels, chosen)

        # Without an end: ``fit`` is told the number of steps, and what is beyond the order is an empty batch.
        self.dataset = with_options(tf.data.Dataset.counter().map(batch), max(1, prefetch))

    def serves(self, rows: Rows) -> bool:
        """Whether this is the pipeline for the arrays of ``rows``."""
        return self._source == _source(rows)

    def start(self, order: np.ndarray) -> None:
        """Sets the row numbers of the next call of ``fit``."""
        self._order.assign(order)


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
