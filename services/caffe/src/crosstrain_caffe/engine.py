"""The engine "caffe": a generated network trained by Caffe's solver.

A step is the solver's own ``Step``: forward and backward pass, clipping, weight decay and update. :mod:`.model`
says how layers are expressed, :mod:`.optimizer` how the rules are. Canonical batch norm trains with Caffe's
layer; predictions use a second network, which shares the parameters and has the platform's statistics.

Native semantics are Caffe's own: output sizes of pooling rounded up (a model on which that gives another size
is refused), averages over padding included, its dropout, its batch norm statistics (unbiased variance, the old
weighted 0.999, divided by the sum of weights), and see :mod:`.optimizer`.

With several ranks each computes the gradients of its share, weighted by the share's part in the whole batch, and MPI,
or between GPUs NCCL (:mod:`.nccl`), adds them in the blobs before the solver clips, decays and updates.

The code for device "cuda" has not been run on a GPU.
"""

import os
from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Tuple

import caffe
import numpy as np
from caffe import _crosstrain

from crosstrain_service.capabilities import declare
from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import BatchNorm, Dropout, Model
from crosstrain_service.parallel import sums
from crosstrain_service.training import Execution, Training

from . import device as devices
from . import nccl, snapshots
from .features import BY_MPI, BY_NCCL, EMULATED, EXACT, ON_GPU, PARALLEL, UNSUPPORTED
from .model import LABELS, LOSS, PREDICT, STATISTICS, TRAIN, Network, X, network, place
from .optimizer import UpdateRule, solver_message

#: Caffe's loss takes no probability below the smallest normal number, -log of which this is just below.
_SATURATED = 87.0


class CaffeEngine(Engine):
    """One network and its solver in Caffe."""

    name = "caffe"

    @classmethod
    def info(cls) -> EngineInfo:
        unsupported = dict(UNSUPPORTED)
        obstacle = devices.cuda_obstacle()
        if obstacle:
            unsupported.update((name, obstacle) for name in ON_GPU)
        without = {BY_NCCL: nccl.obstacle() or obstacle, BY_MPI: sums.obstacle()}
        unsupported.update((name, reason) for name, reason in without.items() if reason)
        if all(without.values()):
            unsupported.update((name, without[BY_MPI]) for name in PARALLEL)
        exact = [name for name in EXACT if name not in unsupported]
        return EngineInfo(cls.name, caffe.__version__, declare(exact, EMULATED, unsupported), devices.libraries())

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        devices.configure(execution)
        several = execution.ranks.size > 1
        self._sums: Any = sums.Sums(execution.ranks) if several and execution.parallel.backend == "mpi" else None
        self._model = model
        self._seed = training.seed
        self._execution = execution
        self._native = execution.native
        self._folder = devices.work_folder()
        self._description = network(model, training.batch_size, TRAIN, self._native, training.weight_decay)
        settings = solver_message(training, self._native)
        settings.train_net = self._write("train.prototxt", self._description.text)
        settings.snapshot_prefix = self._path("snapshot")
        self._solver = caffe.get_solver(self._write("solver.prototxt", str(settings)))
        self._net = self._solver.net
        self._fill(self._net, self._description, training.batch_size)
        self._parameters = OrderedDict(
            (name, (self._blob(name), shape)) for name, shape in model.parameter_shapes().items())
        self._rule = UpdateRule(self._solver, self._parameters, training, self._native)
        if self._sums is not None:
            # The solver calls it between backward pass and update.
            self._solver.add_callback(lambda: None, self._add_gradients)
        elif several:
            self._sums = nccl.NcclSums(self._solver, execution.ranks)
        self._draws = self._native and bool(model.layers_of(Dropout))
        self._drawing = False
        self._others: Dict[str, Tuple[Any, Network]] = {}
        self._statistics_set = False

    def _path(self, name: str) -> str:
        return os.path.join(self._folder.name, name)

    def _write(self, name: str, text: str) -> str:
        path = self._path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def _blob(self, parameter: str) -> Any:
        layer, number = place(parameter)
        return self._net.params[layer][number]

    def train(self, loop: Loop) -> None:
        calls_python = self._rule.calls_python or self._sums is not None
        step = self._solver.step if calls_python else self._step_without_lock
        loss = self._net.blobs[LOSS]
        for epoch in loop.epochs():
            for batch in epoch.batches():
                self._draw_apart(batch.step)
                self._feed(batch)
                self._rule.set_rate(batch.learning_rate)
                step(1)
                value = self._loss(float(loss.data), batch)
                waited = self._sums.take_seconds() if self._sums is not None else 0.0
                loop.step_done(value, sync_seconds=waited)

    def _add_gradients(self) -> None:
        """Adds the gradients of all ranks, each already a part of the whole batch's, in Caffe's own memory."""
        assert self._sums is not None
        self._sums.add_all(blob.diff for blob, _ in self._parameters.values())

    def _draw_apart(self, first_step: int) -> None:
        """Seeds this rank's generator, that of native dropout, before the first step or its recording."""
        if self._sums is None or not self._draws or self._drawing:
            return
        self._drawing = True
        rank = self._execution.ranks.rank
        seed = np.random.SeedSequence([self._seed, rank, first_step]).generate_state(1)[0]
        caffe.set_random_seed(int(seed) >> 1)

    def _step_without_lock(self, count: int) -> None:
        _crosstrain.step(self._solver, count)

    def _feed(self, batch: Batch) -> None:
        count = len(batch.x)
        blobs = self._net.blobs
        if blobs[X].shape[0] != count:
            self._fill(self._net, self._description, count)
        _set(blobs[X], batch.x)
        _set(blobs[LABELS], batch.labels)
        if self._sums is not None:
            # The weight of this rank's mean loss in that of the whole batch: the backward pass starts from it.
            blobs[LOSS].diff[...] = batch.part
        for name, blob in self._description.masks.items():
            if name not in batch.masks:
                raise ValueError("dropout layer %r got no mask" % name)
            _set(blobs[blob], batch.masks[name])

    @staticmethod
    def _fill(net: Any, description: Network, count: int) -> None:
        """Makes the inputs fit ``count`` samples (the layers follow in the next pass) and sets the constants."""
        blobs = net.blobs
        for name in (X, LABELS, *description.masks.values(), *description.constants):
            if name in blobs:
                blobs[name].reshape(count, *list(blobs[name].shape)[1:])
        for name, value in description.constants.items():
            blobs[name].data[...] = value

    def _loss(self, loss: float, batch: Batch) -> float:
        if self._native or loss * len(batch.x) < _SATURATED:
            return loss
        # Some probability may have been cut off, which makes the loss too small; its gradient is right.
        logits = self._net.blobs[self._description.logits].data.astype(np.float64)
        top = logits.max(axis=1)
        each = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(len(top)), batch.labels]
        return float(each.mean())

    def predict(self, x: np.ndarray) -> np.ndarray:
        net, description = self._other(PREDICT)
        return self._forward(net, description, x)

    def _forward(self, net: Any, description: Network, x: np.ndarray) -> np.ndarray:
        if net.blobs[X].shape[0] != len(x):
            self._fill(net, description, len(x))
        _set(net.blobs[X], x)
        net._forward(0, len(net.layers) - 1)
        return np.array(net.blobs[description.logits].data)

    def _other(self, purpose: str) -> Tuple[Any, Network]:
        """The network for predictions or batch statistics; it shares the training network's parameters."""
        if purpose not in self._others:
            description = network(self._model, 1, purpose, self._native)
            path = self._write("%s.prototxt" % purpose, description.text)
            net = caffe.Net(path, caffe.TEST)
            net.share_with(self._net)
            self._fill(net, description, 1)
            self._others[purpose] = (net, description)
        return self._others[purpose]

    def intermediates(self, batch: Batch) -> Intermediates:
        net, description = self._net, self._description
        kept = [(blob, np.array(blob.data)) for blob in self._norm_blobs(net, description)]
        self._draw_apart(batch.step)
        generator = _crosstrain.random_state()
        try:
            self._feed(batch)
            net.clear_param_diffs()
            net._forward(0, len(net.layers) - 1)
            net._backward(len(net.layers) - 1, 0)
        finally:
            # The training step that follows is to draw the same dropout.
            _crosstrain.set_random_state(generator)
            for blob, value in kept:
                blob.data[...] = value
        shapes = {name: (len(batch.x),) + shape for name, shape in self._model.output_shapes().items()}
        blobs = {name: net.blobs[blob] for name, blob in description.blobs.items()}
        return Intermediates(
            loss=self._loss(float(net.blobs[LOSS].data), batch),
            outputs=OrderedDict((name, np.array(blob.data).reshape(shapes[name])) for name, blob in blobs.items()),
            output_gradients=OrderedDict(
                (name, np.array(blob.diff).reshape(shapes[name])) for name, blob in blobs.items()),
            gradients=OrderedDict(
                (name, np.array(blob.diff).reshape(shape)) for name, (blob, shape) in self._parameters.items()),
        )

    def parameters(self) -> Arrays:
        return OrderedDict(
            (name, np.array(blob.data).reshape(shape)) for name, (blob, shape) in self._parameters.items())

    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, (blob, _) in self._parameters.items():
            _set(blob, parameters[name])

    def optimizer_state(self) -> Arrays:
        return self._rule.canonical_state()

    def state(self) -> Arrays:
        found = snapshots.save(self._solver, self._folder.name)
        if self._draws:
            found["random"] = np.frombuffer(_crosstrain.random_state().encode("ascii"), np.uint8)
        if self._statistics_set:
            found.update(("statistics/" + name, value) for name, value in self.statistics().items())
        return found

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        snapshots.restore(self._solver, self._folder.name, state)
        if "random" in state:
            _crosstrain.set_random_state(bytes(np.asarray(state["random"], np.uint8)).decode("ascii"))
        prefix = "statistics/"
        found = {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}
        if found:
            self.load_statistics(found)

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        net, description = self._other(STATISTICS)
        for blob in self._norm_blobs(net, description):
            blob.data[...] = 0
        self._forward(net, description, x)
        found = {}
        sizes = self._model.input_shapes()
        for name, layer in description.norms.items():
            count = len(x) * int(np.prod(sizes[name][1:]))
            mean, variance = (np.array(net.params[layer][number].data) for number in (0, 1))
            # After one pass from zero Caffe's sums are the batch's mean and its unbiased variance.
            found[name] = (mean, variance * np.float32((count - 1) / count) if count > 1 else variance)
        return found

    def _norm_blobs(self, net: Any, description: Network) -> List[Any]:
        return [blob for layer in description.norms.values() for blob in net.params[layer]]

    def _norms(self) -> Dict[str, Any]:
        """Caffe's three blobs (sum of means, sum of variances, sum of weights) by batch norm layer."""
        if self._native:
            return {name: self._net.params[layer] for name, layer in self._description.norms.items()}
        net, description = self._other(PREDICT)
        return {name: net.params[layer] for name, layer in description.norms.items()}

    def statistics(self) -> Arrays:
        found: Arrays = OrderedDict()
        if not self._model.layers_of(BatchNorm) or not (self._native or self._statistics_set):
            return found
        for name, (mean, variance, weight) in self._norms().items():
            scale = np.float32(1) / weight.data[0] if weight.data[0] else np.float32(0)
            found[name + ".running_mean"] = mean.data * scale
            found[name + ".running_var"] = variance.data * scale
        return found

    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        for name, (mean, variance, weight) in self._norms().items():
            _set(mean, statistics[name + ".running_mean"])
            _set(variance, statistics[name + ".running_var"])
            weight.data[...] = 1
        self._statistics_set = True

    def reduced_bytes(self) -> Optional[int]:
        return self._sums.bytes if self._sums is not None else None

    def fingerprint(self) -> Dict[str, str]:
        return devices.facts(self._execution)

    def close(self) -> None:
        self._others.clear()
        self._folder.cleanup()


def _set(blob: Any, value: np.ndarray) -> None:
    data = blob.data
    data[...] = value if value.shape == data.shape else value.reshape(data.shape)
