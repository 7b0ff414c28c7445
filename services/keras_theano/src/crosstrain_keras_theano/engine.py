"""What both engines share: everything but building the network and running the training loop.

Functions other than the training step are compiled when first used, from the same variables and with Theano's
own differentiation.
"""

import dataclasses
import logging
from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from crosstrain_service.capabilities import FEATURES, declare
from crosstrain_service.engine import Arrays, Batch, Engine, Intermediates
from crosstrain_service.errors import CrosstrainError
from crosstrain_service.model import Dropout, Model
from crosstrain_service.parallel import sums
from crosstrain_service.training import Execution, Ranks, Training

from . import compiledir, device
from .device import explained, theano
from .model import Network, Stored
from .ranks import Team

_LOG = logging.getLogger(__name__)

_ELSEWHERE = "belongs to another framework"
_DATA_ONLY = "this engine splits the batch only"
_UNSUPPORTED = {
    "compiler.xla": _ELSEWHERE,
    "compiler.torch.compile": _ELSEWHERE,
    "execution.inter_threads": "Theano executes one operation at a time",
    "execution.tf32": "Theano's interface to cuDNN has no switch for TF32",
    "execution.accumulation": "not offered by this engine",
    "parallel.tensor": _DATA_ONLY,
    "parallel.pipeline": _DATA_ONLY,
    "parallel.data_tensor": _DATA_ONLY,
    "parallel.data_pipeline": _DATA_ONLY,
    "parallel.tensor_pipeline": _DATA_ONLY,
    "parallel.native": "this framework has no communication of its own; the ranks use MPI",
    "parallel.horovod": "Horovod has no interface to Theano",
    "parallel.hosts": "the ranks are started on one host",
    "parallel.bucket_mib": "all gradients are added at once",
    "precision.mixed_float16": "Theano on a CPU has no such matrix products",
    "precision.mixed_bfloat16": "Theano has no such type",
}
_NEEDS_MPI = ("parallel.data", "parallel.mpi", "parallel.batch_norm", "parallel.local_batch_norm")
_EMULATED = {
    "layer.convolution1d": "a two-dimensional convolution of unit width",
    "layer.pool1d": "a two-dimensional pooling of unit width",
    "layer.pool.max": "Theano's gradient at ties replaced; native semantics keep it",
    "layer.pool.average.include_pad": "sum pooling over a constant divisor",
    "layer.pool.average.exclude_pad": "sum pooling over a constant divisor",
    "layer.pool.padding": "explicit padding before the pooling",
    "layer.pool.asymmetric_padding": "explicit padding before the pooling",
    "layer.pool.ceil": "explicit padding before the pooling",
    "layer.relu": "Theano's gradient at 0 replaced; native semantics keep it",
    "layer.dropout": "the mask is multiplied in; native semantics draw their own",
    "layer.local_response_norm.within_channel": "sum pooling of the squares",
    "decay.l2": "added to the gradient; native semantics use the framework's penalty",
    "decay.decoupled": "the weights are multiplied before the step",
    "parallel.batch_norm": "the moments are summed over all ranks; canonical semantics only",
    "clip.global_norm": "the factor c / max(norm, c); native semantics use the framework's function",
}


def features(emulated: Mapping[str, str]) -> Dict[str, Any]:
    """The feature table of an engine, given the notes in which it differs from the other."""
    unsupported = dict(_UNSUPPORTED)
    obstacle = device.cuda_obstacle()
    if obstacle:
        unsupported["device.cuda"] = unsupported["execution.gpu_memory_growth"] = obstacle
    obstacle = sums.obstacle()
    if obstacle:
        unsupported.update((name, obstacle) for name in _NEEDS_MPI)
    notes = {name: note for name, note in dict(_EMULATED, **emulated).items() if name not in unsupported}
    exact = [name for name in FEATURES if name not in notes and name not in unsupported]
    return declare(exact, notes, unsupported)


class TheanoEngine(Engine):
    """A network as Theano variables; subclasses build it and train.

    A subclass calls ``super().__init__``, then sets ``_network``, ``_optimizer_state`` (canonical names) and
    ``_optimizer_extras`` (further shared variables that a resumed training needs, by any name).
    """

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        device.check(execution)
        self._model = model
        self._training = training
        self._execution = execution
        self._dtype = device.use_precision(execution)
        #: The other ranks, if there are any.
        self._team = Team(execution.ranks, training.seed) if execution.ranks.size > 1 else None
        self._network = Network()
        self._optimizer_state: Dict[str, Stored] = OrderedDict()
        self._optimizer_extras: Dict[str, Any] = OrderedDict()
        self._functions: Dict[str, Any] = {}
        self._drawing = False

    def _activate(self) -> None:
        """Makes the process compute in this engine's type, should it hold several engines."""
        device.use_precision(self._execution)

    def _compiled(self, purpose: str, inputs: Sequence[Any], outputs: Sequence[Any], phase: int = 0) -> Any:
        """A function of the network that changes nothing, compiled at its first use."""
        if purpose not in self._functions:
            given = {}
            if self._network.phase is not None:
                given[self._network.phase] = np.uint8(phase)
            with explained("compiling the %s" % purpose), self._compiling(purpose, together=phase == 1):
                self._functions[purpose] = theano.function(
                    list(inputs),
                    list(outputs),
                    givens=given,
                    no_default_updates=True,
                    on_unused_input="ignore",
                    name=purpose.replace(" ", "_"),
                )
        return self._functions[purpose]

    @contextmanager
    def _compiling(self, purpose: str, together: bool = True) -> Iterator[None]:
        """Around a compilation; ``together``: all ranks come here at the same time."""
        if self._team is not None and together:
            execution = dataclasses.replace(self._execution, ranks=Ranks())
            training = dataclasses.replace(self._training, learning_rates=np.zeros(0), seed=0)
            model = dataclasses.replace(self._model, name="")
            with self._team.compiling(repr((self.name, purpose, model, training, execution))):
                yield
            return
        yield
        self._publish()

    def _publish(self) -> None:
        compiledir.publish(theano.config.compiledir)

    def _mask_inputs(self, batch: Batch) -> List[np.ndarray]:
        """The masks in the order of the network's inputs; native semantics have none."""
        found = []
        for name in self._network.masks:
            if name not in batch.masks:
                raise CrosstrainError(
                    "ENGINE_FAILED", "the batch of step %d has no mask for layer %r" % (batch.step, name)
                )
            found.append(np.asarray(batch.masks[name], dtype=self._dtype))
        return found

    def predict(self, x: np.ndarray) -> np.ndarray:
        self._activate()
        function = self._compiled("prediction", [self._network.x], [self._network.logits])
        with explained("predicting"):
            return np.asarray(function(np.asarray(x, dtype=self._dtype))[0])

    def intermediates(self, batch: Batch) -> Intermediates:
        self._activate()
        network = self._network
        outputs = [variable for variable, _ in network.outputs.values()]
        parameters = [stored.variable for stored in network.parameters.values()]
        inputs = [network.x, network.labels] + list(network.masks.values()) + network.weights
        if "recording" not in self._functions:
            # The loss is a mean over all samples, so nothing between it and the input is disconnected.
            if self._team is None:
                found = theano.grad(network.loss, outputs + parameters)
            else:
                objective = network.loss if network.objective is None else network.objective
                with self._team.branch():
                    found = theano.grad(objective * self._team.part, outputs + parameters)
            self._compiled("recording", inputs, [network.loss] + outputs + found, phase=1)
        self._draw_apart(batch.step)
        self._set_part(batch)
        given = self._mask_inputs(batch) + [np.ones(len(batch.labels), self._dtype) for _ in network.weights]
        with explained("recording step %d" % batch.step):
            values = self._functions["recording"](
                np.asarray(batch.x, dtype=self._dtype), self._labels(batch), *given
            )
        count = len(outputs)
        result = Intermediates(float(values[0]), OrderedDict(), OrderedDict(), OrderedDict())
        for position, (name, (_, layout)) in enumerate(network.outputs.items(), 1):
            result.outputs[name] = _canonical(layout, values[position])
            result.output_gradients[name] = _canonical(layout, values[position + count])
        for position, (name, stored) in enumerate(network.parameters.items(), 1 + 2 * count):
            result.gradients[name] = _canonical(stored.layout, values[position])
        return result

    def _set_part(self, batch: Batch) -> None:
        if self._team is not None:
            self._team.set_part(batch.part)

    def _draw_apart(self, first_step: int) -> None:
        """Has every rank draw its own native dropout; what was drawn before is not repeated."""
        if self._team is not None and not self._drawing:
            self._drawing = True
            self._team.draw_differently(self._streams(), first_step)

    def _waited(self) -> float:
        return self._team.sums.take_seconds() if self._team is not None else 0.0

    def _labels(self, batch: Batch) -> np.ndarray:
        """The labels in the form of the network's label input."""
        return batch.labels

    def parameters(self) -> Arrays:
        return OrderedDict((name, stored.value()) for name, stored in self._network.parameters.items())

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, stored in self._network.parameters.items():
            stored.set(parameters[name])

    def optimizer_state(self) -> Arrays:
        return OrderedDict((name, stored.value()) for name, stored in self._optimizer_state.items())

    def _all_variables(self) -> Dict[str, Any]:
        """Every shared variable that a resumed training needs, by a name of this engine's own."""
        found: Dict[str, Any] = OrderedDict()
        for part, stored in (
            ("parameter", self._network.parameters),
            ("statistics", self._network.statistics),
            ("optimizer", self._optimizer_state),
        ):
            found.update(("%s/%s" % (part, name), item.variable) for name, item in stored.items())
        found.update(("extra/" + name, variable) for name, variable in self._optimizer_extras.items())
        found.update(("random/%d" % index, variable) for index, variable in enumerate(self._streams()))
        return found

    def _streams(self) -> List[Any]:
        """States of the generators that native dropout draws from, which the training step updates."""
        inputs = theano.gof.graph.inputs([self._network.loss])
        return [variable for variable in inputs if getattr(variable, "default_update", None) is not None]

    def state(self) -> Arrays:
        return OrderedDict(
            (name, np.array(variable.get_value(borrow=True))) for name, variable in self._all_variables().items()
        )

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        variables = self._all_variables()
        if set(variables) != set(state):
            raise CrosstrainError(
                "ENGINE_FAILED",
                "the checkpoint does not belong to this network: %s differ"
                % ", ".join(sorted(set(variables) ^ set(state))[:5]),
            )
        for name, variable in variables.items():
            variable.set_value(np.array(state[name], dtype=variable.dtype))

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        if not self._network.moments:
            raise CrosstrainError(
                "UNSUPPORTED", "engine %s evaluates native batch norm by its own running averages" % self.name
            )
        self._activate()
        moments = self._network.moments
        flat = [variable for mean, variance, _ in moments.values() for variable in (mean, variance)]
        function = self._compiled("batch statistics", [self._network.x], flat)
        with explained("computing batch statistics"):
            values = function(np.asarray(x, dtype=self._dtype))
        pairs = zip(values[::2], values[1::2])
        return OrderedDict(
            (name, (_canonical(layout, mean), _canonical(layout, variance)))
            for (name, (_, _, layout)), (mean, variance) in zip(moments.items(), pairs)
        )

    def statistics(self) -> Arrays:
        return OrderedDict((name, stored.value()) for name, stored in self._network.statistics.items())

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        for name, stored in self._network.statistics.items():
            stored.set(statistics[name])

    def reduced_bytes(self) -> Optional[int]:
        return self._team.sums.bytes if self._team is not None else None

    def fingerprint(self) -> Dict[str, str]:
        return device.facts(self._execution)

    def allocator_peak_bytes(self) -> Optional[int]:
        return device.allocator_peak_bytes(self._execution)

    def close(self) -> None:
        self._functions.clear()
        self._publish()


def has_native_dropout(model: Model, execution: Execution) -> bool:
    """Whether the framework draws dropout masks itself."""
    return execution.native and any(layer.rate for layer in model.layers_of(Dropout))


def _canonical(layout: Any, value: Any) -> np.ndarray:
    return np.array(layout.to_canonical(np.asarray(value)), order="C")
