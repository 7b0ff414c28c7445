"""Batches that Python makes, handed to ``tf.data`` by a thread of their own."""

import threading
import weakref
from typing import Any, Iterator, Optional

import tensorflow as tf

from .pipeline import close_queue, with_options


class Handover:
    """A ``tf.data.Dataset`` of what the iterators given to :meth:`start` yield.

    Args:
        signature: structure of ``tf.TensorSpec`` of an element.
        ahead: elements that wait in the queue; one more is ready in Python.

    Where an iterator raises, the data set ends.
    """

    def __init__(self, signature: Any, ahead: int) -> None:
        self._error: Optional[BaseException] = None
        self._thread: Optional[threading.Thread] = None
        specs = tf.nest.flatten(signature)
        with tf.device("/CPU:0"):
            self._queue = queue = tf.queue.FIFOQueue(ahead, [spec.dtype for spec in specs])
        # An iterator that waits at the queue could not be let go of.
        weakref.finalize(self, close_queue, queue)

        def element(_: tf.Tensor) -> Any:  # without a reference to this object, which ends before its data set
            parts = queue.dequeue()
            for part, spec in zip(parts, specs):
                part.set_shape(spec.shape)
            return tf.nest.pack_sequence_as(signature, parts)

        self.dataset = with_options(tf.data.Dataset.counter().map(element))

    def start(self, elements: Iterator[Any], count: int) -> None:
        """Hands over the ``count`` elements that an iterator yields; all of the ones before must have been used."""
        self._thread = threading.Thread(target=self._hand_over, args=(elements, count), name="handover", daemon=True)
        self._thread.start()

    def _hand_over(self, elements: Iterator[Any], count: int) -> None:
        done = 0
        try:
            for element in elements:
                self._queue.enqueue(tf.nest.flatten(element))
                done += 1
            if done < count:  # for which ``fit`` would wait without an end
                raise RuntimeError("%d elements of %d for the data set" % (done, count))
        except tf.errors.CancelledError:  # closed: nobody waits for the rest
            return
        except BaseException as error:  # for the training thread, to which TensorFlow would only quote it
            self._error = error
            close_queue(self._queue)

    def finish(self, complete: bool) -> None:
        """Waits until the iterator has ended; unless all it yields was used, the data set ends as well.

        Raises what the iterator has raised.
        """
        if not complete:
            close_queue(self._queue)
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
