"""Tensor parallel layers: explicit parts of the weights and differentiable collective operations.

PyTorch's ``DTensor`` divides matrix products, but has no rule for a convolution divided by its output channels; so
both are divided in the same way here. All tensor ranks see the same rows and compute the same loss. Where a whole
activation enters a divided layer its gradient is the sum over the ranks; where parts are gathered each rank's gradient
is its part of the whole one; a sum of partial results passes its gradient on as it is.
"""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from crosstrain_service.engine import Arrays

from .communication import Group, World
from .partition import Division, Sizes


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        return ctx.group.add_up(gradient.clone(memory_format=torch.contiguous_format)), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return group.add_up(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, sizes: Sizes) -> torch.Tensor:
        ctx.place = sum(sizes[:group.index]), x.shape[1]
        missing = max(sizes) - x.shape[1]
        if missing:
            x = functional.pad(x, [0, 0] * (x.dim() - 2) + [0, missing])
        return torch.cat([part[:, :size] for part, size in zip(group.gather(x), sizes)], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        return gradient.narrow(1, *ctx.place), None, None


def gather(x: torch.Tensor, group: Group, sizes: Sizes) -> torch.Tensor:
    """The whole activation from the ranks' parts, of these ``sizes``, along dimension 1."""
    result: torch.Tensor = _Gather.apply(x, group, sizes)
    return result


class RowLinear(nn.Linear):
    """A dense layer of which each rank has the weights of some inputs; the bias is added to the whole sum."""

    group: Group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _Sum.apply(functional.linear(x, self.weight), self.group)
        return x if self.bias is None else x + self.bias


class Entry:
    """What happens to an activation before its layer, and to the layer's mask."""

    def __init__(self, division: Division, group: Group, first: bool) -> None:
        """``first``: the layer's input is the network's, whose gradient nobody wants."""
        self._gathered = division.gathered
        self._group = group
        self._copied = division.kind == "columns" and not first
        parts = division.output
        self._part = slice(sum(parts[:group.index]), sum(parts[:group.index + 1])) if parts else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._gathered:
            x = gather(x, self._group, self._gathered)
        if self._copied:
            x = _Copy.apply(x, self._group)
        return x

    def mask(self, mask: torch.Tensor) -> torch.Tensor:
        """This rank's part of a dropout mask."""
        return mask if self._part is None else mask[:, self._part]


class Shard(NamedTuple):
    """The part of a parameter that a rank holds: the rows ``start`` to ``stop`` of dimension ``dim``."""

    dim: int
    start: int
    stop: int


class Parts:
    """Whole arrays from the parts of all tensor ranks and pipeline stages, and back.

    ``shards`` by canonical name of the parameter; other parameters are whole in every tensor rank.
    """

    def __init__(self, world: World, shards: Mapping[str, Shard]) -> None:
        self._world = world
        self._shards = shards

    @property
    def divided(self) -> bool:
        """Whether a process holds less than everything."""
        return self._world.tensor.size * self._world.pipeline.size > 1

    def whole(self, arrays: Mapping[str, np.ndarray], parameter: Callable[[str], str] = str) -> Arrays:
        """All parts put together, in all ranks; ``parameter`` names the parameter that a key belongs to."""
        if not self.divided:
            return dict(arrays)
        parts = self._world.tensor.gather_arrays(arrays)
        joined: Arrays = {}
        for key, value in parts[0].items():
            shard = self._shards.get(parameter(key))
            # Counts and the like are the same in all ranks.
            cut = shard is not None and value.ndim > shard.dim
            joined[key] = np.concatenate([part[key] for part in parts], axis=shard.dim) if cut else value
        found: Arrays = {}
        for stage in self._world.pipeline.gather_arrays(joined):
            found.update(stage)
        return found

    def cut(self, key: str, value: np.ndarray, parameter: Callable[[str], str] = str) -> np.ndarray:
        """This rank's part of a whole array."""
        shard = self._shards.get(parameter(key))
        if shard is None or value.ndim <= shard.dim:
            return value
        return np.take(value, range(shard.start, shard.stop), axis=shard.dim)

    def norm(self, names: Sequence[str]) -> Callable[[Sequence[torch.Tensor]], torch.Tensor]:
        """A function that gives the global norm of all gradients from this rank's, of the parameters ``names``."""
        if not self.divided:
            return nn.utils.get_total_norm
        cut = [name in self._shards for name in names]

        def compute(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
            squares = torch.stack([gradient.square().sum() for gradient in gradients])
            chosen = torch.tensor(cut, device=squares.device)
            parts = self._world.tensor.add_up(squares[chosen].sum())
            return self._world.pipeline.add_up(parts + squares[~chosen].sum()).sqrt()

        return compute


def shards(network_divisions: Mapping[str, Division], parameters: Sequence[str], index: int) -> Dict[str, Shard]:
    """The divided ones among ``parameters``; divisions by layer, ``index``: number of the tensor rank."""
    found = {}
    for name in parameters:
        layer, part = name.rsplit(".", 1)
        division = network_divisions.get(layer)
        if division is None or not division.kind or (division.kind == "rows" and part == "bias"):
            continue
        start = sum(division.divided[:index])
        found[name] = Shard(int(division.kind == "rows"), start, start + division.divided[index])
    return found


def whole_outputs(outputs: List[torch.Tensor], cuts: Sequence[Sizes], group: Group) -> List[torch.Tensor]:
    """Activations, or their gradients, gathered where they are divided."""
    return [gather(output, group, sizes) if sizes else output for output, sizes in zip(outputs, cuts)]
