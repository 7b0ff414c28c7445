"""Keras optimizers: the canonical rule as one, and Keras's own extended by what a run needs.

Native rules are those of Keras 2.3.1: SGD with the velocity v = mu v - lr g (the negative of the canonical
one); RMSprop, Adagrad and Adadelta as the canonical form, their epsilon 1e-7 by default; Adam with epsilon
beside the uncorrected root ("epsilon hat"). ``clipnorm`` is global and includes the gradient of penalties.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from crosstrain_service.training import Training

from . import device  # noqa: F401  prepares Theano's compile directory

# isort: split
import keras

from .device import T, floating, theano
from .model import Stored
from .optimizer import CanonicalRule, learning_rate_variable, suffixes
from .ranks import Team

Variable = Any

_CLASSES = {
    "sgd": keras.optimizers.SGD,
    "rmsprop": keras.optimizers.RMSprop,
    "adagrad": keras.optimizers.Adagrad,
    "adam": keras.optimizers.Adam,
    "adadelta": keras.optimizers.Adadelta,
}
_ARGUMENTS = {
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "rho",
    "epsilon": "epsilon",
    "beta1": "beta_1",
    "beta2": "beta_2",
}


class CanonicalOptimizer(keras.optimizers.Optimizer):
    """The canonical rule as a Keras optimizer; ``parameters`` maps canonical names to variables and layouts."""

    def __init__(self, training: Training, parameters: Mapping[str, Stored], team: Optional[Team] = None) -> None:
        super().__init__()
        self._team = team
        self.learning_rate = learning_rate_variable()
        self._parameters = parameters
        variables = OrderedDict((name, stored.variable) for name, stored in parameters.items())
        self._rule = CanonicalRule(training, variables, self.learning_rate)
        self.iterations = self._rule.iterations
        self.weights = [self.iterations] + list(self._rule.state.values())

    def get_updates(self, loss: Variable, params: List[Variable]) -> List[Tuple[Variable, Variable]]:
        """Updates for all parameters; Keras asks once, when it builds the training function."""
        found = dict(zip(params, self.get_gradients(loss, params)))
        gradients = OrderedDict((name, found[stored.variable]) for name, stored in self._parameters.items())
        self.updates = self._rule.updates(gradients)
        return self.updates

    def get_gradients(self, loss: Variable, params: List[Variable]) -> List[Variable]:
        """Gradients of the loss of the whole batch of all ranks."""
        return T.grad(loss, params) if self._team is None else self._team.gradients(loss, params)

    def state(self) -> Dict[str, Stored]:
        """The state by canonical name."""
        return OrderedDict(
            (name, Stored(variable, self._parameters[name.rsplit(".", 1)[0]].layout))
            for name, variable in self._rule.state.items()
        )

    def extras(self) -> Dict[str, Variable]:
        """Further variables that a resumed training needs."""
        return {"iterations": self.iterations}

    def prepare(self, loss: Variable, params: List[Variable], data_loss: Variable) -> None:
        """Nothing: the state exists from the start, and the loss holds no penalty."""


class _Native:
    """Added to one of Keras's optimizers: decoupled decay, the loss without penalties, and state by canonical
    name.
    """

    _prepared: Any = None

    def configure(self, training: Training, parameters: Mapping[str, Stored], team: Optional[Team]) -> None:
        """To be called at once; Keras's constructors take their own arguments only."""
        self._team = team
        self._training = training
        self._parameters = parameters
        #: The loss of the last step without penalties, where the model's loss has penalties.
        self.reported_loss = theano.shared(floating(0), name="data_loss")

    def prepare(self, loss: Variable, params: List[Variable], data_loss: Variable) -> None:
        """Builds updates and state, which Keras would do only when it builds the training function.

        ``data_loss``: the loss without penalties, or None where the model's loss has none.
        """
        self._data_loss = data_loss
        self._prepared = self.get_updates(loss=loss, params=params)
        self._params = list(params)
        start = self._training.rule.initial_accumulator
        if start:
            for name, stored in self.state().items():
                if name.endswith(".accumulator"):
                    stored.set(np.full_like(stored.value(), start))

    def get_updates(self, loss: Variable, params: List[Variable]) -> List[Tuple[Variable, Variable]]:
        if self._prepared is not None:
            return self._prepared
        updates = super().get_updates(loss=loss, params=params)  # type: ignore[misc]
        decay = self._training.weight_decay
        if decay is not None and decay.decoupled:
            # None of Keras's rules uses the parameter but as the start of the change.
            names = {stored.variable: name for name, stored in self._parameters.items()}
            factor = self.learning_rate * floating(decay.rate)
            updates = [
                (
                    variable,
                    value - factor * variable if variable in names and decay.applies_to(names[variable]) else value,
                )
                for variable, value in updates
            ]
        if self._data_loss is not None:
            updates = updates + [(self.reported_loss, T.cast(self._data_loss, self.reported_loss.dtype))]
        return updates

    def get_gradients(self, loss: Variable, params: List[Variable]) -> List[Variable]:
        """Keras's, but for several ranks those of the whole batch, which are then clipped as Keras does."""
        if self._team is None:
            return super().get_gradients(loss, params)  # type: ignore[misc,no-any-return]
        gradients = self._team.gradients(loss, params)
        limit = getattr(self, "clipnorm", 0)
        if not limit:
            return gradients
        norm = T.sqrt(sum(T.sum(T.sqr(gradient)) for gradient in gradients))
        return [keras.optimizers.clip_norm(gradient, limit, norm) for gradient in gradients]

    def state(self) -> Dict[str, Stored]:
        """The state by canonical name; Keras keeps it in groups of one array per parameter."""
        stored = {item.variable: (name, item) for name, item in self._parameters.items()}
        found: Dict[str, Stored] = OrderedDict()
        sign = -1 if self._training.rule.name == "sgd" else 1
        for position, suffix in enumerate(suffixes(self._training.rule)):
            for index, parameter in enumerate(self._params):
                name, item = stored[parameter]
                variable = self.weights[1 + position * len(self._params) + index]
                found["%s.%s" % (name, suffix)] = Stored(variable, item.layout, sign)
        order = list(self._parameters)
        return OrderedDict(sorted(found.items(), key=lambda pair: order.index(pair[0].rsplit(".", 1)[0])))

    def extras(self) -> Dict[str, Variable]:
        """Further variables that a resumed training needs."""
        return {"iterations": self.iterations}


def native_optimizer(training: Training, parameters: Mapping[str, Stored], team: Optional[Team] = None) -> Any:
    """One of Keras's own optimizers; constants that the rule leaves open are Keras's defaults."""
    rule = training.rule
    given = {argument: getattr(rule, name) for name, argument in _ARGUMENTS.items() if getattr(rule, name) is not None}
    if training.clip_norm:
        given["clipnorm"] = training.clip_norm
    kind = _CLASSES[rule.name]
    optimizer = type(kind.__name__, (_Native, kind), {})(**given)
    optimizer.configure(training, parameters, team)
    return optimizer
