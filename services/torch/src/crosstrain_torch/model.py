"""The network as a PyTorch module.

PyTorch's layouts are the canonical ones (NCHW, OIHW, dense (out, in), flatten in C-H-W order), and its
convolution is a cross-correlation, so nothing is transposed. Composed from several operations, because
PyTorch has no single one: padding that differs before and after, or exceeds half of a pooling kernel; and in
canonical semantics dropout (a mask is multiplied in) and batch normalisation (the running statistics are left alone).
"""

from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from crosstrain_service.errors import invalid_field
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
    Shape,
    output_shape,
)
from torch import nn
from torch.nn import functional

#: Attribute of PyTorch's layer that holds each part of the canonical parameters.
_ATTRIBUTES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


class Network(nn.Sequential):
    """The layers of a model in order.

    ``names`` gives every layer's canonical name (PyTorch's own names would forbid some), ``trained`` the
    parameters by canonical name.
    """

    def __init__(self, model: Model, native: bool, sums_channels: bool, **options: Any) -> None:
        """``sums_channels``: local response normalisation by plain sums; ``options``: device and dtype."""
        build = _Builder(native, sums_channels, options)
        inputs = model.input_shapes()
        super().__init__(*[build.layer(layer, inputs[layer.name]) for layer in model.layers])
        self.names = tuple(layer.name for layer in model.layers)
        modules = dict(zip(self.names, self))
        self.trained = OrderedDict()  # type: Dict[str, nn.Parameter]
        for name in model.parameter_shapes():
            layer, part = name.rsplit(".", 1)
            module = modules[layer]
            holder = module.operation if isinstance(module, Padded) else module
            self.trained[name] = getattr(holder, _ATTRIBUTES[part])

    def forward(self, x: torch.Tensor, masks: Optional[Mapping[str, torch.Tensor]] = None) -> torch.Tensor:
        """Logits (B, K) for ``x`` (B, C, H, W) or (B, C, L); ``masks`` for canonical dropout in training."""
        for name, layer in zip(self.names, self):
            x = layer(x, masks) if isinstance(layer, MaskedDropout) else layer(x)
        return x

    def norms(self) -> List[Tuple[str, nn.Module]]:
        """Batch norm layers with their canonical names."""
        return [(name, layer) for name, layer in zip(self.names, self) if isinstance(layer, _NORMS)]

    def batch_statistics(self, x: torch.Tensor) -> Dict[str, Tuple[torch.Tensor, torch.Tensor]]:
        """Mean and biased variance, each (C,), that every batch norm sees for ``x``; the module is in eval mode."""
        found = OrderedDict()  # type: Dict[str, Tuple[torch.Tensor, torch.Tensor]]
        for name, layer in zip(self.names, self):
            if isinstance(layer, _NORMS):
                variance, mean = torch.var_mean(x, dim=[0] + list(range(2, x.dim())), correction=0)
                found[name] = (mean, variance)
                x = _normalise_by_batch(layer, x)
            else:
                x = layer(x)
        return found


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
    """Average over windows of an already padded input, each divided by its own divisor."""

    def __init__(self, kernel: Shape, stride: Shape, divisors: torch.Tensor) -> None:
        super().__init__()
        self.average = (nn.AvgPool1d, nn.AvgPool2d)[len(kernel) - 1](kernel, stride)
        self.register_buffer("scale", float(_area(kernel)) / divisors, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.average(x) * self.scale


class ChannelNorm(nn.Module):
    """Local response normalisation from sums over shifted channels.

    For GPUs with deterministic kernels: PyTorch's own goes through a pooling without a deterministic gradient.
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


def _normalise_by_batch(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    # functional.batch_norm refuses one value per channel (a last batch of one sample behind a flatten), where the
    # canonical output is beta; and it would update running statistics.
    cudnn = torch.backends.cudnn.enabled
    return torch.batch_norm(x, norm.weight, norm.bias, None, None, True, 0.0, norm.eps, cudnn)


class _KeepsStatistics:
    """Batch normalisation whose training leaves the evaluation statistics alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _normalise_by_batch(self, x) if self.training else super().forward(x)  # type: ignore[misc]


class BatchNorm1d(_KeepsStatistics, nn.BatchNorm1d):
    """Canonical batch normalisation of (B, F) or (B, C, L)."""


class BatchNorm2d(_KeepsStatistics, nn.BatchNorm2d):
    """Canonical batch normalisation of (B, C, H, W)."""


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class _Builder:
    def __init__(self, native: bool, sums_channels: bool, options: Dict[str, Any]) -> None:
        self._native = native
        self._sums_channels = sums_channels
        self._options = options

    def layer(self, layer: Layer, shape: Shape) -> nn.Module:
        """The module of one layer whose input has ``shape`` (without the batch)."""
        if isinstance(layer, Convolution):
            return self._convolution(layer, shape)
        if isinstance(layer, Pool):
            return self._pool(layer, shape)
        if isinstance(layer, BatchNorm):
            return self._batch_norm(layer, shape)
        if isinstance(layer, Dense):
            return nn.Linear(shape[0], layer.units, bias=layer.bias, **self._options)
        if isinstance(layer, Relu):
            return nn.ReLU()
        if isinstance(layer, Flatten):
            return nn.Flatten()
        if isinstance(layer, Dropout):
            return nn.Dropout(layer.rate) if self._native else MaskedDropout(layer.name)
        if isinstance(layer, Pad):
            return Padded(layer.begin, layer.end, 0.0)
        if isinstance(layer, LocalResponseNorm):
            if self._sums_channels:
                return ChannelNorm(layer)
            # PyTorch divides its alpha by the size.
            return nn.LocalResponseNorm(layer.size, layer.alpha_sum * layer.size, layer.beta, layer.k)
        raise TypeError("unknown layer %r" % type(layer).__name__)

    def _convolution(self, layer: Convolution, shape: Shape) -> nn.Module:
        kind = (nn.Conv1d, nn.Conv2d)[len(layer.kernel) - 1]
        symmetric = layer.pad_begin == layer.pad_end
        padding = layer.pad_begin if symmetric else 0
        convolution = kind(
            shape[0], layer.out_channels, layer.kernel, layer.stride, padding, bias=layer.bias, **self._options
        )
        return convolution if symmetric else Padded(layer.pad_begin, layer.pad_end, 0.0, convolution)

    def _pool(self, layer: Pool, shape: Shape) -> nn.Module:
        dims, ceil = len(layer.kernel) - 1, layer.round_mode == "ceil"
        kernel, stride, begin = layer.kernel, layer.stride, layer.pad_begin
        own = begin == layer.pad_end and all(2 * pad <= size for pad, size in zip(begin, kernel))
        if layer.kind == "max" and own:
            return (nn.MaxPool1d, nn.MaxPool2d)[dims](kernel, stride, begin, ceil_mode=ceil)
        if own:
            return (nn.AvgPool1d, nn.AvgPool2d)[dims](kernel, stride, begin, ceil, layer.count_include_pad)
        windows = output_shape(layer, shape)[1:]
        # Padding (or cropping) at the end to exactly what the windows reach settles the rounding as well.
        end = tuple(
            (count - 1) * s + k - n - b for count, s, k, n, b in zip(windows, stride, kernel, shape[1:], begin)
        )
        if layer.kind == "max":
            return Padded(begin, end, float("-inf"), (nn.MaxPool1d, nn.MaxPool2d)[dims](kernel, stride))
        divisors = _divisors(layer, shape[1:], windows).to(**self._options)
        return Padded(begin, end, 0.0, AveragePool(kernel, stride, divisors))

    def _batch_norm(self, layer: BatchNorm, shape: Shape) -> nn.Module:
        options = dict(self._options)
        if layer.epsilon is not None:
            options["eps"] = layer.epsilon
        elif not self._native:
            raise invalid_field("model.layers[%s].epsilon" % layer.name, "canonical semantics need a value")
        if self._native and layer.momentum is not None:
            # PyTorch's momentum weights the new value.
            options["momentum"] = 1.0 - layer.momentum
        kinds = _NORMS if self._native else (BatchNorm1d, BatchNorm2d)  # type: Sequence[type]
        return kinds[len(shape) == 3](shape[0], **options)


def _divisors(layer: Pool, sizes: Shape, windows: Shape) -> torch.Tensor:
    """How many elements each window averages over, of shape ``windows``."""
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
