"""Batch normalisation over the whole batch of all data ranks.

For x of N values per channel over all ranks, mean m and biased variance v: x^ = (x - m) / sqrt(v + epsilon),
y = gamma x^ + beta, and with g = dL/dy

    dL/dx = gamma / sqrt(v + epsilon) (g - mean(g) - x^ mean(g x^)),

where both means are over all ranks too (Ioffe and Szegedy 2015). The variance is computed from deviations, as
PyTorch's own operation for one process does; ``nn.SyncBatchNorm`` works on GPUs only.
"""

from typing import Any, Tuple

import torch
from torch import nn

from .communication import Group


class Share:
    """This process's rows of the present batch: ``counted`` is False for the row that stands in for none."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.counted = True


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float,
                share: Share) -> torch.Tensor:
        dims = [0] + list(range(2, x.dim()))
        shape = [1, -1] + [1] * (x.dim() - 2)
        wide = x.to(gamma.dtype)
        sums = wide.sum(dims)
        if not share.counted:
            sums.zero_()
        count = sums.new_full((1,), x.numel() // x.shape[1] if share.counted else 0)
        sums = share.group.add_up(torch.cat([sums, count]))
        count = sums[-1:]
        centred = wide - (sums[:-1] / count).view(shape)
        squares = (centred * centred).sum(dims)
        if not share.counted:
            squares.zero_()
        scale = torch.rsqrt(share.group.add_up(squares) / count + epsilon)
        normalised = centred.mul_(scale.view(shape))
        ctx.save_for_backward(normalised, gamma, scale, count)
        ctx.group, ctx.counted, ctx.dims, ctx.shape = share.group, share.counted, dims, shape
        return torch.addcmul(beta.view(shape), normalised, gamma.view(shape)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        normalised, gamma, scale, count = ctx.saved_tensors
        wide = gradient.to(gamma.dtype)
        d_beta, d_gamma = wide.sum(ctx.dims), (wide * normalised).sum(ctx.dims)
        sums = ctx.group.add_up(torch.cat([d_beta, d_gamma]))
        factor = (gamma * scale).view(ctx.shape)
        if not ctx.counted:
            return (wide * factor).to(gradient.dtype), d_gamma, d_beta, None, None
        mean, projection = (sums / count).view([2] + ctx.shape[1:]).unbind()
        inner = wide - mean.unsqueeze(0) - normalised * projection.unsqueeze(0)
        return (inner * factor).to(gradient.dtype), d_gamma, d_beta, None, None


def normalise(norm: nn.Module, x: torch.Tensor, share: Share) -> torch.Tensor:
    """``x`` normalised with the statistics of all ranks' rows; ``norm`` gives gamma, beta and epsilon."""
    result: torch.Tensor = _Normalise.apply(x, norm.weight, norm.bias, norm.eps, share)
    return result
