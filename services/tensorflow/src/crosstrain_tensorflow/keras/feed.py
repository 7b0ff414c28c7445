"""Between the common layer's loop and ``model.fit``: batches in, losses out."""

from typing import Any, Dict, Iterator, Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from crosstrain_service.engine import Batch, Epoch, Loop, Rows
from crosstrain_service.model import Model

from ..shares import shares_of
from .gather import Gather, can_gather
from .handover import Handover
from .model import BATCH_LOSS, INPUT, WEIGHTS
from .pipeline import with_one_iterator


class Feed:
    """A ``tf.data.Dataset`` for every call of ``fit``, of one structure so that ``fit`` never traces again.

    Batches that are rows of the data set are gathered by ``tf.data``; others come from the platform's generator.
    At least one batch is fetched ahead, as ``fit`` does with arrays. The time recorded as waiting for a generated
    batch is then the time it took to make it, beside the step before.
    """

    def __init__(self,
                 model: Model,
                 dtype: str,
                 mask_inputs: Dict[str, str],
                 prefetch: int,
                 shares: Any = None,
                 weighted: bool = False,
                 batch: Optional[int] = None) -> None:
        """``batch``: rows of every share of every batch if they are equal; TensorFlow then plans a step for them."""
        self._mask_inputs = mask_inputs
        self._shares = shares
        self._weighted = weighted
        self._prefetch = prefetch
        self._dtype = dtype
        self._batch = batch
        self._gather: Optional[Gather] = None
        self._gathered: Any = None
        self._handover: Optional[Handover] = None
        self._handed: Any = None
        shapes = model.input_shapes()
        x = tf.TensorSpec((batch,) + tuple(model.input_shape), dtype)
        weights = tf.TensorSpec((batch,), dtype)
        features: Any = x
        if mask_inputs or weighted:
            features = {name: tf.TensorSpec((batch,) + shapes[layer], dtype) for layer, name in mask_inputs.items()}
            features[INPUT] = x
            if weighted:
                features[WEIGHTS] = weights
        self._signature: Any = (features, tf.TensorSpec((batch,), tf.int64))
        if shares is not None:
            self._signature += (weights,)

    def start(self, epoch: Epoch) -> Any:
        """The data set for the next call of ``fit``, which executes the steps of ``epoch``."""
        rows = epoch.rows()
        if can_gather(rows):
            if len(rows.order) <= (epoch.steps - 1) * rows.batch_size:
                raise RuntimeError("%d rows for %d steps of %d" % (len(rows.order), epoch.steps, rows.batch_size))
            return self._gather_from(rows)
        shares = 1 if self._shares is None else self._shares.local
        if self._handover is None:
            self._handover = Handover(self._signature, shares)
            self._handed = self._for_fit(self._handover.dataset)
        self._handover.start(self._elements(epoch.batches()), epoch.steps * shares)
        return self._handed

    def finish(self, complete: bool) -> None:
        """To be called after ``fit``; unless all batches were used, the next call gets a data set of its own.

        Raises what the platform's generator has raised.
        """
        handover = self._handover
        if not complete:
            self._gather = self._gathered = self._handover = self._handed = None
        if handover is not None:
            handover.finish(complete)

    def _gather_from(self, rows: Rows) -> Any:
        if self._gather is None or not self._gather.serves(rows):
            if self._shares is None:
                self._gather = Gather(rows, self._dtype, self._prefetch, self._batch)
            else:
                self._gather = Gather(rows, self._dtype, self._prefetch, self._batch, self._shares.local,
                                      self._with_weights)
            self._gathered = self._for_fit(self._gather.dataset)
        self._gather.start(rows)
        return self._gathered

    def _for_fit(self, dataset: tf.data.Dataset) -> Any:
        return with_one_iterator(dataset if self._shares is None else self._shares.feed(dataset))

    def _with_weights(self, x: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> Any:
        return ({INPUT: x, WEIGHTS: weights} if self._weighted else x), labels, weights

    def _elements(self, batches: Iterator[Batch]) -> Iterator[Any]:
        """What the data set is to hold, in the structure of the signature."""
        for batch in batches:
            features = {name: batch.masks[layer] for layer, name in self._mask_inputs.items()}
            features[INPUT] = batch.x
            if self._shares is None:
                yield (features if len(features) > 1 else batch.x), batch.labels
            else:
                yield from self._shares_of(features, batch)

    def _shares_of(self, features: Dict[str, np.ndarray], batch: Batch) -> Iterator[Any]:
        for rows, real in shares_of(len(batch.labels), self._shares.local):
            weights = np.full(rows.stop - rows.start, (real if batch.samples else 0.0) / batch.total, self._dtype)
            part = {name: value[rows] for name, value in features.items()}
            if self._weighted:
                part[WEIGHTS] = weights
            yield (part if len(part) > 1 else part[INPUT]), batch.labels[rows], weights


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
        value = (logs or {}).get(BATCH_LOSS)
        self._loop.step_done(self._loss.read() if value is None else value)
