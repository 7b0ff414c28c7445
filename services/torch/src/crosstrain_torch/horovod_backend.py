"""Data parallel ranks by Horovod: gradients averaged by its background thread while the backward pass goes on.

Every gradient is handed over as soon as it is complete, as Horovod's own ``DistributedOptimizer`` does; what is
minimised, and the weight of uneven shares, is as :mod:`.steps` says.

Horovod with NCCL, for device "cuda", has not been run.
"""

import importlib.util
import time
from typing import Any, List

import torch
from torch import nn

from crosstrain_service.parallel import progress
from crosstrain_service.parallel.horovod_settings import begin
from crosstrain_service.training import Execution

from .communication import Group, Traffic, World
from .model import Network
from .precision import Precision
from .steps import Clock, Steps


def obstacle(device: str = "cpu") -> str:
    """Why Horovod cannot be used here, or an empty text."""
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not built in this environment"
    try:
        import horovod.torch as hvd
    except Exception as error:  # whatever the import of a library for another PyTorch may raise
        return "Horovod cannot be imported: %s" % type(error).__name__
    if not hvd.gloo_built():
        return "Horovod is built without Gloo"
    return "" if device == "cpu" or hvd.nccl_built() else "Horovod is built without NCCL"


class HorovodGroup(Group):
    """All processes, within Horovod."""

    def __init__(self, traffic: Traffic) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self.size = hvd.size()
        self.index = hvd.rank()
        self._traffic = traffic
        self._count = 0

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        progress.joins()
        start = time.perf_counter()
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name=self._name())
        self._traffic.add(tensor, start)
        return tensor

    def _name(self) -> str:
        # All processes call in the same order.
        self._count += 1
        return "sum.%d" % self._count


class HorovodWorld(World):
    """The processes as Horovod sees them."""

    def __init__(self, execution: Execution) -> None:
        import horovod.torch as hvd

        super().__init__(execution.ranks.size)
        begin(execution, hvd)
        self.data = HorovodGroup(self.traffic)


class HorovodSteps(Steps):
    """Gradients averaged over all processes by Horovod."""

    def __init__(self, network: Network, precision: Precision, execution: Execution, world: World) -> None:
        super().__init__(network, precision, execution.accumulation_steps)
        import horovod.torch as hvd

        self._hvd = hvd
        self.averaged = world.data.size
        self._traffic = world.traffic
        self._reduces = True
        self._handles: List[Any] = []
        self._clock = Clock()
        self._bytes = sum(value.numel() * value.element_size() for value in network.trained.values())
        for name, value in network.trained.items():
            value.register_post_accumulate_grad_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def ready(parameter: nn.Parameter) -> None:
            if self._reduces:
                # The last call begins the time of waiting.
                self._clock.start(parameter)
                self._handles.append(self._hvd.allreduce_async_(parameter.grad, name=name, op=self._hvd.Average))

        return ready

    def _differentiate(self, loss: torch.Tensor, weight: float) -> None:
        super()._differentiate(loss, weight)
        if not self._reduces:
            return
        progress.joins()
        for handle in self._handles:
            self._hvd.synchronize(handle)
        self._handles.clear()
        self._traffic.seconds += self._clock.seconds()
        self._traffic.bytes += self._bytes

    def _unreduced(self) -> Any:
        return _Switch(self)


class _Switch:
    """Leaves the gradients of a backward pass to the next one."""

    def __init__(self, steps: HorovodSteps) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._steps._reduces = False

    def __exit__(self, *_: Any) -> None:
        self._steps._reduces = True
