"""What the data sets that ``fit`` is given have in common: they have no end and wait at a queue for what comes."""

from typing import Any

import tensorflow as tf


def with_options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """``dataset`` with one thread and nothing that TensorFlow tunes while it runs."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.private_threadpool_size = 1
    return dataset.with_options(options)


def with_one_iterator(dataset: Any) -> Any:
    """``dataset``, without an end, that every call of ``fit`` goes on with where the one before stopped.

    To make an iterator and to let go of it takes TensorFlow between a tenth and half of a second where there are
    several replicas. Keras looks at the class of what it is given, so that nothing can stand around the data set.
    """
    kind = type(dataset)

    class Kept(kind):
        def __iter__(self) -> Any:
            if self._kept is None:
                self._kept = super().__iter__()
            return self._kept

    dataset._kept = None
    dataset.__class__ = Kept
    return dataset


def close_queue(queue: tf.queue.QueueBase) -> None:
    """Ends what waits at ``queue``, on either side."""
    with tf.init_scope():  # at once, even if a function is being traced
        queue.close(cancel_pending_enqueues=True)
