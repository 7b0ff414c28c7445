"""The update rule by Caffe's solvers.

Caffe forms 1 - beta from the float32 beta, which for 0.999 is off by 1.3e-5. In canonical semantics the
solver's averages are therefore read in units of c = (1 - beta) / (1 - float32(beta)), so that an average with
the exact weight is c times Caffe's, and learning rate and delta are given in those units:

- RMSProp: lr g / (sqrt(s) + eps) with s = c s' is (lr / sqrt(c)) g / (sqrt(s') + eps / sqrt(c)).
- AdaDelta: both averages carry the same c, which cancels but for delta = eps / c.
- Adam: with m = c1 m', v = c2 v', r = sqrt((1 - beta2^t) / c2): the step is
  (lr c1 r / (1 - beta1^t)) m' / (sqrt(v') + eps r), while Caffe multiplies its rate by
  sqrt(1 - beta2^t) / (1 - beta1^t) itself (of the float32 betas) and adds delta to sqrt(v'), as "epsilon hat".

SGD, Nesterov and AdaGrad are the canonical rules. The learning rate is ``base_lr`` with the policy "fixed", set
before every step. Clipping by the global norm, then weight decay by ``decay_mult``, are the solver's own; decoupled
decay, which Caffe lacks, multiplies the weights between backward pass and update.

Native semantics: constants that are not given stay Caffe's defaults (momentum 0, which is also Adam's beta1 and
AdaDelta's rho; momentum2 0.999; rms_decay 0.99; delta 1e-8, Adam's "epsilon hat"), weight decay applies to biases,
gammas and betas too, and nothing is rescaled.
"""

import math
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np
from caffe import _crosstrain
from caffe.proto import caffe_pb2

from crosstrain_service.engine import Arrays
from crosstrain_service.errors import invalid_field
from crosstrain_service.training import Rule, Training

#: Caffe's solver of every rule, its field for each constant, and the state in order of Caffe's history.
_SOLVERS: Dict[str, Tuple[str, Dict[str, str], Tuple[str, ...]]] = {
    "sgd": ("SGD", {"momentum": "momentum"}, ("velocity",)),
    "rmsprop": ("RMSProp", {"rho": "rms_decay", "epsilon": "delta"}, ("mean_square",)),
    "adagrad": ("AdaGrad", {"epsilon": "delta"}, ("accumulator",)),
    "adam": ("Adam", {"beta1": "momentum", "beta2": "momentum2", "epsilon": "delta"}, ("m", "v")),
    "adadelta": ("AdaDelta", {"rho": "momentum", "epsilon": "delta"}, ("mean_square", "mean_update")),
}


def solver_message(training: Training, native: bool) -> Any:
    """The solver's settings but for the network and files.

    Raises ``INVALID_FIELD`` for a constant that is missing in canonical semantics.
    """
    rule, decay = training.rule, training.weight_decay
    kind, fields, _ = _SOLVERS[rule.name]
    message = caffe_pb2.SolverParameter(lr_policy="fixed", base_lr=1.0, display=0, snapshot_after_train=False)
    if rule.name == "sgd" and rule.nesterov and rule.momentum:
        kind = "Nesterov"
    message.type = kind
    for constant, field in fields.items():
        value = getattr(rule, constant)
        if value is not None:
            setattr(message, field, value)
        elif not native and constant != "momentum":
            raise invalid_field("training.optimizer.%s" % constant, "canonical semantics need a value")
    if decay is not None and decay.rate and not decay.decoupled:
        message.weight_decay = decay.rate
    if training.clip_norm:
        message.clip_gradients = training.clip_norm
    message.random_seed = training.seed
    # NCCL is to add gradients before an update only: a backward pass by itself, which records, adds none.
    message.layer_wise_reduce = False
    return message


class UpdateRule:
    """Learning rate, epsilon, decoupled decay and state of a solver."""

    def __init__(self, solver: Any, parameters: Mapping[str, Any], training: Training, native: bool) -> None:
        """``parameters``: Caffe's blob and canonical shape of every trained parameter by canonical name."""
        self._solver = solver
        self._parameters = parameters
        self._native = native
        rule, decay = training.rule, training.weight_decay
        self._settings = solver.param
        history = list(_crosstrain.history(solver))
        # Caffe keeps one blob for every parameter, the statistics of batch norm included, then the second kind.
        learnable = [blob for layer in solver.net.layers for blob in layer.blobs]
        self._names: Tuple[str, ...] = _SOLVERS[rule.name][2]
        if rule.name == "sgd" and not rule.momentum:
            self._names = ()
        self._state: Dict[str, Any] = OrderedDict()
        places = {_address(blob): number for number, blob in enumerate(learnable)}
        for name, (blob, shape) in parameters.items():
            for kind, own in enumerate(self._names):
                found = history[kind * len(learnable) + places[_address(blob)]]
                self._state["%s.%s" % (name, own)] = (found, shape)
        self._units = {} if native else _units(rule)
        if rule.initial_accumulator:
            for blob, _ in self._state.values():
                blob.data[...] = rule.initial_accumulator
        self._rescale: Callable[[float], float] = self._prepare(rule)
        self._multiplied: List[Any] = []
        self._rate, self._learning_rate = 0.0, 0.0
        if decay is not None and decay.rate and decay.decoupled:
            self._rate = decay.rate
            self._multiplied = [blob for name, (blob, _) in parameters.items() if native or decay.applies_to(name)]
            solver.add_callback(lambda: None, self._multiply)

    @property
    def calls_python(self) -> bool:
        """Whether the solver calls back into Python during a step."""
        return bool(self._multiplied)

    def _prepare(self, rule: Rule) -> Callable[[float], float]:
        if self._native:
            return lambda rate: rate
        if rule.name == "adam":
            return self._adam(rule)
        if rule.name == "rmsprop":
            root = math.sqrt(self._units["mean_square"])
            _crosstrain.set_delta(self._solver, rule.epsilon / root)
            return lambda rate: rate / root
        if rule.name == "adadelta":
            _crosstrain.set_delta(self._solver, rule.epsilon / self._units["mean_square"])
        return lambda rate: rate

    def _adam(self, rule: Rule) -> Callable[[float], float]:
        first, second = self._units["m"], self._units["v"]
        own1, own2 = float(np.float32(rule.beta1)), float(np.float32(rule.beta2))

        def rescale(rate: float) -> float:
            step = self._solver.iter + 1
            root = math.sqrt((1.0 - rule.beta2 ** step) / second)
            _crosstrain.set_delta(self._solver, rule.epsilon * root)
            own = math.sqrt(1.0 - own2 ** step) / (1.0 - own1 ** step)
            return rate * first * root / (1.0 - rule.beta1 ** step) / own

        return rescale

    def set_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next step."""
        self._learning_rate = learning_rate
        self._settings.base_lr = self._rescale(learning_rate)

    def _multiply(self) -> None:
        factor = np.float32(1.0 - self._learning_rate * self._rate)
        for blob in self._multiplied:
            blob.data[...] *= factor

    def canonical_state(self) -> Arrays:
        """Copies of the state under the names of :class:`crosstrain_service.training.Rule`."""
        found: Arrays = OrderedDict()
        for name, (blob, shape) in self._state.items():
            value = blob.data.reshape(shape)
            unit = self._units.get(name.rsplit(".", 1)[1], 1.0)
            found[name] = np.array(value) if unit == 1.0 else (value * np.float64(unit)).astype(np.float32)
        return found


def _units(rule: Rule) -> Dict[str, float]:
    """Exact averages over Caffe's, by name of the state."""

    def unit(beta: float) -> float:
        own = float(np.float32(1) - np.float32(beta))
        return (1.0 - beta) / own if own else 1.0

    if rule.name == "adam":
        return {"m": unit(rule.beta1), "v": unit(rule.beta2)}
    if rule.name in ("rmsprop", "adadelta"):
        return dict.fromkeys(("mean_square", "mean_update"), unit(rule.rho))
    return {}


def _address(blob: Any) -> int:
    return int(blob.data.__array_interface__["data"][0])
