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
from typing import Dict, List, Mapping, Tuple

import numpy as np
import torch
from torch.nn import functional

from crosstrain_service.capabilities import FEATURES, declare
from crosstrain_service.engine import Arrays, Batch, Engine, EngineInfo, Intermediates, Loop
from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.training import Execution, Training

from . import device as devices
from .communication import connect
from .model import Network
from .optimizer import UpdateRule
from .precision import Precision
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
    "parallel.horovod": "Horovod is not built in this environment",
    "parallel.tensor": "not offered",
    "parallel.pipeline": "not offered",
    "parallel.data_tensor": "not offered",
    "parallel.data_pipeline": "not offered",
    "parallel.tensor_pipeline": "not offered",
}
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
        self._network = Network(
            model,
            execution.native,
            sums_channels=self._device.type == "cuda" and execution.deterministic,
            share=self._share,
            synchronised=self._world.data.handle if synchronised else None,
            device=self._device,
            dtype=self._dtype,
        )
        self._rule = UpdateRule(self._network.trained, training, execution.native)
        self._draws = execution.native
        if shares > 1:
            self._steps: Steps = DataParallelSteps(self._network, self._precision, execution, self._world)
            self._steps.settle(torch.zeros((1,) + model.input_shape, device=self._device, dtype=self._dtype))
        else:
            self._steps = Steps(self._network, self._precision, execution.accumulation_steps)
        if execution.compiler == "torch.compile":
            # One graph per batch size (full and last), and an error instead of a part left uncompiled.
            self._steps.loss = torch.compile(self._steps.forward, fullgraph=True, dynamic=False)
        # Only native dropout draws from it.
        torch.manual_seed(training.seed & 0xFFFFFFFFFFFFFFFF)
        self._drawn_from = -1

    def _seed_share(self, step: int) -> None:
        """Lets every share of the batch draw dropout of its own, from the seed, its number and the first step."""
        if not self._draws or self._world.data.size == 1 or self._drawn_from >= 0:
            return
        self._drawn_from = step
        words = np.random.SeedSequence([self._seed, self._world.data.index, step]).generate_state(1, np.uint64)
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
        with torch.inference_mode(), self._precision.autocast():
            return devices.to_array(self._network(self._tensor(x)).to(self._dtype))

    def intermediates(self, batch: Batch) -> Intermediates:
        self._seed_share(batch.step)
        self._enter(batch)
        traffic = self._world.traffic
        counted = traffic.bytes
        kept = [(buffer, buffer.clone()) for buffer in self._network.buffers()]
        outputs: List[torch.Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
            for layer in self._network
        ]
        gpus = [self._device] if self._device.type == "cuda" else []
        try:
            # The training step that follows is to draw the same dropout.
            with torch.random.fork_rng(devices=gpus, enabled=self._draws):
                x = self._tensor(batch.x).requires_grad_()
                labels = devices.to_tensor(batch.labels, self._device)
                with self._precision.autocast():
                    logits = self._network(x, self._masks(batch))
                loss = functional.cross_entropy(logits.to(self._dtype), labels)
                trained = self._network.trained
                # Scaled as in the step, or small gradients would vanish in float16.
                scale = self._precision.factor()
                found = torch.autograd.grad(loss * (batch.part * scale), outputs + list(trained.values()))
        finally:
            for hook in hooks:
                hook.remove()
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
            traffic.bytes = counted
            traffic.take_seconds()
        arrays = [devices.to_array(gradient.to(self._dtype) / scale) for gradient in found]
        names = self._network.names
        return Intermediates(
            loss=float(loss.detach()),
            outputs=OrderedDict(
                (name, devices.to_array(output.to(self._dtype))) for name, output in zip(names, outputs)),
            output_gradients=OrderedDict(zip(names, arrays)),
            gradients=OrderedDict(zip(trained, arrays[len(names):])),
        )

    def parameters(self) -> Arrays:
        return OrderedDict((name, devices.to_array(value)) for name, value in self._network.trained.items())

    @torch.no_grad()
    def load_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        for name, value in self._network.trained.items():
            value.copy_(self._tensor(parameters[name]))

    def optimizer_state(self) -> Arrays:
        return self._rule.canonical_state()

    def state(self) -> Arrays:
        tensors = self._network.state_dict()
        found = {"network/" + key: devices.to_array(value) for key, value in tensors.items()}
        found.update(("optimizer/" + key, value) for key, value in self._rule.state().items())
        found.update(("precision/" + key, value) for key, value in self._precision.state().items())
        if self._draws and self._world.data.size == 1:
            found["random/cpu"] = devices.to_array(torch.get_rng_state())
            if self._device.type == "cuda":
                found["random/cuda"] = devices.to_array(torch.cuda.get_rng_state(self._device))
        return found

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        parts: Dict[str, Arrays] = {"network": {}, "optimizer": {}, "precision": {}, "random": {}}
        for key, value in state.items():
            part, rest = key.split("/", 1)
            parts[part][rest] = value
        cpu = torch.device("cpu")
        tensors = {key: devices.to_tensor(value, cpu) for key, value in parts["network"].items()}
        self._network.load_state_dict(tensors)
        self._rule.load_state(parts["optimizer"])
        self._precision.load_state(parts["precision"])
        self._drawn_from = -1
        if self._world.data.size > 1:
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
        with torch.inference_mode(), self._precision.autocast():
            found = self._network.batch_statistics(self._tensor(x))
        return {name: (devices.to_array(mean.to(self._dtype)), devices.to_array(var.to(self._dtype)))
                for name, (mean, var) in found.items()}

    def statistics(self) -> Arrays:
        found: Arrays = OrderedDict()
        for name, norm in self._network.norms():
            found[name + ".running_mean"] = devices.to_array(norm.running_mean)
            found[name + ".running_var"] = devices.to_array(norm.running_var)
        return found

    @torch.no_grad()
    def load_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        for name, norm in self._network.norms():
            norm.running_mean.copy_(self._tensor(statistics[name + ".running_mean"]))
            norm.running_var.copy_(self._tensor(statistics[name + ".running_var"]))

    def fingerprint(self) -> Dict[str, str]:
        return devices.facts(self._execution, self._device, self._dtype)

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
