"""Plants in TensorFlow and Keras: other operations, or another update rule."""

import contextlib
from dataclasses import replace

import tensorflow as tf

import crosstrain_tensorflow.engine as adapter
import crosstrain_tensorflow.native as native
import crosstrain_tensorflow.optimizer as updates
import crosstrain_tensorflow.rules as rules

from .plant import Plant, replaced


def patching(*patches):
    """A plant with patches of the form (holder, attribute or key, value)."""

    class Patching(Plant):
        @contextlib.contextmanager
        def patched(self):
            with contextlib.ExitStack() as stack:
                for holder, attribute, value in patches:
                    stack.enter_context(replaced(holder, attribute, value))
                yield

    return Patching


def on_rule(name, function):
    """A plant with another update rule, of the form of those in ``rules``."""
    return patching((rules._RULES, name, function))


_moments = tf.nn.moments
_cross_entropy = adapter.mean_cross_entropy


def _unbiased(x, axes, **options):
    mean, variance = _moments(x, axes, **options)
    count = tf.cast(tf.size(x) // tf.shape(x)[-1], x.dtype)
    return mean, variance * count / (count - 1)


def _epsilon_outside(x, mean, variance, offset, scale, variance_epsilon):
    return (x - mean) / (tf.sqrt(variance) + variance_epsilon) * scale + offset


def _clipped(logits, labels):
    probabilities = tf.clip_by_value(tf.nn.softmax(logits), 1e-7, 1 - 1e-7)
    chosen = tf.gather(probabilities, labels, axis=1, batch_dims=1)
    return -tf.reduce_mean(tf.math.log(chosen))


def _summed(logits, labels):
    return _cross_entropy(logits, labels) * tf.cast(tf.shape(logits)[0], logits.dtype)


def _rmsprop_inside(rule, g, state, lr, step):
    mean_square = rule.rho * state["mean_square"] + (1.0 - rule.rho) * tf.square(g)
    return lr * g / tf.sqrt(mean_square + rule.epsilon), {"mean_square": mean_square}


def _adagrad_inside(rule, g, state, lr, step):
    accumulator = state["accumulator"] + tf.square(g)
    return lr * g / tf.sqrt(accumulator + rule.epsilon), {"accumulator": accumulator}


def _adam_hat(rule, g, state, lr, step):
    m = rule.beta1 * state["m"] + (1.0 - rule.beta1) * g
    v = rule.beta2 * state["v"] + (1.0 - rule.beta2) * tf.square(g)
    first, second = (rules._bias_correction(beta, step, g.dtype) for beta in (rule.beta1, rule.beta2))
    return lr * tf.sqrt(second) / first * m / (tf.sqrt(v) + rule.epsilon), {"m": m, "v": v}


def _sgd_dampened(rule, g, state, lr, step):
    # As in PyTorch and Torch7, the first step is not dampened.
    share = tf.where(step == 1, tf.ones((), g.dtype), tf.constant(1.0 - rule.momentum, g.dtype))
    velocity = rule.momentum * state["velocity"] + share * (lr * g)
    return velocity, {"velocity": velocity}


def _sgd_without_momentum(rule, g, state, lr, step):
    return lr * g, {"velocity": lr * g}


def _clip_each(gradients, limit):
    return [tf.clip_by_norm(gradient, limit) for gradient in gradients]


def _keras_clipnorm(training):
    return {"clipnorm": training.clip_norm}


class DecayBeforeClip(Plant):
    """L2 decay added to the gradients before they are clipped: it is half the sum of squares in the loss."""

    def attach(self, engine):
        decay = self.asked_training.weight_decay
        variables = engine._variables
        engine._update.penalty = lambda: [
            decay.rate * tf.nn.l2_loss(variable) for name, variable in variables.items() if decay.applies_to(name)]

    def training(self):
        return replace(self.asked_training, weight_decay=None)


PLANTS = {
    "relu.half_at_zero": patching((tf.nn, "relu", lambda x: 0.5 * (x + tf.abs(x)))),
    "relu.one_at_zero": patching((tf.nn, "relu", lambda x: tf.maximum(x, tf.zeros((), x.dtype)))),
    "batch_norm.unbiased_variance": patching((tf.nn, "moments", _unbiased)),
    "batch_norm.epsilon_outside_root": patching((tf.nn, "batch_normalization", _epsilon_outside)),
    "loss.clipped_probabilities": patching((adapter, "mean_cross_entropy", _clipped)),
    "loss.summed": patching((adapter, "mean_cross_entropy", _summed)),
    "loss.double_softmax": patching(
        (adapter, "mean_cross_entropy", lambda logits, labels: _cross_entropy(tf.nn.softmax(logits), labels))),
    "rmsprop.epsilon_inside": on_rule("rmsprop", _rmsprop_inside),
    "adagrad.epsilon_inside": on_rule("adagrad", _adagrad_inside),
    "adam.epsilon_hat": on_rule("adam", _adam_hat),
    "adam.no_bias_correction": patching((rules, "_bias_correction", lambda beta, step, dtype: tf.ones((), dtype))),
    "momentum.dampening": on_rule("sgd", _sgd_dampened),
    "momentum.missing": on_rule("sgd", _sgd_without_momentum),
    "clip.per_tensor": patching((updates, "clip_by_global_norm", _clip_each)),
    "clip.per_tensor.keras": patching((native, "options", _keras_clipnorm)),
    "decay.before_clip": DecayBeforeClip,
}
