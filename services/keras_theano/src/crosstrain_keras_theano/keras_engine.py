"""The engine "keras-theano": Keras 2.3.1 on its Theano backend, trained by ``Model.fit_generator``.

See :mod:`.keras_model` for what the two semantics mean. In native semantics the loss is Keras's sparse
categorical cross-entropy of a softmax, which clips probabilities to [1e-7, 1 - 1e-7]; L2 decay is Keras's
``l2`` regularizer, whose gradient is twice the rate times the weight; dropout is drawn by Theano's generator
from the training's seed; batch norm keeps running averages (weight 0.99 on the old value, variance scaled by
n / (n - 1 - epsilon)). Keras has no decoupled decay; the canonical form is used. Reported losses are those of
the batch, without penalties.

Untested: device "cuda".
"""

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from crosstrain_service.engine import Batch, EngineInfo, Epoch, Loop
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training

from . import device

# isort: split
import keras
from keras import backend as K

from . import operations
from .device import T, explained
from .engine import TheanoEngine, features
from .keras_model import KerasNetwork
from .keras_optimizer import CanonicalOptimizer, native_optimizer

_EMULATED = {
    "layer.convolution.asymmetric_padding": "Theano's convolution, which Keras does not reach with such padding",
    "layer.batch_norm": "a layer of our own; native semantics use Keras's",
    "layer.local_response_norm": "a layer of our own: Keras has none",
    "optimizer.sgd": "an optimizer of our own; native semantics use Keras's",
    "optimizer.sgd.momentum": "an optimizer of our own; native semantics use Keras's",
    "optimizer.sgd.nesterov": "an optimizer of our own; native semantics use Keras's",
    "optimizer.rmsprop": "an optimizer of our own; native semantics use Keras's",
    "optimizer.adagrad": "an optimizer of our own; native semantics use Keras's",
    "optimizer.adam": "an optimizer of our own; native semantics use Keras's, with epsilon hat",
    "optimizer.adadelta": "an optimizer of our own; native semantics use Keras's",
}


def canonical_loss(labels: Any, logits: Any) -> Any:
    """Loss (B,) of logits (B, K); Keras feeds integer labels as floats (B, 1)."""
    return operations.cross_entropy(logits, T.cast(T.flatten(labels), "int32"))


class KerasTheanoEngine(TheanoEngine):
    """One network in Keras on Theano."""

    name = "keras-theano"

    @classmethod
    def info(cls) -> EngineInfo:
        libraries = device.libraries()
        libraries["keras"] = keras.__version__
        return EngineInfo(cls.name, keras.__version__, features(_EMULATED), libraries)

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        super().__init__(model, training, execution)
        self._activate()
        network = KerasNetwork(model, training, execution, self._team)
        self._network = network
        self._keras_model = network.model
        if execution.native:
            loss = keras.losses.sparse_categorical_crossentropy
            self._optimizer = native_optimizer(training, network.parameters, self._team)
        else:
            loss = canonical_loss
            self._optimizer = CanonicalOptimizer(training, network.parameters, self._team)
        self._keras_model.compile(optimizer=self._optimizer, loss=loss)
        network.labels = self._keras_model.targets[0]
        # Keras multiplies by sample weights, an input of the training step that is 1 for every sample.
        network.loss = self._keras_model.loss_functions[0](network.labels, self._keras_model.outputs[0])
        self._penalized = bool(self._keras_model.losses)
        if self._team is not None and not self._penalized:
            # Parts that are no powers of two round as in the step only if they are multiplied in its order.
            network.objective = self._keras_model.total_loss
            network.weights = list(self._keras_model.sample_weights)
        with explained("building the updates"):
            self._optimizer.prepare(
                self._keras_model.total_loss,
                self._keras_model._collected_trainable_weights,
                network.loss if self._penalized else None,
            )
        self._optimizer_state = self._optimizer.state()
        self._optimizer_extras = self._optimizer.extras()

    def _activate(self) -> None:
        super()._activate()
        K.set_floatx(self._dtype)
        K.set_image_data_format("channels_first")

    def _labels(self, batch: Batch) -> np.ndarray:
        return batch.labels.astype(self._dtype)[:, np.newaxis]

    def train(self, loop: Loop) -> None:
        self._activate()
        if self._keras_model.train_function is None:
            with explained("compiling the training step"), self._compiling("training step"):
                self._keras_model._make_train_function()
        self._draw_apart(loop.step)
        for epoch in loop.epochs():
            # Between two epochs the loop may have used another engine of this process.
            self._activate()
            if not epoch.steps:
                continue
            steps = _Steps(self, loop, epoch)
            feed = steps.feed()
            self._keras_model.fit_generator(
                feed,
                steps_per_epoch=epoch.steps,
                initial_epoch=epoch.index,
                epochs=epoch.index + 1,
                workers=0,
                max_queue_size=0,
                shuffle=False,
                verbose=0,
                callbacks=[steps],
            )
            feed.close()

    def _inputs(self, batch: Batch) -> Tuple[Any, np.ndarray]:
        masks = self._mask_inputs(batch)
        return ([batch.x] + masks if masks else batch.x), batch.labels

    def _reported_loss(self, loss: Any) -> Any:
        return self._optimizer.reported_loss.get_value() if self._penalized else loss


class _Steps(keras.callbacks.Callback):
    """Feeds one epoch to Keras, sets the learning rate of every step and reports its loss."""

    def __init__(self, engine: KerasTheanoEngine, loop: Loop, epoch: Epoch) -> None:
        super().__init__()
        self._engine = engine
        self._loop = loop
        self._epoch = epoch
        self._given: List[Batch] = []

    def feed(self) -> Iterator[Tuple[Any, np.ndarray]]:
        """(x, labels) of every batch; Keras pulls them in the training thread, one at a time."""
        for batch in self._epoch.batches():
            self._given.append(batch)
            yield self._engine._inputs(batch)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        given = self._given.pop(0)
        K.set_value(self._engine._optimizer.learning_rate, np.asarray(given.learning_rate, dtype=self._engine._dtype))
        self._engine._set_part(given)

    def on_batch_end(self, batch: int, logs: Dict[str, Any] = None) -> None:
        waited = self._engine._waited()
        self._loop.step_done(self._engine._reported_loss(logs["loss"]), sync_seconds=waited)
