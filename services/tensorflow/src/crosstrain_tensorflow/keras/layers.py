"""Keras layers for what Keras's own cannot express; all channels last."""

from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from .. import operations, replicas
from ..geometry import Pads
from ..shares import Sum


class Padding(keras.layers.Layer):
    """Pads the spatial dimensions with a constant; Keras's ``ZeroPadding`` knows only zero."""

    def __init__(self, pads: Pads, value: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self._pads = pads
        self._value = value

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """(B, spatial..., C) to the padded form of it."""
        return operations.pad(inputs, self._pads, self._value)

    def get_config(self) -> Dict[str, Any]:
        return dict(super().get_config(), pads=self._pads, value=self._value)


class Factors(keras.layers.Layer):
    """Multiplies with constants of the shape (spatial..., 1); corrects the divisor of an average pool."""

    def __init__(self, factors: np.ndarray, **options: Any) -> None:
        super().__init__(**options)
        self._factors = np.asarray(factors)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """(B, spatial..., C) to the same shape."""
        return inputs * tf.constant(self._factors, inputs.dtype)

    def get_config(self) -> Dict[str, Any]:
        return dict(super().get_config(), factors=self._factors.tolist())


class LocalResponseNormalization(keras.layers.Layer):
    """Local response normalisation, which Keras has no layer for; see :func:`.operations.local_response_norm`.

    ``within``: over positions of a channel, see :func:`.operations.within_channel_norm`.
    """

    def __init__(self, size: int, alpha_sum: float, beta: float, k: float, within: bool, **options: Any) -> None:
        super().__init__(**options)
        self._within = within
        self._constants = {"size": size, "alpha_sum": alpha_sum, "beta": beta, "k": k}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """(B, spatial..., C) to the same shape."""
        norm = operations.within_channel_norm if self._within else operations.local_response_norm
        return norm(inputs, **self._constants)

    def get_config(self) -> Dict[str, Any]:
        return dict(super().get_config(), within=self._within, **self._constants)


class SharedBatchNorm(keras.layers.Layer):
    """Batch norm by the statistics of the whole batch of all replicas; canonical semantics.

    Called with (B, spatial..., C) and a weight for each row (B,), 1 / size of the whole batch or 0, or, where the
    running statistics are used, with the first alone. They are set from outside. Keras's own synchronised layer
    takes the variance from the mean of squares and counts rows that stand in for nothing.
    """

    def __init__(self, epsilon: float, add: Sum = replicas.add, **options: Any) -> None:
        super().__init__(**options)
        self._add_up = add
        self._epsilon = epsilon
        #: Whether the batch is that of this process alone, and the others compute nothing.
        self.alone = False

    def build(self, shape: Any) -> None:
        """Makes gamma, beta and the running statistics, each (C,)."""
        channels = (shape[0] if isinstance(shape, (list, tuple)) and isinstance(shape[0], (list, tuple)) or
                    hasattr(shape[0], "as_list") else shape)[-1]
        for name, value, trained in (("gamma", "ones", True), ("beta", "zeros", True),
                                     ("moving_mean", "zeros", False), ("moving_variance", "ones", False)):
            setattr(self, name, self.add_weight(
                name=name, shape=(channels,), initializer=value, trainable=trained, dtype=self.dtype))
        self.built = True

    def call(self, inputs: Any) -> tf.Tensor:
        """The shape of the first input."""
        if isinstance(inputs, (list, tuple)):
            x, weights = inputs
            add = (lambda values: values) if self.alone else self._add_up
            mean, variance = operations.moments_by_weights(x, weights, add)
        else:
            x, mean, variance = inputs, self.moving_mean, self.moving_variance
        return tf.nn.batch_normalization(x, *(
            tf.convert_to_tensor(value) for value in (mean, variance, self.beta, self.gamma)), self._epsilon)

    def compute_output_shape(self, shape: Any) -> Any:
        """Shape of the first input."""
        return shape[0] if isinstance(shape, list) else shape

    def get_config(self) -> Dict[str, Any]:
        return dict(super().get_config(), epsilon=self._epsilon)


class ReplicaDropout(keras.layers.Dropout):
    """Keras 3's dropout, drawn differently by every replica; its own draws the same everywhere."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """The shape of the input."""
        if not training or self.rate == 0:
            return inputs
        context = tf.distribute.get_replica_context()
        replica = 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))
        seed = tf.cast(self.seed_generator.next(), tf.int64) + tf.constant([replica << 32, 0], tf.int64)
        return tf.nn.experimental.stateless_dropout(inputs, self.rate, seed)


class RecordedLoss(keras.losses.SparseCategoricalCrossentropy):
    """Mean cross-entropy from logits that leaves its value in the variable ``last``.

    What ``fit`` logs as "loss" is an average since the start of the epoch and holds regularisation penalties;
    the value of one batch passes only here. A custom ``train_step`` would be a second training path, and
    resetting Keras's metric before every batch still leaves the penalties in.
    """

    def __init__(self, dtype: str) -> None:
        super().__init__(from_logits=True, name="loss")
        self.last = tf.Variable(0.0, trainable=False, dtype=dtype, name="last_loss")

    def __call__(self,
                 y_true: tf.Tensor,
                 y_pred: tf.Tensor,
                 sample_weight: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Mean over the batch, a scalar."""
        value = super().__call__(y_true, y_pred, sample_weight)
        self.last.assign(value)
        return value

    def in_step(self) -> tf.Tensor:
        """Within a step, after the loss: its value, a scalar."""
        return self.read()

    def read(self) -> tf.Tensor:
        """The value of the last batch, a scalar that later steps do not change."""
        # Short for last.read_value(), whose wrapping costs several times the operation itself.
        return tf.raw_ops.ReadVariableOp(resource=self.last.handle, dtype=self.last.dtype)


class SharedLoss(keras.losses.SparseCategoricalCrossentropy):
    """Cross-entropy from logits, each row times its sample weight and added up, with :class:`RecordedLoss`'s variable.

    With 1 / size of the whole batch as weight, or 0 for a row that stands in for nothing, the sum over
    replicas is the mean over the whole batch, however unequal the shares are. Keras's own mean over a replica's rows
    is scaled by the number of replicas, a mean of means.
    """

    def __init__(self, dtype: str, shares: Any) -> None:
        super().__init__(from_logits=True, name="loss", reduction="sum")
        self._shares = shares
        self.last = tf.Variable(0.0, trainable=False, dtype=dtype, name="last_loss",
                                synchronization=tf.VariableSynchronization.ON_READ,
                                aggregation=tf.VariableAggregation.SUM)

    def __call__(self,
                 y_true: tf.Tensor,
                 y_pred: tf.Tensor,
                 sample_weight: Optional[tf.Tensor] = None) -> tf.Tensor:
        """This share's addend in the mean over the whole batch, a scalar."""
        value = super().__call__(y_true, y_pred, sample_weight)
        # Alone in a process, a replica reports the mean over its own rows.
        several = self._shares.local < self._shares.count
        part = tf.math.divide_no_nan(value, tf.reduce_sum(sample_weight)) if several else value
        self.last.assign(part)
        return value

    def in_step(self) -> Optional[tf.Tensor]:
        """Within a step of one replica, after the loss of all: what :meth:`read` gives, or None.

        None over several processes of ``tf.distribute``, between which Keras would add up whatever a step returns.
        """
        context = tf.distribute.get_replica_context()
        if isinstance(context.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return None
        return context.merge_call(lambda strategy: self.read())

    def read(self) -> tf.Tensor:
        """Mean over this process's rows in the last batch, a scalar that later steps do not change."""
        parts = self._shares.local_values(self.last)
        return tf.add_n([tf.raw_ops.ReadVariableOp(resource=part.handle, dtype=part.dtype) for part in parts])
