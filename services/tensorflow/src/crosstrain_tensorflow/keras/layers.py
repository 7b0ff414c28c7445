"""Keras layers for what Keras's own cannot express; all channels last."""

from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf
from tensorflow import keras

from .. import operations
from ..geometry import Pads


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

    def read(self) -> tf.Tensor:
        """The value of the last batch, a scalar that later steps do not change."""
        # Short for last.read_value(), whose wrapping costs several times the operation itself.
        return tf.raw_ops.ReadVariableOp(resource=self.last.handle, dtype=self.last.dtype)
