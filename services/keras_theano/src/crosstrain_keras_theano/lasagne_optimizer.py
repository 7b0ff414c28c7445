"""Lasagne's own update functions, for native semantics.

Lasagne 0.1: momentum keeps v = mu v - lr g, the negative of the canonical velocity; RMSprop and Adagrad have
epsilon (1e-6) inside the root; Adam has epsilon (1e-8) beside the uncorrected root; ``total_norm_constraint``
clips all gradients, penalties included, with the factor clip(norm, 0, c) / (1e-7 + norm), and the state is
made by the function.
"""

from collections import OrderedDict
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from crosstrain_service.training import Rule, Training

from .device import T, floating
from .lasagne_layers import lasagne
from .model import Stored
from .optimizer import suffixes

Variable = Any

_ARGUMENTS = ("momentum", "rho", "epsilon", "beta1", "beta2")


class NativeRule:
    """Updates by one of Lasagne's functions, ``state`` by canonical name and ``extras`` (Adam's count)."""

    def __init__(
        self,
        training: Training,
        parameters: Mapping[str, Stored],
        learning_rate: Variable,
        loss: Variable,
        differentiate: Callable[[Variable, List[Variable]], List[Variable]] = T.grad,
    ) -> None:
        """``loss`` includes the penalty; ``differentiate`` gives its gradients."""
        variables = [stored.variable for stored in parameters.values()]
        gradients = differentiate(loss, variables)
        if training.clip_norm:
            gradients = lasagne.updates.total_norm_constraint(gradients, training.clip_norm)
        function, constants = _function(training.rule)
        updates = function(gradients, variables, learning_rate=learning_rate, **constants)
        self.state, self.extras = _state(training.rule, updates, parameters)
        start = training.rule.initial_accumulator
        if start and training.rule.name == "adagrad":
            for stored in self.state.values():
                stored.set(np.full_like(stored.value(), start))
        self.updates: List[Tuple[Variable, Variable]] = list(updates.items())
        decay = training.weight_decay
        if decay is not None and decay.decoupled:
            # Lasagne has no such decay; its rules use the parameter only as the start of the change.
            names = {stored.variable: name for name, stored in parameters.items()}
            factor = learning_rate * floating(decay.rate)
            self.updates = [
                (
                    variable,
                    value - factor * variable if variable in names and decay.applies_to(names[variable]) else value,
                )
                for variable, value in self.updates
            ]


def _function(rule: Rule) -> Tuple[Any, Dict[str, Any]]:
    """Lasagne's function for a rule and the constants to give it; those left open are Lasagne's defaults."""
    constants = {name: getattr(rule, name) for name in _ARGUMENTS if getattr(rule, name) is not None}
    if rule.name != "sgd":
        return getattr(lasagne.updates, rule.name), constants
    if not rule.momentum:
        return lasagne.updates.sgd, {}
    return (lasagne.updates.nesterov_momentum if rule.nesterov else lasagne.updates.momentum), constants


def _state(
    rule: Rule, updates: Mapping[Variable, Variable], parameters: Mapping[str, Stored]
) -> Tuple[Dict[str, Stored], Dict[str, Variable]]:
    """State by canonical name, and the rest; Lasagne makes the state of one parameter after that of another."""
    variables = {stored.variable for stored in parameters.values()}
    made = [variable for variable in updates if variable not in variables]
    kinds = suffixes(rule)
    count = len(kinds) * len(parameters)
    sign = -1 if rule.name == "sgd" else 1
    found: Dict[str, Stored] = OrderedDict()
    for index, (name, stored) in enumerate(parameters.items()):
        for position, suffix in enumerate(kinds):
            variable = made[index * len(kinds) + position]
            found["%s.%s" % (name, suffix)] = Stored(variable, stored.layout, sign)
    return found, {"iterations_%d" % index: variable for index, variable in enumerate(made[count:])}
