"""Between the common layer's loop and ``model.fit``: batches in, losses out."""

from typing import Any, Dict, Iterator, Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from crosstrain_service.engine import Batch, Epoch, Loop
from crosstrain_service.model import Model
from crosstrain_service.parallel.shares import share_slice

from .gather import Gather, can_gather, with_options
from .model import INPUT, WEIGHTS


class Feed:
    """A ``tf.data.Dataset`` for every call of ``fit``, of one structure so that ``fit`` never traces again.

    Batches that are rows of the data set are gathered by ``tf.data``; others come from the platform's generator.
    One batch is fetched ahead, as ``fit`` does with arrays: handing a batch from Python to ``tf.data`` costs
    about a millisecond, which would otherwise be added to every step. The time recorded as waiting for a generated
    batch is then the time it took to make it, beside the step before.
    """

    def __init__(self,
                 model: Model,
                 dtype: str,
                 mask_inputs: Dict[str, str],
                 prefetch: int,
                 shares: Any = None,
                 weighted: bool = False) -> None:
        self._mask_inputs = mask_inputs
        self._shares = shares
        self._weighted = weighted
        self._prefetch = prefetch
        self._gather: Optional[Gather] = None
        self._gathered: Any = None
        self._dtype = dtype
        self._batches: Iterator[Batch] = iter(())
        self.error: Optional[BaseException] = None
        shapes = model.input_shapes()
        x = tf.TensorSpec((None,) + tuple(model.input_shape), dtype)
        features: Any = x
        weights = tf.TensorSpec((None,), dtype)
        if mask_inputs or weighted:
            features = {name: tf.TensorSpec((None,) + shapes[layer], dtype) for layer, name in mask_inputs.items()}
            features[INPUT] = x
            if weighted:
                features[WEIGHTS] = weights
        signature: Any = (features, tf.TensorSpec((None,), tf.int64))
        if shares is None:
            self._generated = with_options(tf.data.Dataset.from_generator(
                self._generate, output_signature=signature), 1)
        else:
            self._generated = shares.feed(with_options(tf.data.Dataset.from_generator(
                self._generate_shares, output_signature=signature + (weights,)), shares.local))

    def start(self, epoch: Epoch) -> Any:
        """The data set for the next call of ``fit``, which executes the steps of ``epoch``."""
        self.error = None
        rows = epoch.rows()
        if not can_gather(rows):
            self._batches = iter(epoch.batches())
            return self._generated
        if self._gather is None or not self._gather.serves(rows):
            self._gather = Gather(rows, self._dtype, self._prefetch, self._shares.local if self._shares else 0)
            self._gathered = self._gather.dataset
            if self._shares is not None:
                self._gathered = self._shares.feed(self._gathered.map(self._with_weights))
        self._gather.start(rows)
        return self._gathered

    def _with_weights(self, x: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> Any:
        return ({INPUT: x, WEIGHTS: weights} if self._weighted else x), labels, weights

    def finish(self) -> None:
        """Lets go of the batches; ``fit`` stops asking after the last step, which leaves their generator suspended."""
        close = getattr(self._batches, "close", None)
        self._batches = iter(())
        if close is not None:
            close()

    def _generate(self, whole: bool = False) -> Iterator[Any]:
        batches = self._batches
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except BaseException as error:  # handed to the training thread, TensorFlow would only quote it
                self.error = error
                return
            if self._mask_inputs or whole:
                features = {name: batch.masks[layer] for layer, name in self._mask_inputs.items()}
                features[INPUT] = batch.x
                yield (features, batch.labels, batch) if whole else (features, batch.labels)
            else:
                yield batch.x, batch.labels


    def _generate_shares(self) -> Iterator[Any]:
        for features, labels, batch in self._generate(whole=True):
            for index in range(self._shares.local):
                rows = share_slice(len(labels), self._shares.local, index)
                real = batch.samples > 0 and rows.stop > rows.start
                rows = rows if rows.stop > rows.start else slice(0, 1)
                weights = np.full(rows.stop - rows.start, (1.0 if real else 0.0) / batch.total, self._dtype)
                part: Any = {name: value[rows] for name, value in features.items()}
                if self._weighted:
                    part[WEIGHTS] = weights
                yield (part if len(part) > 1 else part[INPUT]), labels[rows], weights


class StepReporter(keras.callbacks.Callback):
    """Sets the learning rate before every step and reports its loss after it."""

    # Keras 2 would convert the logs of every batch to NumPy otherwise.
    _supports_tf_logs = True

    def __init__(self,
                 loop: Loop,
                 loss: Any,
                 optimizer: keras.optimizers.Optimizer) -> None:
        super().__init__()
        self._loop = loop
        self._loss = loss
        self._optimizer = optimizer
        self._rate: Optional[float] = None

    def on_train_batch_begin(self, batch: int, logs: Optional[dict] = None) -> None:
        """Called by ``fit``."""
        rate = self._loop.learning_rate(self._loop.step)
        if rate != self._rate:
            self._optimizer.learning_rate.assign(rate)
            self._rate = rate

    def on_train_batch_end(self, batch: int, logs: Optional[dict] = None) -> None:
        """Called by ``fit``."""
        self._loop.step_done(self._loss.read())
