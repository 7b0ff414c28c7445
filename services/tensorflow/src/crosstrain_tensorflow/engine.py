"""The engine ``tensorflow``: variables in a ``tf.Module`` and a training step compiled by ``tf.function``."""

import gc
import time
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import tensorflow as tf

from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import Dropout, Model
from crosstrain_service.training import Execution, Training

from . import device, features
from .layout import Layout
from .model import Network, Pass
from .optimizer import CanonicalUpdate, NativeUpdate, read_state, write_state


class TensorFlowEngine(Engine):
    """A custom training loop around one compiled step, as users of plain TensorFlow write it.

    Native semantics differ in the update (``tf.keras.optimizers`` with their defaults), dropout (drawn by
    ``tf.nn.experimental.stateless_dropout`` from seed and step, so that a resumed run draws the same), batch norm
    (the fused operation; running averages, variance unbiased for feature maps) and L2 (see
    :class:`.optimizer.NativeUpdate`). Operations, their gradients and the loss are the same in both.
    """

    name = "tensorflow"

    @classmethod
    def info(cls) -> EngineInfo:
        return EngineInfo(cls.name, tf.__version__, features.plain_features(),
                          {"tensorflow": tf.__version__, "numpy": np.__version__})

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        self._execution = execution
        self._device = device.configure(execution, model)
        self._dtype = tf.as_dtype(execution.precision or "float32")
        self._layout = Layout(model)
        self._masked = [] if execution.native else [layer.name for layer in model.layers_of(Dropout)]
        with tf.device(self._device):
            self._network = Network(model, self._layout, self._dtype, execution.native, training.seed)
            self._variables = self._network.variables_by_name
            update = NativeUpdate if execution.native else CanonicalUpdate
            self._update = update(self._variables, training)
        compiled = True if execution.compiler == "xla" else None
        self._step = tf.function(self._training_step, jit_compile=compiled, autograph=False)
        self._logits = tf.function(self._evaluation, jit_compile=compiled, autograph=False, reduce_retracing=True)
        self._rate: Tuple[Any, Any] = (None, None)

    def _training_step(self,
                       x: tf.Tensor,
                       labels: tf.Tensor,
                       learning_rate: tf.Tensor,
                       masks: Dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            run = Pass(training=True, update_statistics=True, masks=masks, step=self._iterations())
            loss = mean_cross_entropy(self._network(x, run), labels)
            total = tf.add_n([loss] + self._update.penalty())
        gradients = tape.gradient(total, list(self._variables.values()))
        self._update.apply(gradients, learning_rate)
        return loss

    def _evaluation(self, x: tf.Tensor) -> tf.Tensor:
        return self._network(x, Pass())

    def _iterations(self) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(self._update.iterations), tf.int64)

    def train(self, loop: Loop) -> None:
        # The step is bound to the device by its variables; inputs are copied there beforehand.
        with tf.device(self._device):
            for epoch in loop.epochs():
                for batch in epoch.batches():
                    start = time.perf_counter()
                    arguments = self._arguments(batch)
                    copied = time.perf_counter() - start
                    loop.step_done(self._step(*arguments), copy_seconds=copied)

    def _arguments(self, batch: Batch) -> tuple:
        masks = {name: tf.convert_to_tensor(batch.masks[name], self._dtype) for name in self._masked}
        return (tf.convert_to_tensor(batch.x, self._dtype), tf.convert_to_tensor(batch.labels, tf.int64),
                self._learning_rate(batch.learning_rate), masks)

    def _learning_rate(self, value: float) -> tf.Tensor:
        if self._rate[0] != value:
            self._rate = (value, tf.constant(value, tf.float64))
        return self._rate[1]

    def predict(self, x: np.ndarray) -> np.ndarray:
        with tf.device(self._device):
            return np.array(self._logits(tf.convert_to_tensor(x, self._dtype)).numpy())

    def intermediates(self, batch: Batch) -> Intermediates:
        with tf.device(self._device):
            x, labels, _, masks = self._arguments(batch)
            run = Pass(training=True, masks=masks, step=self._iterations())
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = mean_cross_entropy(self._network(x, run), labels)
            outputs = list(run.outputs.values())
            found = tape.gradient(loss, outputs + list(self._variables.values()))
        convert = self._layout.output_to_canonical
        return Intermediates(
            loss=float(loss),
            outputs={name: convert(name, value.numpy()) for name, value in run.outputs.items()},
            output_gradients={name: convert(name, value.numpy()) for name, value in zip(run.outputs, found)},
            gradients={name: self._layout.to_canonical(name, value.numpy())
                       for name, value in zip(self._variables, found[len(outputs):])},
        )

    def parameters(self) -> Arrays:
        return {name: self._layout.to_canonical(name, variable.numpy())
                for name, variable in self._variables.items()}

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._variables.items():
            variable.assign(self._layout.to_framework(name, np.asarray(parameters[name])))

    def optimizer_state(self) -> Arrays:
        return {name: self._layout.to_canonical(name.rsplit(".", 1)[0], value)
                for name, value in self._update.canonical_state().items()}

    def _state_variables(self) -> Dict[str, Any]:
        found = {"parameter/" + name: variable for name, variable in self._variables.items()}
        found.update(("statistics/" + name, variable) for name, variable in self._network.running.items())
        found.update(("update/" + name, variable) for name, variable in self._update.state_variables().items())
        return found

    def state(self) -> Arrays:
        return read_state(self._state_variables())

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        write_state(self._state_variables(), state)

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        run = Pass(training=True, drop=False)
        with tf.device(self._device):
            self._network(tf.convert_to_tensor(x, self._dtype), run)
        return {name: (np.array(mean), np.array(variance)) for name, (mean, variance) in run.statistics.items()}

    def statistics(self) -> Arrays:
        return read_state(self._network.running)

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        write_state(self._network.running, statistics)

    def fingerprint(self) -> Dict[str, str]:
        return device.fingerprint(self._execution)

    def synchronize(self) -> None:
        device.synchronize(self._device)

    def close(self) -> None:
        # The compiled functions hold the engine and are held by it.
        self.__dict__.clear()
        gc.collect()

    def allocator_peak_bytes(self) -> Any:
        return device.allocator_peak_bytes(self._device)


def mean_cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Mean over the batch of the softmax cross-entropy, from logits (B, K) and labels (B,)."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
