"""The few places where Keras 2.12 and Keras 3 differ for this package.

Keras is always taken as ``tensorflow.keras``: in Keras 2.12 the package ``keras`` itself offers the interface of
TensorFlow 1, with other optimizers.
"""

import contextlib
from typing import Any, Dict, Iterator, List

import numpy as np
import tensorflow as tf
from tensorflow import keras

#: Whether this is Keras 3 (several backends, no ``keras.backend`` of functions).
KERAS_3 = int(keras.__version__.split(".")[0]) >= 3


@contextlib.contextmanager
def float_type(name: str) -> Iterator[None]:
    """Sets Keras's default floating type, which new variables, losses and metrics take, for a while."""
    before = keras.backend.floatx()
    keras.backend.set_floatx(name)
    try:
        yield
    finally:
        keras.backend.set_floatx(before)


def tensorflow_variable(variable: Any) -> tf.Variable:
    """The TensorFlow variable behind a variable of Keras's."""
    return variable.value if KERAS_3 else variable


def optimizer_options() -> Dict[str, Any]:
    """Arguments of every optimizer unless the job says otherwise.

    Keras 2 would compile the update alone by XLA on a GPU, and in some classes multiply with a decay of 0.
    """
    return {"weight_decay": None} if KERAS_3 else {"weight_decay": None, "jit_compile": False}


def slot(optimizer: keras.optimizers.Optimizer, variable: Any, name: str, value: float) -> Any:
    """A new variable of ``optimizer``, like ``variable`` and filled with ``value``."""
    if KERAS_3:
        initializer = keras.initializers.Constant(np.float64(value))
        return optimizer.add_variable_from_reference(variable, name=name, initializer=initializer)
    start = tf.fill(variable.shape, tf.constant(value, variable.dtype))
    return optimizer.add_variable_from_reference(variable, name, initial_value=start)


def variable_index(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """Position of a trained variable in the list that the optimizer was built with."""
    if KERAS_3:
        return optimizer._get_variable_index(variable)
    return optimizer._index_dict[optimizer._var_key(variable)]


def compile_model(model: keras.Model, jit_compile: bool, **arguments: Any) -> None:
    """``model.compile``; in Keras 3 XLA is not dropped because determinism is on.

    Keras 3 turns ``jit_compile`` off with a warning while TensorFlow's determinism is enabled, since XLA refuses
    some operations then; here such an operation shall raise instead.
    """
    model.compile(jit_compile=jit_compile, **arguments)
    if KERAS_3 and jit_compile:
        model._jit_compile = True


def batch_norm_options(epsilon: float) -> Dict[str, Any]:
    """Keeps Keras 2 from its fused operation where that would raise ``epsilon`` to its minimum of 1.001e-5."""
    return {"fused": False} if not KERAS_3 and epsilon <= 1.001e-5 else {}


def dropout_options() -> Dict[str, Any]:
    """Makes Keras 2 draw dropout from a generator with a state that can be stored, as Keras 3 always does."""
    return {} if KERAS_3 else {"rng_type": "stateful", "force_generator": True}


def dropout_state(layer: keras.layers.Dropout) -> Any:
    """The variable that holds the state of a dropout layer's generator."""
    if KERAS_3:
        return layer.seed_generator.state
    return layer._random_generator._generator.state


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> List[Any]:
    """All variables of an optimizer, in the order of their creation."""
    return list(optimizer.variables)


def run_fit(model: keras.Model,
            dataset: tf.data.Dataset,
            steps: int,
            callback: keras.callbacks.Callback) -> None:
    """One epoch of ``model.fit`` without output."""
    model.fit(dataset, epochs=1, steps_per_epoch=steps, callbacks=[callback], shuffle=False, verbose=0)


def build_for_replicas(model: keras.Model, features: Any) -> None:
    """Makes what Keras 3 would make at the first ``fit`` under a strategy.

    There it takes a batch of its own from the data and averages it over the replicas, which fails with unequal
    shares and loses the batch. ``features``: what the model is called with, symbolic.
    """
    if not KERAS_3:
        return
    labels = keras.KerasTensor((None,), "int64")
    weights = keras.KerasTensor((None,), model.compute_dtype)
    model._symbolic_build(data_batch=(features, labels, weights))
    model._maybe_symbolic_build = lambda *arguments, **options: None
