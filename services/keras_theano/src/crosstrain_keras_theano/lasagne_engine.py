"""The engine "lasagne": Lasagne 0.1 layers and one compiled Theano function as training step.

See :mod:`.lasagne_model` for what the two semantics mean. In native semantics the loss is Lasagne's
categorical cross-entropy of a softmax (which Theano merges into a stable form), L2 decay is Lasagne's ``l2``
penalty, whose gradient is twice the rate times the weight, and dropout is drawn by Theano's generator from
the training's seed. Lasagne has no decoupled decay; the canonical form is used. Reported losses are those of
the batch, without penalties.

Untested: device "cuda".
"""

from collections import OrderedDict
from typing import Any, Dict, List

import numpy as np

from crosstrain_service.engine import EngineInfo, Loop
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training

from . import device
from .device import T, explained, theano
from .engine import TheanoEngine, features
from .lasagne_layers import lasagne
from .lasagne_model import LasagneNetwork
from .lasagne_optimizer import NativeRule
from .model import Stored
from .optimizer import CanonicalRule, learning_rate_variable

_NATIVE = "update rules of our own; native semantics use Lasagne's"
_EMULATED = {
    "layer.convolution.asymmetric_padding": "Theano's convolution, which Lasagne does not reach with such padding",
    "layer.batch_norm": "a layer of our own: Lasagne 0.1 has none; native semantics use Theano's operation",
    "layer.local_response_norm": "a layer of our own; native semantics use Lasagne's",
    "optimizer.sgd": _NATIVE,
    "optimizer.sgd.momentum": _NATIVE,
    "optimizer.sgd.nesterov": _NATIVE,
    "optimizer.rmsprop": _NATIVE + ", with epsilon inside the root",
    "optimizer.adagrad": _NATIVE + ", with epsilon inside the root",
    "optimizer.adam": _NATIVE + ", with epsilon hat",
    "optimizer.adadelta": _NATIVE,
}


class LasagneEngine(TheanoEngine):
    """One network in Lasagne."""

    name = "lasagne"

    @classmethod
    def info(cls) -> EngineInfo:
        libraries = device.libraries()
        libraries["lasagne"] = lasagne.__version__
        return EngineInfo(cls.name, lasagne.__version__, features(_EMULATED), libraries)

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        super().__init__(model, training, execution)
        network = LasagneNetwork(model, training, execution, self._team)
        self._network = network
        self._learning_rate = learning_rate_variable()
        with explained("building the updates"):
            self._updates = self._native(training) if execution.native else self._canonical(training)
        self._updates = self._updates + network.updates
        self._step: Any = None

    def _canonical(self, training: Training) -> Any:
        parameters = self._network.parameters
        variables = OrderedDict((name, stored.variable) for name, stored in parameters.items())
        rule = CanonicalRule(training, variables, self._learning_rate)
        self._optimizer_state = OrderedDict(
            (name, Stored(variable, parameters[name.rsplit(".", 1)[0]].layout)) for name, variable in rule.state.items()
        )
        self._optimizer_extras = {"iterations": rule.iterations}
        gradients = self._gradients(self._network.loss, list(variables.values()))
        return rule.updates(OrderedDict(zip(variables, gradients)))

    def _gradients(self, loss: Any, variables: List[Any]) -> List[Any]:
        if self._team is None:
            return T.grad(loss, variables)
        return self._team.gradients(loss, variables)

    def _native(self, training: Training) -> Any:
        network = self._network
        loss = network.loss if network.penalty is None else network.loss + network.penalty
        rule = NativeRule(training, network.parameters, self._learning_rate, loss, self._gradients)
        self._optimizer_state = rule.state
        self._optimizer_extras: Dict[str, Any] = rule.extras
        return rule.updates

    def train(self, loop: Loop) -> None:
        self._activate()
        network = self._network
        if self._step is None:
            with explained("compiling the training step"), self._compiling("training step"):
                self._step = theano.function(
                    [network.x, network.labels] + list(network.masks.values()),
                    network.loss,
                    updates=self._updates,
                    name="train",
                )
        self._draw_apart(loop.step)
        for epoch in loop.epochs():
            for batch in epoch.batches():
                self._learning_rate.set_value(np.asarray(batch.learning_rate, dtype=self._dtype))
                self._set_part(batch)
                with explained("training step %d" % batch.step):
                    loss = self._step(batch.x, batch.labels, *self._mask_inputs(batch))
                loop.step_done(loss, sync_seconds=self._waited())
