"""The canonical update rules in TensorFlow operations, as pure functions (see ``crosstrain_service.training.Rule``).

Both engines use them: the plain engine for every rule, the Keras engine where Keras's own optimizer has
another form.
"""

from typing import Dict, Tuple

import tensorflow as tf

from crosstrain_service.training import Rule

Tensors = Dict[str, tf.Tensor]


def slots(rule: Rule) -> Tuple[str, ...]:
    """Names of the state that a rule keeps for every parameter."""
    if rule.name == "sgd":
        return ("velocity",) if rule.momentum else ()
    return {
        "rmsprop": ("mean_square",),
        "adagrad": ("accumulator",),
        "adam": ("m", "v"),
        "adadelta": ("mean_square", "mean_update"),
    }[rule.name]


def initial_value(rule: Rule) -> float:
    """What every element of the state is before the first update."""
    return float(rule.initial_accumulator or 0.0) if rule.name == "adagrad" else 0.0


def update(rule: Rule,
           g: tf.Tensor,
           state: Tensors,
           lr: tf.Tensor,
           step: tf.Tensor) -> Tuple[tf.Tensor, Tensors]:
    """What is subtracted from a parameter, and its new state.

    ``g`` is the gradient after clipping and L2 decay, ``lr`` a scalar of its type, ``step`` an integer scalar
    that counts updates from 1.
    """
    return _RULES[rule.name](rule, g, state, lr, step)


def _sgd(rule, g, state, lr, step):
    change = lr * g
    if not rule.momentum:
        return change, {}
    velocity = rule.momentum * state["velocity"] + change
    if rule.nesterov:
        return rule.momentum * velocity + change, {"velocity": velocity}
    return velocity, {"velocity": velocity}


def _rmsprop(rule, g, state, lr, step):
    mean_square = rule.rho * state["mean_square"] + (1.0 - rule.rho) * tf.square(g)
    return lr * g / (tf.sqrt(mean_square) + rule.epsilon), {"mean_square": mean_square}


def _adagrad(rule, g, state, lr, step):
    accumulator = state["accumulator"] + tf.square(g)
    return lr * g / (tf.sqrt(accumulator) + rule.epsilon), {"accumulator": accumulator}


def _adam(rule, g, state, lr, step):
    m = rule.beta1 * state["m"] + (1.0 - rule.beta1) * g
    v = rule.beta2 * state["v"] + (1.0 - rule.beta2) * tf.square(g)
    m_hat = m / _bias_correction(rule.beta1, step, g.dtype)
    v_hat = v / _bias_correction(rule.beta2, step, g.dtype)
    return lr * m_hat / (tf.sqrt(v_hat) + rule.epsilon), {"m": m, "v": v}


def _adadelta(rule, g, state, lr, step):
    mean_square = rule.rho * state["mean_square"] + (1.0 - rule.rho) * tf.square(g)
    d = g * tf.sqrt(state["mean_update"] + rule.epsilon) / tf.sqrt(mean_square + rule.epsilon)
    mean_update = rule.rho * state["mean_update"] + (1.0 - rule.rho) * tf.square(d)
    return lr * d, {"mean_square": mean_square, "mean_update": mean_update}


def _bias_correction(beta, step, dtype):
    # In float32, 1 - 0.999 ** t would lose half of its digits in the first steps.
    power = tf.pow(tf.constant(beta, tf.float64), tf.cast(step, tf.float64))
    return tf.cast(1.0 - power, dtype)


_RULES = {"sgd": _sgd, "rmsprop": _rmsprop, "adagrad": _adagrad, "adam": _adam, "adadelta": _adadelta}
