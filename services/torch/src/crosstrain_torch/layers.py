"""Operations that PyTorch has no single module for, and their canonical forms."""

from typing import Mapping, Optional

import torch
from torch import nn
from torch.nn import functional

from crosstrain_service.model import LocalResponseNorm, Pool, Shape

from .synchronised_norm import Share, normalise


class MaskedDropout(nn.Module):
    """Multiplies with the platform's mask, already divided by 1 - rate; in evaluation the identity."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor, masks: Optional[Mapping[str, torch.Tensor]] = None) -> torch.Tensor:
        if not self.training:
            return x
        if masks is None or self.name not in masks:
            raise ValueError("dropout layer %r got no mask" % self.name)
        return x * masks[self.name]


class Padded(nn.Module):
    """Pads the spatial dimensions with a constant (a negative amount crops), then applies an operation."""

    def __init__(self, begin: Shape, end: Shape, value: float, operation: Optional[nn.Module] = None) -> None:
        super().__init__()
        # Last dimension first, as PyTorch wants it.
        self.amounts = [amount for pair in reversed(list(zip(begin, end))) for amount in pair]
        self.value = value
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, self.amounts, value=self.value)
        return x if self.operation is None else self.operation(x)


class AveragePool(nn.Module):
    """Average over windows of an already padded input, each divided by its own count of elements."""

    def __init__(self, kernel: Shape, stride: Shape, counts: torch.Tensor) -> None:
        super().__init__()
        self.average = (nn.AvgPool1d, nn.AvgPool2d)[len(kernel) - 1](kernel, stride)
        self.register_buffer("scale", float(_area(kernel)) / counts, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.average(x) * self.scale


class ChannelNorm(nn.Module):
    """Local response normalisation from sums over shifted channels.

    For deterministic kernels on GPUs: PyTorch's own uses a pooling without a deterministic gradient there.
    """

    def __init__(self, layer: LocalResponseNorm) -> None:
        super().__init__()
        self.settings = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, channels = self.settings.size, x.shape[1]
        spatial = [0, 0] * (x.dim() - 2)
        squares = functional.pad(x * x, spatial + [size // 2, (size - 1) // 2])
        total = squares[:, :channels]
        for shift in range(1, size):
            total = total + squares[:, shift:shift + channels]
        return x / (total * self.settings.alpha_sum + self.settings.k) ** self.settings.beta


class SpatialNorm(nn.Module):
    """Local response normalisation within a channel, from the average of squares over ``dims`` dimensions."""

    def __init__(self, layer: LocalResponseNorm, dims: int) -> None:
        super().__init__()
        # Padding counts in the divisor, so an average is the sum over size^dims everywhere.
        self.average = (nn.AvgPool1d, nn.AvgPool2d)[dims - 1](layer.size, 1, layer.size // 2)
        self.factor = layer.alpha_sum * layer.size ** dims
        self.settings = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (self.average(x * x) * self.factor + self.settings.k) ** self.settings.beta


def normalise_by_batch(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """``x`` normalised with its own mean and biased variance; ``norm`` gives gamma, beta and epsilon."""
    # functional.batch_norm refuses one value per channel (a last batch of one sample after a flatten), where
    # the canonical output is beta; and the module would update its running statistics.
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(x, norm.weight, norm.bias, None, None, True, 0.0, norm.eps, cudnn)


class _KeepsStatistics:
    """Batch normalisation whose training leaves the evaluation statistics alone."""

    #: The rows of other processes that are normalised together with this one's.
    share: Optional[Share] = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(x)
        return normalise_by_batch(self, x) if self.share is None else normalise(self, x, self.share)


class BatchNorm1d(_KeepsStatistics, nn.BatchNorm1d):
    """Canonical batch normalisation of (B, F) or (B, C, L)."""


class BatchNorm2d(_KeepsStatistics, nn.BatchNorm2d):
    """Canonical batch normalisation of (B, C, H, W)."""


#: Batch norm modules of both semantics.
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)


def divisors(layer: Pool, sizes: Shape, windows: Shape) -> torch.Tensor:
    """Number of elements that each window averages over, of shape ``windows``."""
    total = torch.ones(())
    for size, count, kernel, stride, begin, end in zip(
        sizes, windows, layer.kernel, layer.stride, layer.pad_begin, layer.pad_end
    ):
        first = torch.arange(count) * stride - begin
        last = first + kernel
        low, high = (-begin, size + end) if layer.count_include_pad else (0, size)
        total = total.unsqueeze(-1) * (last.clamp(max=high) - first.clamp(min=low))
    return total


def _area(kernel: Shape) -> int:
    area = 1
    for size in kernel:
        area *= size
    return area
