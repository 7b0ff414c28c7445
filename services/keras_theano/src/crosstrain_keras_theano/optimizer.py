"""The canonical update rules as Theano updates, shared by both engines.

See ``crosstrain_service.training.Rule`` for the formulas. Constants are rounded once from float64; Adam's
bias corrections are computed in float64 inside the graph, since 1 - beta2^t loses five digits in float32.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from crosstrain_service.training import Rule, Training

from .device import T, floating, theano

Variable = Any

#: Names of the state that each rule keeps per parameter.
SUFFIXES = {
    "sgd": ("velocity",),
    "rmsprop": ("mean_square",),
    "adagrad": ("accumulator",),
    "adam": ("m", "v"),
    "adadelta": ("mean_square", "mean_update"),
}  # type: Dict[str, Tuple[str, ...]]


def suffixes(rule: Rule) -> Tuple[str, ...]:
    """Names of the state per parameter; plain SGD has none."""
    return () if rule.name == "sgd" and not rule.momentum else SUFFIXES[rule.name]


def learning_rate_variable() -> Variable:
    """A shared scalar in the run's floating type, to be set before every step."""
    return theano.shared(floating(0), name="learning_rate")


def clip_by_global_norm(gradients: Mapping[str, Variable], limit: float) -> Dict[str, Variable]:
    """All gradients times limit / max(norm, limit), the norm being taken over all of them together."""
    squares = [T.sum(T.sqr(gradient)) for gradient in gradients.values()]
    norm = T.sqrt(sum(squares[1:], squares[0]))
    factor = floating(limit) / T.maximum(norm, floating(limit))
    return OrderedDict((name, gradient * factor) for name, gradient in gradients.items())


class CanonicalRule:
    """State and updates of one rule over named parameters (shared variables of any layout).

    ``state`` maps "<parameter>.<suffix>" to shared variables in the layout of their parameter; ``iterations``
    counts the updates made.
    """

    def __init__(self, training: Training, parameters: Mapping[str, Variable], learning_rate: Variable) -> None:
        self._training = training
        self._parameters = OrderedDict(parameters)
        self._learning_rate = learning_rate
        self.iterations = theano.shared(np.asarray(0, np.int64), name="iterations")
        self.state: Dict[str, Variable] = OrderedDict()
        start = training.rule.initial_accumulator or 0.0
        for name, parameter in self._parameters.items():
            value = parameter.get_value(borrow=True)
            for suffix in suffixes(training.rule):
                initial = np.full_like(value, start if suffix == "accumulator" else 0.0)
                full_name = "%s.%s" % (name, suffix)
                self.state[full_name] = theano.shared(initial, name=full_name, broadcastable=parameter.broadcastable)

    def updates(self, gradients: Mapping[str, Variable]) -> List[Tuple[Variable, Variable]]:
        """(variable, new value) for the state, the parameters and the count, from the gradients of the data
        loss.
        """
        training = self._training
        decay = training.weight_decay
        if training.clip_norm:
            gradients = clip_by_global_norm(gradients, training.clip_norm)
        step = getattr(self, "_" + training.rule.name)
        result = [(self.iterations, self.iterations + 1)]
        for name, parameter in self._parameters.items():
            gradient, base = gradients[name], parameter
            if decay is not None and decay.applies_to(name):
                if decay.decoupled:
                    base = parameter * (floating(1) - self._learning_rate * floating(decay.rate))
                else:
                    gradient = gradient + floating(decay.rate) * parameter
            state = {suffix: self.state["%s.%s" % (name, suffix)] for suffix in suffixes(training.rule)}
            change, new = step(gradient, state)
            result.extend((state[suffix], value) for suffix, value in new.items())
            result.append((parameter, base - change))
        return result

    def _sgd(self, gradient: Variable, state: Mapping[str, Variable]) -> Tuple[Variable, Dict[str, Variable]]:
        scaled = self._learning_rate * gradient
        if not state:
            return scaled, {}
        momentum = floating(self._training.rule.momentum)
        velocity = momentum * state["velocity"] + scaled
        change = momentum * velocity + scaled if self._training.rule.nesterov else velocity
        return change, {"velocity": velocity}

    def _rmsprop(self, gradient: Variable, state: Mapping[str, Variable]) -> Tuple[Variable, Dict[str, Variable]]:
        rule = self._training.rule
        mean_square = _decayed(rule.rho, state["mean_square"], T.sqr(gradient))
        change = self._learning_rate * gradient / (T.sqrt(mean_square) + floating(rule.epsilon))
        return change, {"mean_square": mean_square}

    def _adagrad(self, gradient: Variable, state: Mapping[str, Variable]) -> Tuple[Variable, Dict[str, Variable]]:
        accumulator = state["accumulator"] + T.sqr(gradient)
        change = self._learning_rate * gradient / (T.sqrt(accumulator) + floating(self._training.rule.epsilon))
        return change, {"accumulator": accumulator}

    def _adam(self, gradient: Variable, state: Mapping[str, Variable]) -> Tuple[Variable, Dict[str, Variable]]:
        rule = self._training.rule
        m = _decayed(rule.beta1, state["m"], gradient)
        v = _decayed(rule.beta2, state["v"], T.sqr(gradient))
        m_hat = m / self._correction(rule.beta1)
        v_hat = v / self._correction(rule.beta2)
        return self._learning_rate * m_hat / (T.sqrt(v_hat) + floating(rule.epsilon)), {"m": m, "v": v}

    def _adadelta(self, gradient: Variable, state: Mapping[str, Variable]) -> Tuple[Variable, Dict[str, Variable]]:
        rule = self._training.rule
        epsilon = floating(rule.epsilon)
        mean_square = _decayed(rule.rho, state["mean_square"], T.sqr(gradient))
        change = gradient * T.sqrt(state["mean_update"] + epsilon) / T.sqrt(mean_square + epsilon)
        mean_update = _decayed(rule.rho, state["mean_update"], T.sqr(change))
        return self._learning_rate * change, {"mean_square": mean_square, "mean_update": mean_update}

    def _correction(self, beta: float) -> Variable:
        """1 - beta^t with t counting from 1."""
        power = T.pow(np.float64(beta), T.cast(self.iterations + 1, "float64"))
        return T.cast(np.float64(1) - power, theano.config.floatX)


def _decayed(rate: float, old: Variable, new: Variable) -> Variable:
    return floating(rate) * old + floating(1.0 - rate) * new
