"""Updating the parameters in plain TensorFlow: canonical rules in operations, or Keras's optimizers (native)."""

import abc
import inspect
from collections import OrderedDict
from typing import Any, Dict, List, Mapping

import numpy as np
import tensorflow as tf

from crosstrain_service.training import Training

from . import native, rules
from .placement import PART


class Update(tf.Module):
    """Changes the variables of one network.

    ``iterations`` counts updates. State is read and set as NumPy arrays in TensorFlow's layout, by names of
    the form "<parameter>.<slot>". ``placed``: variables lie on several devices, and are updated there; names may be
    those of parts of a parameter.
    """

    def __init__(self, variables: Dict[str, tf.Variable], training: Training, placed: bool = False) -> None:
        super().__init__(name="update")
        self._placed = placed
        self._variables = variables
        self._training = training
        self._rule = training.rule

    #: int64 scalar variable.
    iterations: Any = None

    @abc.abstractmethod
    def penalty(self) -> List[tf.Tensor]:
        """Terms to add to the loss before differentiation; usually none."""

    @abc.abstractmethod
    def apply(self, gradients: List[tf.Tensor], learning_rate: tf.Tensor) -> None:
        """Updates the variables; ``gradients`` in their order, ``learning_rate`` a float64 scalar."""

    @abc.abstractmethod
    def canonical_state(self) -> Dict[str, np.ndarray]:
        """The rule's state by canonical names, in TensorFlow's layout."""

    @abc.abstractmethod
    def state_variables(self) -> Dict[str, Any]:
        """All state by names of our own, for checkpoints."""


class CanonicalUpdate(Update):
    """The canonical order: clip by the global norm, L2 or decoupled decay, then the rule."""

    def __init__(self, variables: Dict[str, tf.Variable], training: Training, placed: bool = False) -> None:
        super().__init__(variables, training, placed)
        self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
        start = rules.initial_value(self._rule)
        self._slots = [
            {slot: self._slot(variable, start, "%s_%s" % (slot, index)) for slot in rules.slots(self._rule)}
            for index, variable in enumerate(variables.values())
        ]

    def _slot(self, variable: tf.Variable, start: float, name: str) -> tf.Variable:
        with tf.device(variable.device if self._placed else None):
            return tf.Variable(tf.fill(variable.shape, tf.constant(start, variable.dtype)), trainable=False, name=name)

    def penalty(self) -> List[tf.Tensor]:
        return []

    def apply(self, gradients: List[tf.Tensor], learning_rate: tf.Tensor) -> None:
        step = self.iterations.assign_add(1)
        if self._training.clip_norm:
            gradients = clip_by_global_norm(gradients, self._training.clip_norm)
        decay = self._training.weight_decay
        for (name, variable), g, slots in zip(self._variables.items(), gradients, self._slots):
            with tf.device(variable.device if self._placed else None):
                decays = decay is not None and decay.applies_to(name.split(PART)[0])
                self._apply(variable, g, slots, learning_rate, step, decays)

    def _apply(self, variable: tf.Variable, g: tf.Tensor, slots: Dict[str, tf.Variable], learning_rate: tf.Tensor,
               step: tf.Tensor, decays: bool) -> None:
        decay = self._training.weight_decay
        lr = tf.cast(learning_rate, variable.dtype)
        w = tf.convert_to_tensor(variable)
        if decays:
            if decay.decoupled:
                w = w * tf.cast(1.0 - learning_rate * decay.rate, w.dtype)
            else:
                g = g + decay.rate * w
        change, new = rules.update(self._rule, g, slots, lr, step)
        for slot, value in new.items():
            slots[slot].assign(value)
        if decays and decay.decoupled:
            variable.assign(w - change)
        else:
            variable.assign_sub(change)

    def canonical_state(self) -> Dict[str, np.ndarray]:
        return {
            "%s.%s" % (name, slot): value.numpy()
            for name, slots in zip(self._variables, self._slots) for slot, value in slots.items()
        }

    def state_variables(self) -> Dict[str, Any]:
        found = OrderedDict(iterations=self.iterations)
        for name, slots in zip(self._variables, self._slots):
            found.update(("%s.%s" % (name, slot), variable) for slot, variable in slots.items())
        return found


class NativeUpdate(Update):
    """``tf.keras.optimizers`` as users of plain TensorFlow apply them.

    L2 is ``rate * tf.nn.l2_loss(w)`` in the loss, so ``g += rate w`` before clipping; clipping is
    ``tf.clip_by_global_norm``; decoupled decay is the optimizer's ``weight_decay``.
    """

    def __init__(self, variables: Dict[str, tf.Variable], training: Training, placed: bool = False) -> None:
        super().__init__(variables, training, placed)
        settings = native.constants(self._rule)
        if native.decoupled_rate(training):
            settings["weight_decay"] = native.decoupled_rate(training)
        # A float would become a variable of Keras's floatx; the rate itself comes with every step.
        self._optimizer = getattr(tf.keras.optimizers, native.class_name(self._rule))(0.0, **settings)
        native.exclude_from_decay(self._optimizer, training, variables)
        self._optimizer.build(list(variables.values()))
        self.iterations = self._optimizer.iterations

    def penalty(self) -> List[tf.Tensor]:
        rate = native.l2_rate(self._training)
        if not rate:
            return []
        applies = self._training.weight_decay.applies_to
        return [rate * tf.nn.l2_loss(variable) for name, variable in self._variables.items() if applies(name)]

    def apply(self, gradients: List[tf.Tensor], learning_rate: tf.Tensor) -> None:
        if self._training.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._training.clip_norm)
        rate = self._optimizer.learning_rate
        rate.assign(tf.cast(learning_rate, rate.dtype))
        self._apply(gradients)

    def _apply(self, gradients: List[tf.Tensor]) -> None:
        variables = list(self._variables.values())
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            self._optimizer.apply_gradients(zip(gradients, variables))
        else:
            options: Dict[str, Any] = {}
            if "skip_gradients_aggregation" in inspect.signature(self._optimizer.apply_gradients).parameters:
                options["skip_gradients_aggregation"] = True
            else:
                # Keras 3 has no such option and would add up once more what is the sum already.
                self._optimizer._all_reduce_sum_gradients = list
            self._optimizer.apply_gradients(zip(gradients, variables), **options)

    def canonical_state(self) -> Dict[str, np.ndarray]:
        found: Dict[str, np.ndarray] = {}
        for slot, (variables, sign) in native.slots(self._optimizer, self._rule).items():
            for name, variable in zip(self._variables, variables):
                found["%s.%s" % (name, slot)] = variable.numpy() * variable.numpy().dtype.type(sign)
        return found

    def state_variables(self) -> Dict[str, Any]:
        variables = list(self._optimizer.variables)
        return OrderedDict(("keras.%d" % index, variable) for index, variable in enumerate(variables))


def clip_by_global_norm(gradients: List[tf.Tensor], clip_norm: float) -> List[tf.Tensor]:
    """``g * clip_norm / max(norm, clip_norm)`` with the Euclidean norm over all gradients together."""
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients]))
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return [g * factor for g in gradients]


def read_state(variables: Mapping[str, Any]) -> Dict[str, np.ndarray]:
    """Copies of the variables' values."""
    return {name: np.array(variable.numpy()) for name, variable in variables.items()}


def write_state(variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Sets the variables; raises ``KeyError`` or ``ValueError`` if ``values`` does not fit."""
    for name, variable in variables.items():
        variable.assign(values[name])
