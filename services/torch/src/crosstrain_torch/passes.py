"""Passes outside of training, through all stages of a pipeline one after the other: evaluation and recording."""

from typing import Callable, List, Mapping, Sequence, Tuple

import torch
from torch.nn import functional

from crosstrain_service.model import Shape

from .communication import World, relay
from .model import Network
from .precision import Precision
from .sharding import whole_outputs

Run = Callable[[torch.Tensor], torch.Tensor]


class Passes:
    """All ranks of a pipeline call the methods together."""

    def __init__(self, network: Network, world: World, precision: Precision, boundaries: Sequence[Shape],
                 averaged: int) -> None:
        """``boundaries``: of each stage's output for one sample; ``averaged``: see :class:`.steps.Steps`."""
        self._network = network
        self._world = world
        self._precision = precision
        self._boundaries = boundaries
        self._averaged = averaged

    def through(self, x: torch.Tensor, run: Run) -> torch.Tensor:
        """What ``run``, which is one stage's, makes of ``x`` in all stages."""
        if self._world.pipeline.size == 1:
            return run(x)
        for stage, shape in enumerate(self._boundaries):
            own = stage == self._world.pipeline.index
            x = relay(self._world, run(x) if own else None, x.new_empty((len(x),) + shape), stage)
        return x

    def differentiate(self, x: torch.Tensor, labels: torch.Tensor, masks: Mapping[str, torch.Tensor],
                      part: float) -> Tuple[float, List[torch.Tensor], List[torch.Tensor]]:
        """Mean loss, outputs of this stage's layers, and gradients for these outputs and this rank's parameters.

        The gradients are those of the mean loss times ``part``. Outputs and their gradients are whole.
        """
        network, dtype, pipeline = self._network, self._precision.dtype, self._world.pipeline
        outputs: List[torch.Tensor] = []
        ends: List[torch.Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
            for layer in network
        ]

        def run(inputs: torch.Tensor) -> torch.Tensor:
            inputs = inputs.detach().requires_grad_()
            with self._precision.autocast():
                result = network(inputs, masks).to(dtype)
            ends.extend([inputs, result])
            return result

        try:
            logits = self.through(x, run)
        finally:
            for hook in hooks:
                hook.remove()
        if pipeline.index == pipeline.size - 1:
            logits = ends[1]
        loss = functional.cross_entropy(logits, labels)
        wanted = outputs + list(network.trained.values())
        # Scaled as in the step: small gradients would vanish in float16, and every rounding would be another one.
        scale = self._precision.factor() * self._averaged
        while True:
            found = self._backwards(loss * (scale * part), ends, wanted)
            if self._precision.scaler is None or scale < 1.0 or self._all_finite(found):
                break
            # The step itself would be left out.
            scale /= 2.0
        count = len(outputs)
        whole = whole_outputs(found[:count], network.cuts, network.group) + found[count:]
        if scale != 1.0:
            whole = [gradient.to(dtype) / scale for gradient in whole]
        return float(loss.detach()), whole_outputs(outputs, network.cuts, network.group), whole

    def _backwards(self, loss: torch.Tensor, ends: Sequence[torch.Tensor],
                   wanted: List[torch.Tensor]) -> List[torch.Tensor]:
        """Gradients of ``loss``, passed back through the pipeline; ``ends``: this stage's input and output."""
        found: List[torch.Tensor] = []
        pipeline, passed = self._world.pipeline, None
        begin, end = ends
        again = self._precision.scaler is not None
        for stage in reversed(range(pipeline.size)):
            gradient = None
            if stage == pipeline.index:
                root = loss if passed is None else end
                gradient, *found = torch.autograd.grad(root, [begin] + wanted, passed, retain_graph=again)
            if stage:
                shape = (len(begin),) + self._boundaries[stage - 1]
                passed = relay(self._world, gradient, begin.new_empty(shape), stage)
        return found

    def _all_finite(self, gradients: Sequence[torch.Tensor]) -> bool:
        """Whether they are in all data ranks, which differentiate together."""
        bad = sum(float(not torch.isfinite(gradient).all()) for gradient in gradients)
        return not self._world.data.add_up(torch.tensor([bad], device=gradients[0].device)).item()
