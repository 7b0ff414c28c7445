"""The engine "torch": an ``nn.Sequential``, autograd and ``torch.optim``.

Canonical semantics need no translation of layouts; :mod:`.model` and :mod:`.optimizer` say what is composed
from several operations. Native semantics use PyTorch's own dropout (drawn from PyTorch's generator, seeded
with the training's seed), batch norm with running statistics (unbiased variance, the new value weighted 0.1
by default), optimizer defaults, ``weight_decay`` on all parameters and ``clip_grad_norm_``. Everything else
is the same in both: PyTorch's ReLU gradient at 0 is 0, its max pool sends the gradient to the first maximum,
and its loss is computed from logits.

The code for device "cuda" has not been run on a GPU.
"""

from collections import OrderedDict
from dataclasses import replace
from typing import Dict, Iterable, List, Mapping, Tuple

import numpy as np
import torch

from crosstrain_service.capabilities import FEATURES, declare
from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.parallel.shares import share_sizes
from crosstrain_service.training import Execution, Training

from . import device as devices
from . import partition
from .communication import connect
from .horovod_backend import obstacle as horovod_obstacle
from .model import Network
from .optimizer import UpdateRule
from .passes import Passes
from .precision import Precision
from .sharding import Parts
from .steps import DataParallelSteps, Steps
from .synchronised_norm import Share

_EMULATED = {
    "layer.convolution.asymmetric_padding": "explicit zero padding before the convolution",
    "layer.pool.asymmetric_padding": "explicit padding before; averages rescaled by a constant map",
    "layer.dropout": "the mask is multiplied in; native semantics draw their own",
    "layer.batch_norm": "PyTorch's operation without running statistics; native semantics keep them",
    "layer.local_response_norm.within_channel": "average pooling of the squares",
    "optimizer.sgd.momentum": "the momentum buffer is rescaled when the learning rate changes",
    "optimizer.sgd.nesterov": "the momentum buffer is rescaled when the learning rate changes",
    "decay.decoupled": "AdamW for adam; for other rules the weights are multiplied before the step",
    "parallel.tensor": "explicit parts of the weights: DTensor has no rule for convolutions divided by output channels",
    "parallel.batch_norm": "sums over all ranks by differentiable all-reduces; native semantics: nn.SyncBatchNorm, "
                           "on GPUs only",
    "clip.global_norm": "PyTorch's norm, the factor c / max(norm, c); native semantics use clip_grad_norm_",
}
_ELSEWHERE = "belongs to another framework"
_UNSUPPORTED = {
    "compiler.xla": _ELSEWHERE,
    "compiler.theano:fast_run": _ELSEWHERE,
    "compiler.theano:fast_compile": _ELSEWHERE,
    "parallel.mpi": "this build of PyTorch has no MPI",
}
#: A label that ``cross_entropy`` leaves out.
IGNORED = -100
_ON_GPU = ("device.cuda", "execution.gpu_memory_growth", "execution.tf32")


class TorchEngine(Engine):
    """One network in PyTorch."""

    name = "torch"

    @classmethod
    def info(cls) -> EngineInfo:
        unsupported = dict(_UNSUPPORTED)
        cuda = devices.cuda_obstacle()
        if cuda:
            unsupported.update((name, cuda) for name in _ON_GPU)
        horovod = horovod_obstacle("cpu" if cuda else "cuda")
        if horovod:
            unsupported["parallel.horovod"] = horovod
        compiler = devices.compiler_obstacle()
        if compiler:
            unsupported["compiler.torch.compile"] = compiler
        exact = [name for name in FEATURES if name not in _EMULATED and name not in unsupported]
        features = declare(exact, _EMULATED, unsupported)
        return EngineInfo(cls.name, str(torch.__version__), features, devices.libraries())

    def __init__(self, model: Model, training: Training, execution: Execution) -> None:
        self._execution = execution
        self._seed = training.seed
        self._device = devices.configure(execution)
        self._precision = Precision(execution.precision, self._device)
        self._dtype = self._precision.dtype
        self._world = connect(execution, self._device)
        shares = self._world.data.size
        self._share = Share(self._world.data) if shares > 1 and not execution.native else None
        synchronised = shares > 1 and execution.native and not execution.parallel.local_batch_norm
        self._empties = synchronised and bool(model.layers_of(BatchNorm))
        stages = partition.stages(model, self._world.pipeline.size)
        shapes = [model.input_shape] + [model.output_shapes()[model.layers[stage[-1]].name] for stage in stages]
        self._network = Network(
            model,
            execution.native,
            sums_channels=self._device.type == "cuda" and execution.deterministic,
            share=self._share,
            synchronised=self._world.data.handle if synchronised else None,
            layers=stages[self._world.pipeline.index],
            group=self._world.tensor,
            device=self._device,
            dtype=self._dtype,
        )
        self._parts = Parts(self._world, self._network.shards)
        trained = self._network.trained
        self._rule = UpdateRule(trained, training, execution.native, self._parts.norm(list(trained)))
        self._draws = execution.native
        if self._world.pipeline.size > 1:
            from .pipeline import PipelineSteps

            own = self._world.pipeline.index
            self._steps: Steps = PipelineSteps(self._network, self._precision, execution, self._world,
                                               (shapes[own], shapes[own + 1]), self._device)
        elif shares > 1 and execution.parallel.backend == "horovod":
            from .horovod_backend import HorovodSteps

            self._steps = HorovodSteps(self._network, self._precision, execution, self._world)
        elif shares > 1:
            parallel = DataParallelSteps(self._network, self._precision, execution, self._world)
            parallel.settle(torch.zeros((1,) + model.input_shape, device=self._device, dtype=self._dtype))
            self._steps = parallel
        else:
            self._steps = Steps(self._network, self._precision, execution.accumulation_steps)
        self._passes = Passes(self._network, self._world, self._precision, shapes[1:], self._steps.averaged)
        if execution.compiler == "torch.compile":
            # One graph per batch size (full and last), and an error instead of a part left uncompiled.
            self._steps.loss = torch.compile(self._steps.forward, fullgraph=True, dynamic=False)
        # Only native dropout draws from it.
        torch.manual_seed(training.seed & 0xFFFFFFFFFFFFFFFF)
        self._drawn_from = -1

    def _seed_share(self, step: int) -> None:
        """Lets every share and stage draw dropout of its own, from the seed, its numbers and the first step."""
        if not self._draws or self._world.size == 1 or self._drawn_from >= 0:
            return
        self._drawn_from = step
        place = [self._seed, self._world.data.index, self._world.pipeline.index, step]
        words = np.random.SeedSequence(place).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))

    def _enter(self, batch: Batch) -> None:
        """Prepares the network for a batch: what stands in for no rows must leave statistics alone."""
        counted = batch.samples > 0
        if self._share is not None:
            self._share.counted = counted
        self._network.train(counted or self._empties or not self._draws)

    def _masks(self, batch: Batch) -> Dict[str, torch.Tensor]:
        if self._draws:
            return {}
        return {name: self._tensor(mask) for name, mask in batch.masks.items()}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return devices.to_tensor(array, self._device, self._dtype)

    def train(self, loop: Loop) -> None:
        several, traffic = self._world.size > 1, self._world.traffic
        self._seed_share(loop.step)
        for epoch in loop.epochs():
            # The evaluation between two epochs leaves the other mode.
            self._network.train()
            for batch in epoch.batches():
                x, labels, copy_seconds = devices.timed_copy(batch.x, batch.labels, self._device, self._dtype)
                if several:
                    self._enter(batch)
                    if self._empties:
                        # PyTorch's module counts every row, and takes a batch of none.
                        x, labels = x[:batch.samples], labels[:batch.samples]
                loss = self._steps.gradients(batch, x, labels, self._masks(batch))
                self._precision.update(self._rule, batch.learning_rate, batch.step)
                loop.step_done(loss, copy_seconds=copy_seconds, sync_seconds=traffic.take_seconds())

    def predict(self, x: np.ndarray) -> np.ndarray:
        self._network.eval()
        with torch.inference_mode(), self._precision.autocast(), self._world.traffic.paused():
            logits = self._passes.through(self._tensor(x), self._network)
            return devices.to_array(logits.to(self._dtype))

    def intermediates(self, batch: Batch) -> Intermediates:
        self._seed_share(batch.step)
        self._enter(batch)
        kept = [(buffer, buffer.clone()) for buffer in self._network.buffers()]
        gpus = [self._device] if self._device.type == "cuda" else []
        portions = self._portions(batch)
        try:
            # The training step that follows is to draw the same dropout.
            with torch.random.fork_rng(devices=gpus, enabled=self._draws), self._world.traffic.paused():
                seen = [
                    self._passes.differentiate(self._tensor(part.x), devices.to_tensor(part.labels, self._device),
                                               self._masks(part), part.part)
                    for part in portions
                ]
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
        names = self._network.names
        count, total = len(names), len(batch.labels)
        outputs = [torch.cat(found)[:total] for found in zip(*(outputs for _, outputs, _ in seen))]
        gradients = [torch.cat(found)[:total] for found in zip(*(found[:count] for _, _, found in seen))]
        gradients += [sum(found[1:], found[0]) for found in zip(*(found[count:] for _, _, found in seen))]
        arrays = [devices.to_array(gradient.to(self._dtype)) for gradient in gradients]
        rows = [int((part.labels != IGNORED).sum()) for part in portions]
        return Intermediates(
            loss=sum(loss * size for (loss, _, _), size in zip(seen, rows)) / sum(rows),
            outputs=self._of_stages(zip(names, [devices.to_array(output.to(self._dtype)) for output in outputs])),
            output_gradients=self._of_stages(zip(names, arrays)),
            gradients=self._parts.whole(OrderedDict(zip(self._network.trained, arrays[count:]))),
        )

    def _portions(self, batch: Batch) -> List[Batch]:
        """The parts in which the step computes a share one after the other: other sizes would round otherwise.

        Micro-batches of a pipeline are all of one size: the last is filled with rows whose label counts nothing.
        """
        rows, parallel = len(batch.labels), self._execution.parallel
        if parallel.pipeline > 1:
            size = -(-rows // (parallel.micro_batches or parallel.pipeline))
            sizes = [min(size, rows - start) for start in range(0, rows, size)]
        else:
            sizes = share_sizes(rows, min(self._execution.accumulation_steps, rows))
        if len(sizes) == 1:
            return [batch]
        found, start = [], 0
        for count in sizes:
            part, missing = slice(start, start + count), sizes[0] - count if parallel.pipeline > 1 else 0
            masks = {name: _filled(mask[part], missing, 0) for name, mask in batch.masks.items()}
            found.append(replace(batch, x=_filled(batch.x[part], missing, 0),
                                 labels=_filled(batch.labels[part], missing, IGNORED), masks=masks,
                                 samples=count if batch.samples else 0))
            start += count
        return found

    def _of_stages(self, pairs: Iterable[Tuple[str, np.ndarray]]) -> Arrays:
        """The arrays of all pipeline stages in order."""
        found: Arrays = OrderedDict()
        for stage in self._world.pipeline.gather_arrays(OrderedDict(pairs)):
            found.update(stage)
        return found

    def parameters(self) -> Arrays:
        own = OrderedDict((name, devices.to_array(value)) for name, value in self._network.trained.items())
        return self._parts.whole(own)

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, value in self._network.trained.items():
            value.copy_(self._tensor(self._parts.cut(name, parameters[name])))

    def optimizer_state(self) -> Arrays:
        return self._parts.whole(self._rule.canonical_state(), _parameter_of_state)

    def state(self) -> Arrays:
        tensors = self._network.state_dict()
        found = {"network/" + key: devices.to_array(value) for key, value in tensors.items()}
        found.update(("optimizer/" + key, value) for key, value in self._rule.state().items())
        found = self._parts.whole(found, self._parameter_of)
        found.update(("precision/" + key, value) for key, value in self._precision.state().items())
        if self._draws and self._world.size == 1:
            found["random/cpu"] = devices.to_array(torch.get_rng_state())
            if self._device.type == "cuda":
                found["random/cuda"] = devices.to_array(torch.cuda.get_rng_state(self._device))
        return found

    def _parameter_of(self, key: str) -> str:
        """The parameter that an entry of the state belongs to, or another text."""
        part, rest = key.split("/", 1)
        if part == "network":
            return self._network.keys.get(rest, rest)
        return rest[len("state/"):].rpartition("/")[0]

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        parts: Dict[str, Arrays] = {"network": {}, "optimizer": {}, "precision": {}, "random": {}}
        for key, value in state.items():
            part, rest = key.split("/", 1)
            parts[part][rest] = self._parts.cut(key, value, self._parameter_of)
        cpu = torch.device("cpu")
        own = self._network.state_dict()
        tensors = {key: devices.to_tensor(value, cpu) for key, value in parts["network"].items() if key in own}
        self._network.load_state_dict(tensors)
        self._rule.load_state(parts["optimizer"])
        self._precision.load_state(parts["precision"])
        self._drawn_from = -1
        if self._world.size > 1:
            # Shares draw anew, each its own.
            return
        for kind, value in parts["random"].items():
            tensor = devices.to_tensor(value, cpu)
            if kind == "cpu":
                torch.set_rng_state(tensor)
            else:
                torch.cuda.set_rng_state(tensor, self._device)

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        self._network.eval()
        seen: Dict[str, Tuple[torch.Tensor, torch.Tensor]] = {}

        def run(inputs: torch.Tensor) -> torch.Tensor:
            found, outputs = self._network.batch_statistics(inputs)
            seen.update(found)
            return outputs

        with torch.inference_mode(), self._precision.autocast(), self._world.traffic.paused():
            self._passes.through(self._tensor(x), run)
        own: Arrays = OrderedDict()
        for name, pair in seen.items():
            own.update(("%s %s" % (part, name), devices.to_array(value.to(self._dtype)))
                       for part, value in zip(("mean", "var"), pair))
        whole = self._of_stages(own.items())
        names = [key.split(" ", 1)[1] for key in whole if key.startswith("mean ")]
        return OrderedDict((name, (whole["mean " + name], whole["var " + name])) for name in names)

    def statistics(self) -> Arrays:
        found: Arrays = OrderedDict()
        for name, norm in self._network.norms():
            found[name + ".running_mean"] = devices.to_array(norm.running_mean)
            found[name + ".running_var"] = devices.to_array(norm.running_var)
        return self._of_stages(found.items())

    @torch.no_grad()
    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        for name, norm in self._network.norms():
            norm.running_mean.copy_(self._tensor(statistics[name + ".running_mean"]))
            norm.running_var.copy_(self._tensor(statistics[name + ".running_var"]))

    def fingerprint(self) -> Dict[str, str]:
        return devices.facts(self._execution, self._device, self._dtype)

    def skipped_updates(self) -> int:
        return self._precision.skipped

    def reduced_bytes(self) -> "int | None":
        return self._world.traffic.bytes if self._world.size > 1 else None

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def allocator_peak_bytes(self) -> "int | None":
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def close(self) -> None:
        self._world.close()
        if self._execution.compiler:
            torch.compiler.reset()


def _filled(rows: np.ndarray, missing: int, value: int) -> np.ndarray:
    """``rows`` followed by ``missing`` more that hold one value."""
    if not missing:
        return rows
    return np.concatenate([rows, np.full((missing,) + rows.shape[1:], value, rows.dtype)])


def _parameter_of_state(name: str) -> str:
    """The parameter of a canonical name in the optimizer's state."""
    return name.rpartition(".")[0]
