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
from crosstrain_service.model import Model
from crosstrain_service.training import Execution, Training

from . import device as devices
from .model import Network
from .optimizer import UpdateRule

_EMULATED = {
    "layer.convolution.asymmetric_padding": "explicit zero padding before the convolution",
    "layer.pool.asymmetric_padding": "explicit padding before; averages rescaled by a constant map",
    "layer.dropout": "the mask is multiplied in; native semantics draw their own",
    "layer.batch_norm": "PyTorch's operation without running statistics; native semantics keep them",
    "layer.local_response_norm.within_channel": "average pooling of the squares",
    "optimizer.sgd.momentum": "the momentum buffer is rescaled when the learning rate changes",
    "optimizer.sgd.nesterov": "the momentum buffer is rescaled when the learning rate changes",
    "decay.decoupled": "AdamW for adam; for other rules the weights are multiplied before the step",
    "clip.global_norm": "PyTorch's norm, the factor c / max(norm, c); native semantics use clip_grad_norm_",
}
_ELSEWHERE = "belongs to another framework"
_UNSUPPORTED = {
    "compiler.xla": _ELSEWHERE,
    "compiler.theano:fast_run": _ELSEWHERE,
    "compiler.theano:fast_compile": _ELSEWHERE,
    "parallel.data": "this engine trains on one device",
    "parallel.tensor": "this engine trains on one device",
    "parallel.pipeline": "this engine trains on one device",
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
        self._device = devices.configure(execution)
        self._dtype = torch.float64 if execution.precision == "float64" else torch.float32
        self._network = Network(
            model,
            execution.native,
            sums_channels=self._device.type == "cuda" and execution.deterministic,
            device=self._device,
            dtype=self._dtype,
        )
        self._rule = UpdateRule(self._network.trained, training, execution.native)
        self._draws = execution.native
        self._loss = self._forward
        if execution.compiler == "torch.compile":
            # One graph per batch size (full and last), and an error instead of a part left uncompiled.
            self._loss = torch.compile(self._forward, fullgraph=True, dynamic=False)
        # Only native dropout draws from it.
        torch.manual_seed(training.seed & 0xFFFFFFFFFFFFFFFF)

    def _forward(self, x: torch.Tensor, labels: torch.Tensor, masks: Dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(self._network(x, masks), labels)

    def _masks(self, batch: Batch) -> Dict[str, torch.Tensor]:
        if self._draws:
            return {}
        return {name: self._tensor(mask) for name, mask in batch.masks.items()}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return devices.to_tensor(array, self._device, self._dtype)

    def train(self, loop: Loop) -> None:
        for epoch in loop.epochs():
            # The evaluation between two epochs leaves the other mode.
            self._network.train()
            for batch in epoch.batches():
                x, labels, copy_seconds = devices.timed_copy(batch.x, batch.labels, self._device, self._dtype)
                loss = self._loss(x, labels, self._masks(batch))
                self._rule.zero_grad()
                loss.backward()
                self._rule.step(batch.learning_rate)
                loop.step_done(loss.detach(), copy_seconds=copy_seconds)

    def predict(self, x: np.ndarray) -> np.ndarray:
        self._network.eval()
        with torch.inference_mode():
            return devices.to_array(self._network(self._tensor(x)))

    def intermediates(self, batch: Batch) -> Intermediates:
        self._network.train()
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
                loss = self._forward(x, labels, self._masks(batch))
                trained = self._network.trained
                found = torch.autograd.grad(loss, outputs + list(trained.values()))
        finally:
            for hook in hooks:
                hook.remove()
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)
        arrays = [devices.to_array(gradient) for gradient in found]
        names = self._network.names
        return Intermediates(
            loss=float(loss.detach()),
            outputs=OrderedDict((name, devices.to_array(output)) for name, output in zip(names, outputs)),
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
        if self._draws:
            found["random/cpu"] = devices.to_array(torch.get_rng_state())
            if self._device.type == "cuda":
                found["random/cuda"] = devices.to_array(torch.cuda.get_rng_state(self._device))
        return found

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        parts: Dict[str, Arrays] = {"network": {}, "optimizer": {}, "random": {}}
        for key, value in state.items():
            part, rest = key.split("/", 1)
            parts[part][rest] = value
        cpu = torch.device("cpu")
        tensors = {key: devices.to_tensor(value, cpu) for key, value in parts["network"].items()}
        self._network.load_state_dict(tensors)
        self._rule.load_state(parts["optimizer"])
        for kind, value in parts["random"].items():
            tensor = devices.to_tensor(value, cpu)
            if kind == "cpu":
                torch.set_rng_state(tensor)
            else:
                torch.cuda.set_rng_state(tensor, self._device)

    def batch_statistics(self, x: np.ndarray) -> Dict[str, Tuple[np.ndarray, np.ndarray]]:
        self._network.eval()
        with torch.inference_mode():
            found = self._network.batch_statistics(self._tensor(x))
        return {name: (devices.to_array(mean), devices.to_array(var)) for name, (mean, var) in found.items()}

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

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def allocator_peak_bytes(self) -> "int | None":
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None

    def close(self) -> None:
        if self._execution.compiler:
            torch.compiler.reset()
