"""The engine ``reference``: float64 NumPy (float32 when asked), the same function by plain formulas."""

from typing import Dict, Mapping, Tuple

import numpy as np

from crosstrain_service import model as plain
from crosstrain_service.capabilities import declare
from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training

from . import layers
from .network import Network
from .optimizers import Optimizer

#: Version of the reference's arithmetic; it changes when results may change.
VERSION = "1"

_EXACT = (
    "layer.convolution1d", "layer.convolution2d", "layer.convolution.asymmetric_padding", "layer.pool1d",
    "layer.pool2d", "layer.pool.max", "layer.pool.average", "layer.pool.average.include_pad",
    "layer.pool.average.exclude_pad", "layer.pool.padding", "layer.pool.asymmetric_padding", "layer.pool.ceil",
    "layer.dense", "layer.relu", "layer.flatten", "layer.dropout", "layer.batch_norm",
    "layer.local_response_norm", "layer.local_response_norm.within_channel", "layer.pad", "optimizer.sgd",
    "optimizer.sgd.momentum", "optimizer.sgd.nesterov", "optimizer.rmsprop", "optimizer.adagrad", "optimizer.adam",
    "optimizer.adadelta", "decay.l2", "decay.decoupled", "clip.global_norm", "semantics.canonical", "precision.float32",
    "precision.float64", "device.cpu", "execution.deterministic", "execution.intra_threads", "probe",
)


class ReferenceEngine(Engine):
    """Trains a :class:`Network` with an :class:`Optimizer`; nothing is compiled or fused."""

    name = "reference"
    default_precision = "float64"

    @classmethod
    def info(cls) -> EngineInfo:
        features = declare(_EXACT, unsupported={
            "semantics.native": "the reference is the canonical function itself",
            "device.cuda": "NumPy runs on the CPU",
            "execution.nondeterministic": "there is nothing to switch off",
        })
        return EngineInfo(cls.name, VERSION, features, {"numpy": np.__version__})

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        self._dtype = np.float64 if execution.precision == "float64" else np.float32
        self._network = Network([_layer(layer) for layer in model.layers])
        self._last = model.layers[-1].name
        inputs = model.input_shapes()
        self._dropped = {layer.name: inputs[layer.name] for layer in model.layers_of(plain.Dropout)}
        rule, decay = training.rule, training.weight_decay
        constants = {
            "sgd": {"momentum": rule.momentum, "nesterov": bool(rule.nesterov and rule.momentum)},
            "rmsprop": {"rho": rule.rho, "eps": rule.epsilon},
            "adagrad": {"eps": rule.epsilon, "initial_accumulator": rule.initial_accumulator},
            "adam": {"beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.epsilon},
            "adadelta": {"rho": rule.rho, "eps": rule.epsilon},
        }[rule.name]
        self._optimizer = Optimizer(
            rule.name, weight_decay=decay.rate if decay else 0.0, decoupled=bool(decay and decay.decoupled),
            decayed=[name for name in model.parameter_shapes() if decay is not None and decay.applies_to(name)],
            clip_norm=training.clip_norm or None, **constants)
        self._parameters = {name: np.zeros(shape, self._dtype) for name, shape in model.parameter_shapes().items()}
        self._state = self._optimizer.init_state(self._parameters)
        self._updates = 0
        self._statistics = {}  # type: Dict[str, Tuple[np.ndarray, np.ndarray]]

    def train(self, loop: Loop) -> None:
        for epoch in loop.epochs():
            for batch in epoch.batches():
                loop.step_done(self._step(batch))

    def _step(self, batch: Batch) -> float:
        result = self._network.loss_and_gradients(batch.x, batch.labels, self._parameters, batch.masks)
        self._updates += 1
        self._parameters, self._state = self._optimizer.update(
            self._parameters, result.gradients, self._state, batch.learning_rate, self._updates)
        return float(result.loss)

    def predict(self, x: np.ndarray) -> np.ndarray:
        forward = self._network.forward(x, self._parameters, train=False, statistics=self._statistics)
        return forward.outputs[self._last]

    def intermediates(self, batch: Batch) -> Intermediates:
        result = self._network.loss_and_gradients(batch.x, batch.labels, self._parameters, batch.masks)
        return Intermediates(float(result.loss), result.forward.outputs, result.backward.outputs, result.gradients)

    def parameters(self) -> Arrays:
        return {name: value.copy() for name, value in self._parameters.items()}

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        self._parameters = {name: np.array(parameters[name], self._dtype) for name in self._parameters}

    def optimizer_state(self) -> Arrays:
        return {name: value.copy() for name, value in self._state.items()}

    def state(self) -> Arrays:
        state = {"parameter/" + name: value for name, value in self._parameters.items()}
        state.update(("state/" + name, value) for name, value in self._state.items())
        state.update(("statistic/" + name, value) for name, value in self.statistics().items())
        state["updates"] = np.array([self._updates], np.int64)
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._parameters = {name: np.array(state["parameter/" + name]) for name in self._parameters}
        self._state = {name: np.array(state["state/" + name]) for name in self._state}
        self._updates = int(state["updates"][0])
        self.load_statistics({
            name[len("statistic/"):]: value for name, value in state.items() if name.startswith("statistic/")})

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        # A mask of ones is dropout that is off.
        masks = {name: np.ones((len(x),) + shape, self._dtype) for name, shape in self._dropped.items()}
        return self._network.forward(x, self._parameters, masks, train=True).statistics

    def statistics(self) -> Arrays:
        result = {}
        for name, (mean, variance) in self._statistics.items():
            result[name + ".running_mean"] = mean.copy()
            result[name + ".running_var"] = variance.copy()
        return result

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        names = [name[:-len(".running_mean")] for name in statistics if name.endswith(".running_mean")]
        self._statistics = {
            name: (np.array(statistics[name + ".running_mean"], self._dtype),
                   np.array(statistics[name + ".running_var"], self._dtype)) for name in names}


def _layer(layer: plain.Layer) -> layers.Layer:
    """The library's layer for a layer of a model."""
    if isinstance(layer, plain.Convolution):
        return layers.Convolution(layer.name, layer.out_channels, layer.kernel, layer.stride, layer.pad_begin,
                                  layer.pad_end, layer.bias)
    if isinstance(layer, plain.Pool):
        return layers.Pool(layer.name, layer.kind, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end,
                           layer.round_mode, layer.count_include_pad)
    if isinstance(layer, plain.Dense):
        return layers.Dense(layer.name, layer.units, layer.bias)
    if isinstance(layer, plain.Relu):
        return layers.Relu(layer.name)
    if isinstance(layer, plain.Flatten):
        return layers.Flatten(layer.name)
    if isinstance(layer, plain.Dropout):
        return layers.Dropout(layer.name, layer.rate)
    if isinstance(layer, plain.BatchNorm):
        return layers.BatchNorm(layer.name, layer.epsilon)
    if isinstance(layer, plain.LocalResponseNorm):
        return layers.LRN(layer.name, layer.size, layer.alpha_sum, layer.beta, layer.k, layer.region)
    return layers.Pad(layer.name, layer.begin, layer.end)
