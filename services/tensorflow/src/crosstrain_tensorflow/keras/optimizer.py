"""Keras optimizers of canonical form.

Where Keras's own rule is the canonical one (SGD with its momentum and Nesterov forms, Adadelta) its class is
used; RMSProp, Adagrad and Adam are subclasses of ``keras.optimizers.Optimizer`` over :mod:`..rules`, since no constant
of Keras's makes its epsilon the canonical one. Global clipping and decoupled decay are Keras's own in all.
L2 decay is added to the gradient inside the update step, after clipping.
"""

from typing import Any, Dict, List, Tuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from crosstrain_service.training import Rule, Training

from .. import native, replicas, rules
from ..shares import Sum
from . import compat


class _L2:
    """Mixin: adds ``rate * w`` to the gradients of the variables at ``decayed`` positions."""

    l2_rate = 0.0
    decayed: frozenset = frozenset()

    def update_step(self, gradient: tf.Tensor, variable: Any, *learning_rate: Any) -> None:
        """One update of one variable; Keras 3 passes the learning rate."""
        if self.l2_rate and compat.variable_index(self, variable) in self.decayed:
            gradient = gradient + self.l2_rate * tf.convert_to_tensor(variable)
        super().update_step(gradient, variable, *learning_rate)


class _SumFirst:
    """Mixin for Keras 3: adds gradients up over replicas before they are clipped, not afterwards."""

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        super()._backend_apply_gradients(replicas.add(list(grads)), trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


class _Unchanged:
    """Mixin for Keras 2, which clips what it has added up."""


_Sum: Any = _SumFirst if compat.KERAS_3 else _Unchanged


class _RuleOptimizer(keras.optimizers.Optimizer):
    """One of the canonical rules in TensorFlow operations."""

    def __init__(self,
                 learning_rate: float,
                 rule: Rule,
                 name: str = "canonical",
                 **options: Any) -> None:
        if compat.KERAS_3:
            super().__init__(learning_rate=learning_rate, name=name, **options)
        else:
            super().__init__(name=name, **options)
            self._learning_rate = self._build_learning_rate(learning_rate)
        self._rule = rule
        self._has_slots = False

    def build(self, variables: List[Any]) -> None:
        """Creates the state; called with the trained variables before the first update, perhaps repeatedly."""
        super().build(variables)
        if self._has_slots:
            return
        self._has_slots = True
        start = rules.initial_value(self._rule)
        self.slots = {
            name: [compat.slot(self, variable, name, start) for variable in variables]
            for name in rules.slots(self._rule)
        }
        self._built = True

    def update_step(self, gradient: tf.Tensor, variable: Any, learning_rate: Any = None) -> None:
        """One update of one variable; Keras 3 passes the learning rate."""
        index = compat.variable_index(self, variable)
        lr = tf.cast(self.learning_rate if learning_rate is None else learning_rate, gradient.dtype)
        state = {name: tf.convert_to_tensor(slots[index]) for name, slots in self.slots.items()}
        step = tf.convert_to_tensor(self.iterations) + 1
        change, new = rules.update(self._rule, gradient, state, lr, step)
        for name, value in new.items():
            self.slots[name][index].assign(value)
        variable.assign_sub(change)

    def get_config(self) -> Dict[str, Any]:
        return dict(super().get_config(), rule=self._rule)


class CanonicalSGD(_L2, _Sum, keras.optimizers.SGD):
    """Keras's SGD with L2 decay."""


class CanonicalAdadelta(_L2, _Sum, keras.optimizers.Adadelta):
    """Keras's Adadelta with L2 decay."""


class CanonicalRule(_L2, _Sum, _RuleOptimizer):
    """One of the rules with L2 decay."""


def build(training: Training,
          variables: Dict[str, Any],
          is_native: bool) -> keras.optimizers.Optimizer:
    """The optimizer of a run over the trained ``variables`` (by canonical name, in the model's order), built."""
    rule = training.rule
    settings = dict(compat.optimizer_options(), **native.options(training))
    if is_native:
        cls = getattr(keras.optimizers, native.class_name(rule))
        optimizer = cls(learning_rate=0.0, **dict(settings, **native.constants(rule)))
    else:
        optimizer = _canonical(rule, settings)
        decay = training.weight_decay
        if native.l2_rate(training):
            optimizer.l2_rate = decay.rate
            optimizer.decayed = frozenset(
                index for index, name in enumerate(variables) if decay.applies_to(name))
    native.exclude_from_decay(optimizer, training, variables)
    optimizer.build(list(variables.values()))
    return optimizer


def add_up_by(optimizer: keras.optimizers.Optimizer, add: Sum) -> None:
    """Makes an optimizer of Keras 2 add gradients up by ``add`` before it clips them.

    ``hvd.DistributedOptimizer`` does the same for its own copy of an optimizer, which it makes from a configuration
    and without what is built.
    """
    def aggregate(grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars)
        return list(zip(add(list(gradients)), variables))

    optimizer.aggregate_gradients = aggregate


def _canonical(rule: Rule, settings: Dict[str, Any]) -> keras.optimizers.Optimizer:
    # Keras casts momentum and weight_decay with tf.cast, which takes a Python float to float32 first: in a
    # float64 run momentum 0.9 would be 0.89999998.
    if settings["weight_decay"] is not None:
        settings = dict(settings, weight_decay=np.float64(settings["weight_decay"]))
    if rule.name == "sgd":
        momentum = np.float64(rule.momentum or 0.0)
        return CanonicalSGD(learning_rate=0.0, momentum=momentum, nesterov=bool(rule.nesterov), **settings)
    if rule.name == "adadelta":
        return CanonicalAdadelta(learning_rate=0.0, rho=rule.rho, epsilon=rule.epsilon, **settings)
    return CanonicalRule(0.0, rule, **settings)


def slots(optimizer: keras.optimizers.Optimizer, rule: Rule) -> Dict[str, Tuple[List[Any], float]]:
    """State by canonical slot name: variables in the order of the trained ones, and the sign to multiply with."""
    if isinstance(optimizer, _RuleOptimizer):
        return {name: (variables, 1.0) for name, variables in optimizer.slots.items()}
    return native.slots(optimizer, rule)
