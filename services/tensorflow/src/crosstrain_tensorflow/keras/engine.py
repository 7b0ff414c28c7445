"""The engine ``keras-tensorflow``: a functional model, a Keras optimizer and ``model.fit``."""

import contextlib
import gc
from typing import Any, Dict, Iterator, Mapping, Tuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution, Training

from .. import device, features
from ..layout import Layout
from ..optimizer import read_state, write_state
from ..replicas import data_ranks, together
from ..shares import Share, fixed_rows, loss_sum, scaled
from . import compat, optimizer
from .feed import Feed, StepReporter
from .layers import RecordedLoss, SharedLoss
from .model import KerasNetwork


class KerasEngine(Engine):
    """One call of ``model.fit`` per epoch; Keras's compiled training function is made once.

    Dropout masks are additional inputs in canonical semantics. Native semantics differ in the optimizer
    (Keras's classes and defaults), dropout (Keras's layer, with a generator whose state is stored), batch
    norm (Keras's defaults) and L2: ``keras.regularizers.L2(rate)``, so ``g += 2 rate w`` before clipping. The reported
    loss never holds the penalty.
    """

    name = "keras-tensorflow"

    @classmethod
    def info(cls) -> EngineInfo:
        libraries = {"keras": keras.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}
        return EngineInfo(cls.name, keras.__version__, features.keras_features(), libraries)

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        self._execution = execution
        self._rule = training.rule
        self._device = device.configure(execution, model)
        self._dtype = execution.precision or "float32"
        self._layout = Layout(model)
        compiled = execution.compiler == "xla"
        if execution.parallel.data > 1 and execution.native and training.clip_norm and compat.KERAS_3:
            raise CrosstrainError("UNSUPPORTED", "Keras 3 clips the gradient of each replica before it adds them up; "
                                  "choose canonical semantics or no clipping")
        shared = execution.parallel.data > 1 and execution.native and not execution.parallel.local_batch_norm
        if shared and execution.precision == "float64" and model.layers_of(BatchNorm) and not compat.KERAS_3:
            raise CrosstrainError("UNSUPPORTED", "the synchronised batch norm of Keras 2 divides by a count in single "
                                  "precision; choose float32, canonical semantics or local_batch_norm")
        self._steps = 0
        self._shares = data_ranks(execution)
        with self._scope(), contextlib.nullcontext() if self._shares is None else self._shares.scope():
            if execution.native:
                keras.utils.set_random_seed(training.seed & 0x7FFFFFFF)
            self._network = KerasNetwork(model, training, self._layout, self._dtype, execution.native,
                                         execution.parallel, self._shares.add if self._shares is not None else None)
            self._variables = self._network.variables_by_name
            self._optimizer = optimizer.build(training, self._variables, execution.native)
            if execution.parallel.backend == "horovod" and self._shares is not None:
                optimizer.add_up_by(self._optimizer, self._shares.add)
            self._loss = (RecordedLoss(self._dtype) if self._shares is None
                          else SharedLoss(self._dtype, self._shares))
            if self._network.inference is not self._network.training:
                compat.compile_model(self._network.inference, compiled)
            compat.compile_model(self._network.training, compiled, optimizer=self._optimizer, loss=self._loss)
            if self._shares is not None:
                compat.build_for_replicas(self._network.training, self._network.symbolic_inputs)
            self._feed = Feed(model, self._dtype, self._network.mask_inputs, execution.prefetch,
                              self._shares, self._network.weighted, fixed_rows(training, execution.parallel.data))
            # Keras's own would split the rows among the replicas.
            self._logits = tf.function(lambda x: self._network.inference(x, training=False), autograph=False,
                                       reduce_retracing=True)
            self._draw_apart()

    def _draw_apart(self) -> None:
        """Has every process of Horovod draw its own dropout; strategies of TensorFlow do so by themselves."""
        if self._execution.parallel.backend == "horovod" and self._shares is not None:
            for layer in self._network.dropouts:
                state = compat.dropout_state(layer)
                # The last number of a generator's state is its key.
                state.assign(state + tf.constant([0] * (state.shape[0] - 1) + [self._shares.first << 32], state.dtype))

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        # No device scope: the process sees one device only, and tf.data has to stay on the CPU.
        with compat.float_type(self._dtype):
            yield

    def train(self, loop: Loop) -> None:
        reporter = StepReporter(loop, self._loss, self._optimizer)
        for epoch in loop.epochs():
            dataset = self._feed.start(epoch)
            self._steps += epoch.steps
            end = loop.step + epoch.steps
            with self._scope():
                try:
                    compat.run_fit(self._network.training, dataset, epoch.steps, reporter)
                finally:
                    self._feed.finish(loop.step == end)

    def predict(self, x: np.ndarray) -> np.ndarray:
        with self._scope():
            if self._shares is not None:
                return np.array(self._logits(tf.convert_to_tensor(x, self._dtype)))
            return np.array(self._network.inference.predict_on_batch(np.asarray(x, self._dtype)))

    def intermediates(self, batch: Batch) -> Intermediates:
        kept = read_state(self._hidden_state())
        with self._scope():
            x = tf.convert_to_tensor(batch.x, self._dtype)
            masks = {name: tf.convert_to_tensor(batch.masks[name], self._dtype)
                     for name in self._network.mask_inputs}
            share = Share(x, tf.convert_to_tensor(batch.labels), masks, 1.0 if batch.samples else 0.0, batch.total,
                          self._execution.data_share)
            if self._shares is None:
                parts = [self._inside(share)]
            else:
                parts = self._shares.run(self._inside, share)[:share.rows]
        write_state(self._hidden_state(), kept)
        return together(parts, self._layout, share.rows if self._shares is not None else 1)

    def _inside(self, share: Share) -> Intermediates:
        with tf.GradientTape() as tape:
            tape.watch(share.x)
            weights = tf.fill([share.rows], tf.constant(share.real / share.total, self._dtype))
            outputs = self._network.forward(share.x, share.masks, training=True, weights=weights)
            logits = list(outputs.values())[-1]
            if share.add is None:
                loss = total = self._loss(share.labels, logits)
            else:
                loss = loss_sum(logits, share.labels)
                total = scaled(loss, share)
        sources = list(outputs.values()) + [compat.tensorflow_variable(item) for item in self._variables.values()]
        found = tape.gradient(total, sources)
        return Intermediates(loss, dict(outputs), dict(zip(outputs, found)),
                             dict(zip(self._variables, found[len(outputs):])))

    def parameters(self) -> Arrays:
        return {name: self._layout.to_canonical(name, variable.numpy())
                for name, variable in self._variables.items()}

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, variable in self._variables.items():
            variable.assign(self._layout.to_framework(name, np.asarray(parameters[name], self._dtype)))

    def optimizer_state(self) -> Arrays:
        found: Arrays = {}
        for slot, (variables, sign) in optimizer.slots(self._optimizer, self._rule).items():
            for name, variable in zip(self._variables, variables):
                value = self._layout.to_canonical(name, variable.numpy())
                found["%s.%s" % (name, slot)] = value * value.dtype.type(sign)
        return found

    def _hidden_state(self) -> Dict[str, Any]:
        """Variables that a forward pass in training changes."""
        found = {"statistics/" + name: variable for name, variable in self._network.running.items()}
        for index, layer in enumerate(self._network.dropouts):
            found["dropout/%d" % index] = compat.dropout_state(layer)
        return found

    def _state_variables(self) -> Dict[str, Any]:
        found = {"parameter/" + name: variable for name, variable in self._variables.items()}
        found.update(self._hidden_state())
        for index, variable in enumerate(compat.optimizer_variables(self._optimizer)):
            found["optimizer/%d" % index] = variable
        return found

    def state(self) -> Arrays:
        return read_state(self._state_variables())

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        write_state(self._state_variables(), state)
        self._draw_apart()  # what is stored is the state of the first rank

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        kept = read_state(self._hidden_state())
        found: Dict[str, Tuple[np.ndarray, np.ndarray]] = {}
        normalized = {name.rsplit(".", 1)[0] for name in self._network.running}
        with self._scope():
            y = tf.convert_to_tensor(x, self._dtype)
            outputs = self._network.forward(y, {}, training=True, drop=False)
            before = self._network.entry(y)
            for name, output in outputs.items():
                if name in normalized:
                    mean, variance = tf.nn.moments(before, list(range(len(before.shape) - 1)))
                    found[name] = (np.array(mean), np.array(variance))
                before = output
        write_state(self._hidden_state(), kept)
        return found

    def statistics(self) -> Arrays:
        return read_state(self._network.running)

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        write_state(self._network.running, statistics)

    def fingerprint(self) -> Dict[str, str]:
        facts = device.fingerprint(self._execution)
        facts["keras.version"] = keras.__version__
        facts["keras.backend"] = "tensorflow"
        facts["keras.image_data_format"] = keras.backend.image_data_format()
        facts["keras.jit_compile"] = str(bool(self._network.training.jit_compile)).lower()
        return facts

    def reduced_bytes(self) -> Any:
        if self._shares is None:
            return 0
        values = sum(int(np.prod(variable.shape)) for variable in self._variables.values())
        if not self._execution.parallel.local_batch_norm:
            # Two sums over channels forward, and the gradients of both backward.
            values += sum(2 * int(np.prod(variable.shape)) for variable in self._network.running.values())
        return self._steps * self._shares.local * values * np.dtype(self._dtype).itemsize

    def synchronize(self) -> None:
        device.synchronize(self._device)

    def close(self) -> None:
        # Model, functions and data set hold one another.
        if self._shares is not None:
            self._shares.close()
        self.__dict__.clear()
        gc.collect()

    def allocator_peak_bytes(self) -> Any:
        return device.allocator_peak_bytes(self._device)
