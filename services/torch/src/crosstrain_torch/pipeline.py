"""Pipeline parallel: every rank of a pipeline holds consecutive layers, and micro-batches pass through them.

PyTorch's schedule cuts a share in micro-batches of one size; a share that is no multiple of it is filled up with blank
rows whose labels the loss ignores, so they weigh 0. The loss of a micro-batch is the sum over its rows divided by the
number of samples in the whole batch, and gradients are added up, over micro-batches by PyTorch and then over
data ranks. Every size of micro-batch has a stage and a schedule of its own, since the stage's buffers have its shape.
"""

import time
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from crosstrain_service.engine import Batch
from crosstrain_service.model import Shape
from crosstrain_service.training import Execution

from .communication import World
from .model import Network
from .precision import Precision
from .steps import Masks, Steps

#: Label of rows that the loss ignores.
_IGNORED = -100


class _Fed(nn.Module):
    """A stage's layers with the next micro-batch's dropout masks; its output in the precision of the parameters."""

    def __init__(self, network: Network, precision: Precision) -> None:
        super().__init__()
        self.network = network
        self._precision = precision
        self.masks: Iterator[Masks] = iter(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self._precision.autocast():
            x = self.network(x, next(self.masks))
        return x.to(self._precision.dtype)


class _Stage(PipelineStage):
    """Counts the seconds that it computes."""

    computing = 0.0

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = super().forward_one_chunk(*arguments, **options)
        self.computing += time.perf_counter() - start
        return result

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = super().backward_one_chunk(*arguments, **options)
        self.computing += time.perf_counter() - start
        return result


class PipelineSteps(Steps):
    """Gradients of one rank of a pipeline, by the schedule 1F1B, or GPipe with fewer micro-batches than ranks."""

    def __init__(self, network: Network, precision: Precision, execution: Execution, world: World,
                 shapes: Tuple[Shape, Shape], device: torch.device) -> None:
        """``shapes``: of one sample as it enters and leaves this stage."""
        super().__init__(network, precision, 1)
        self._world = world
        self._shapes = shapes
        self._device = device
        self._count = execution.parallel.micro_batches or execution.parallel.pipeline
        self._fed = _Fed(network, precision)
        self._schedules: Dict[int, Tuple[_Stage, Any]] = {}
        self._total = 1

    def gradients(self, batch: Batch, x: torch.Tensor, labels: torch.Tensor, masks: Masks) -> torch.Tensor:
        start = time.perf_counter()
        pipeline = self._world.pipeline
        rows = len(labels)
        size = -(-rows // self._count)
        stage, schedule = self._schedule(size)
        if not batch.samples:
            labels = torch.full_like(labels, _IGNORED)
        missing = size * self._count - rows
        cut = {name: _filled(mask, missing, 0).split(size) for name, mask in masks.items()}
        self._fed.masks = iter([{name: mask[number] for name, mask in cut.items()} for number in range(self._count)])
        self._total = batch.total
        self._clear()
        stage.computing = 0.0
        losses: List[torch.Tensor] = []
        inputs = (_filled(x, missing, 0),) if stage.is_first else ()
        target: Dict[str, Any] = {}
        if stage.is_last:
            target = {"target": _filled(labels, missing, _IGNORED), "losses": losses}
        schedule.step(*inputs, return_outputs=False, **target)
        traffic = self._world.traffic
        # Waiting for tensor ranks, within what the stage computes.
        within = traffic.take_seconds()
        self._reduce()
        # The last stage's, in all of them.
        loss = torch.zeros((), device=self._device, dtype=self._precision.dtype)
        for value in losses:
            loss += value.detach()
        loss = pipeline.add_up(loss * (batch.total / max(batch.samples, 1)))
        traffic.seconds = time.perf_counter() - start - stage.computing + within
        return loss

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        total = functional.cross_entropy(logits, labels, ignore_index=_IGNORED, reduction="sum")
        return total / self._total

    def _schedule(self, size: int) -> Tuple[_Stage, Any]:
        if size not in self._schedules:
            pipeline, dtype = self._world.pipeline, self._precision.dtype
            options = {"device": self._device, "dtype": dtype}
            entering, leaving = [torch.empty((size,) + shape, **options) for shape in self._shapes]
            if pipeline.index:
                entering.requires_grad_()
            stage = _Stage(self._fed, pipeline.index, pipeline.size, self._device, input_args=(entering,),
                           output_args=(leaving.requires_grad_(),), group=pipeline.handle)
            kind = Schedule1F1B if self._count >= pipeline.size else ScheduleGPipe
            self._schedules[size] = stage, kind(stage, self._count, loss_fn=self._loss, scale_grads=False)
        return self._schedules[size]

    def _reduce(self) -> None:
        """Adds up the gradients of all data ranks, in one operation."""
        if self._world.data.size == 1:
            return
        gradients = [parameter.grad for parameter in self.network.trained.values()]
        flat = self._world.data.add_up(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for gradient, value in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(value.view_as(gradient))


def _filled(tensor: torch.Tensor, missing: int, value: int) -> torch.Tensor:
    if not missing:
        return tensor
    return torch.cat([tensor, tensor.new_full((missing,) + tensor.shape[1:], value)])
