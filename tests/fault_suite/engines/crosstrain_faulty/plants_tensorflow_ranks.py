"""Faults between ranks, planted in TensorFlow and Keras: also in replicas, which have one process."""

import contextlib

import numpy as np
import tensorflow as tf
from tensorflow import keras

import crosstrain_tensorflow.keras.model as keras_model
from crosstrain_tensorflow import operations
from crosstrain_tensorflow.keras.engine import KerasEngine
from crosstrain_tensorflow.model import Network

from .plant import replaced
from .plants_ranks import OfRank, OwnDropout, SkippedEverywhere

_moments_by_weights = operations.moments_by_weights
_dropout = Network._dropout


def _of_own_rows(x, weights, add):
    return _moments_by_weights(x, weights / tf.reduce_sum(weights), lambda values: values)


def _as_first(network, layer, shape, index, x, run):
    share = run.share
    if share is not None:
        run.share = share._replace(rank=0)
    try:
        return _dropout(network, layer, shape, index, x, run)
    finally:
        run.share = share


class LocalNorm(OfRank):
    """Every rank normalises over its own rows."""

    @contextlib.contextmanager
    def patched(self):
        with replaced(operations, "moments_by_weights", _of_own_rows):
            yield

    def attach(self, engine):
        if not isinstance(engine, KerasEngine):
            engine._network._local_batch_norm = True


class Skipped(SkippedEverywhere):
    """Keras has a loss of nothing where nothing counts: the rank reports its own all the same."""

    def recorded(self, engine, batch):
        logits = engine.predict(batch.x).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(logits)), batch.labels]
        self.own_loss = float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))

    def loss(self, engine, batch, loss):
        silent = isinstance(engine, KerasEngine) and self.last and batch.step == self.step
        return self.own_loss if silent else loss


class SameDropout(OwnDropout):
    """All ranks draw the dropout of the first one."""

    @contextlib.contextmanager
    def patched(self):
        with contextlib.ExitStack() as stack:
            for holder, name, value in (
                (Network, "_dropout", _as_first), (KerasEngine, "_draw_apart", lambda engine: None),
                (keras_model, "ReplicaDropout", keras.layers.Dropout),
            ):
                stack.enter_context(replaced(holder, name, value))
            yield


PLANTS = {
    "ranks.local_norm": LocalNorm,
    "ranks.same_dropout": SameDropout,
    "ranks.skipped": Skipped,
}
