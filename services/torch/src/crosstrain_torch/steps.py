"""The gradient of the whole batch's mean loss, by one process or several with the same network.

All processes minimise the mean over the whole batch, whatever the sizes of their shares. ``DistributedDataParallel``
averages gradients over R processes, so each differentiates its own mean loss times R n / N, with n of the
N samples in its share; a row that stands in for an empty share weighs 0. A share that is computed in several
parts adds up their gradients, and is reduced with the last.
"""

import time
from contextlib import nullcontext
from typing import Any, Callable, Dict, Mapping, Optional

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from crosstrain_service.engine import Batch
from crosstrain_service.parallel import progress
from crosstrain_service.parallel.shares import share_sizes
from crosstrain_service.training import Execution

from .communication import World
from .model import Network
from .precision import Precision

Masks = Dict[str, torch.Tensor]


class Steps:
    """Gradients of one process that sees the whole batch."""

    def __init__(self, network: Network, precision: Precision, parts: int) -> None:
        """``parts``: how many a share is computed in."""
        self.network = network
        self._precision = precision
        self._parts = parts
        self._module: Callable[..., torch.Tensor] = network
        #: From inputs, labels and masks to the mean loss; the engine may compile it.
        self.loss = self.forward
        #: Processes over which gradients are averaged, so that each weighs its loss by as much more.
        self.averaged = 1

    def forward(self, x: torch.Tensor, labels: torch.Tensor, masks: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of some rows."""
        with self._precision.autocast():
            logits = self._module(x, masks)
        if not len(labels):
            return logits.sum() * 0.0
        return functional.cross_entropy(logits.to(self._precision.dtype), labels)

    def gradients(self, batch: Batch, x: torch.Tensor, labels: torch.Tensor, masks: Masks) -> torch.Tensor:
        """Leaves the gradient in ``.grad`` of all parameters and returns the mean loss of this process's rows."""
        rows = len(labels)
        if self._parts == 1 or rows < 2:
            loss = self.loss(x, labels, masks)
            self._clear()
            self._differentiate(loss, self.averaged * batch.part)
            return loss.detach()
        self._clear()
        total: Optional[torch.Tensor] = None
        sizes = share_sizes(rows, min(self._parts, rows))
        pieces = [x.split(sizes), labels.split(sizes)]
        cut = {name: mask.split(sizes) for name, mask in masks.items()}
        for number, (inputs, wanted) in enumerate(zip(*pieces)):
            with nullcontext() if number == len(sizes) - 1 else self._unreduced():
                loss = self.loss(inputs, wanted, {name: mask[number] for name, mask in cut.items()})
                share = sizes[number] / rows
                self._differentiate(loss, self.averaged * batch.part * share)
            value = loss.detach() * share
            total = value if total is None else total + value
        return total

    def _differentiate(self, loss: torch.Tensor, weight: float) -> None:
        self._precision.scaled(loss if weight == 1.0 else loss * weight).backward()

    def _clear(self) -> None:
        for parameter in self.network.trained.values():
            parameter.grad = None

    def _unreduced(self) -> Any:
        return nullcontext()


class DataParallelSteps(Steps):
    """``DistributedDataParallel``: gradients averaged in buckets while the backward pass goes on.

    Waiting that nothing hides lies between the last gradient of the backward pass, which belongs to the first layer
    with parameters, and the end of the pass; on a GPU it is measured there, and reported with the next step.
    """

    def __init__(self, network: Network, precision: Precision, execution: Execution, world: World) -> None:
        super().__init__(network, precision, execution.accumulation_steps)
        self.averaged = world.data.size
        self._traffic = world.traffic
        size = execution.parallel.bucket_mib
        options = {"bucket_cap_mb": size} if size else {}
        # Buffers: evaluation statistics of native batch norm, which then are those of the first rank.
        parallel = DistributedDataParallel(network, process_group=world.data.handle, gradient_as_bucket_view=True,
                                           forward_sync_buffers=execution.native, **options)
        self._module = self._parallel = parallel
        trained = list(network.trained.values())
        self._bytes = sum(value.numel() * value.element_size() for value in trained)
        layer = next(iter(network.trained)).rsplit(".", 1)[0]
        first = [value for name, value in network.trained.items() if name.rsplit(".", 1)[0] == layer]
        on_gpu = trained[0].is_cuda
        self._clock: Any = _DeviceClock() if on_gpu else Clock()
        for value in first:
            value.register_post_accumulate_grad_hook(self._wait)

    def _wait(self, parameter: nn.Parameter) -> None:
        progress.joins()
        self._clock.start(parameter)

    def settle(self, x: torch.Tensor) -> None:
        """Lets the buckets take their final order before the first step.

        ``DistributedDataParallel`` rearranges them after its first pass, and with it the order in which more than two
        ranks add up: a resumed run would differ in the last bits. ``x`` is any one row.
        """
        self._parallel.eval()
        with self._traffic.paused():
            self._parallel(x).sum().backward()
        self._clear()

    def _differentiate(self, loss: torch.Tensor, weight: float) -> None:
        super()._differentiate(loss, weight)
        if self._parallel.require_backward_grad_sync:
            self._traffic.seconds += self._clock.seconds()
            self._traffic.bytes += self._bytes

    def _unreduced(self) -> Any:
        return self._parallel.no_sync()


class Clock:
    """Time from the last call of :meth:`start` until :meth:`seconds`."""

    def __init__(self) -> None:
        self._started = 0.0

    def start(self, parameter: nn.Parameter) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._started


class _DeviceClock:
    """The same on the GPU's stream; of the interval before, as this one has not passed there yet."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        self._complete = False

    def start(self, parameter: nn.Parameter) -> None:
        self._events[0].record()

    def seconds(self) -> float:
        self._events[1].record()
        begin, end = self._events[2:]
        found = 0.0
        if self._complete:
            end.synchronize()
            found = begin.elapsed_time(end) / 1000
        self._events = [begin, end] + self._events[:2]
        self._complete = True
        return found
