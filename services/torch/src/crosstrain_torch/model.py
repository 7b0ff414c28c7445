"""The network as a PyTorch module.

PyTorch's layouts are the canonical ones (NCHW, OIHW, dense (out, in), flatten in C-H-W order), and its
convolution is a cross-correlation, so nothing is transposed. Composed from several operations, because
PyTorch has no single one: padding that differs before and after, or exceeds half of a pooling kernel. In
canonical semantics dropout multiplies with a given mask and batch normalisation leaves the running
statistics alone.
"""

from collections import OrderedDict
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

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

from .layers import (
    NORMS,
    AveragePool,
    BatchNorm1d,
    BatchNorm2d,
    ChannelNorm,
    MaskedDropout,
    Padded,
    SpatialNorm,
    divisors,
    normalise_by_batch,
)
from .synchronised_norm import Share

#: Attribute of PyTorch's layer that holds each part of the canonical parameters.
_ATTRIBUTES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


class Network(nn.Sequential):
    """The layers of a model in order.

    ``names`` gives every layer's canonical name (PyTorch's own names would forbid some), ``trained`` the
    parameters by canonical name.
    """

    def __init__(self, model: Model, native: bool, sums_channels: bool, share: Optional[Share] = None,
                 synchronised: Any = None, **options: Any) -> None:
        """``sums_channels``: local response normalisation by plain sums; ``options``: device and dtype.

        Over several processes canonical batch norm is computed with those in ``share``, and native batch norm by
        PyTorch's own module (for GPUs only) with those in the process group ``synchronised``.
        """
        build = _Builder(native, sums_channels, synchronised, options)
        inputs = model.input_shapes()
        super().__init__(*[build.layer(layer, inputs[layer.name]) for layer in model.layers])
        for module in self:
            if isinstance(module, (BatchNorm1d, BatchNorm2d)):
                module.share = share
        self.names = tuple(layer.name for layer in model.layers)
        modules = dict(zip(self.names, self))
        self.trained: Dict[str, nn.Parameter] = OrderedDict()
        for name in model.parameter_shapes():
            layer, part = name.rsplit(".", 1)
            module = modules[layer]
            holder = module.operation if isinstance(module, Padded) else module
            self.trained[name] = getattr(holder, _ATTRIBUTES[part])

    def forward(self, x: torch.Tensor, masks: Optional[Mapping[str, torch.Tensor]] = None) -> torch.Tensor:
        """Logits (B, K) for ``x`` (B, C, H, W) or (B, C, L); ``masks`` for canonical dropout in training."""
        for layer in self:
            x = layer(x, masks) if isinstance(layer, MaskedDropout) else layer(x)
        return x

    def norms(self) -> List[Tuple[str, nn.Module]]:
        """Batch norm layers with their canonical names."""
        return [(name, layer) for name, layer in zip(self.names, self) if isinstance(layer, NORMS)]

    def batch_statistics(self, x: torch.Tensor) -> Dict[str, Tuple[torch.Tensor, torch.Tensor]]:
        """Mean and biased variance, each (C,), that every batch norm sees for ``x``.

        The module must be in evaluation mode (dropout off).
        """
        found: Dict[str, Tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        for name, layer in zip(self.names, self):
            if isinstance(layer, NORMS):
                variance, mean = torch.var_mean(x, dim=[0] + list(range(2, x.dim())), correction=0)
                found[name] = (mean, variance)
                x = normalise_by_batch(layer, x)
            else:
                x = layer(x)
        return found


class _Builder:
    def __init__(self, native: bool, sums_channels: bool, synchronised: Any, options: Dict[str, Any]) -> None:
        self._native = native
        self._synchronised = synchronised
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
            if layer.region == "within_channel":
                return SpatialNorm(layer, len(shape) - 1)
            if self._sums_channels:
                return ChannelNorm(layer)
            # PyTorch divides its alpha by the size.
            return nn.LocalResponseNorm(layer.size, layer.alpha_sum * layer.size, layer.beta, layer.k)
        raise TypeError("unknown layer %r" % type(layer).__name__)

    def _convolution(self, layer: Convolution, shape: Shape) -> nn.Module:
        kind = (nn.Conv1d, nn.Conv2d)[len(layer.kernel) - 1]
        symmetric = layer.pad_begin == layer.pad_end
        padding = layer.pad_begin if symmetric else 0
        sizes = (shape[0], layer.out_channels, layer.kernel, layer.stride, padding)
        convolution = kind(*sizes, bias=layer.bias, **self._options)
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
        sizes = zip(windows, stride, kernel, shape[1:], begin)
        end = tuple((count - 1) * s + k - n - b for count, s, k, n, b in sizes)
        if layer.kind == "max":
            return Padded(begin, end, float("-inf"), (nn.MaxPool1d, nn.MaxPool2d)[dims](kernel, stride))
        counts = divisors(layer, shape[1:], windows).to(**self._options)
        return Padded(begin, end, 0.0, AveragePool(kernel, stride, counts))

    def _batch_norm(self, layer: BatchNorm, shape: Shape) -> nn.Module:
        options = dict(self._options)
        if layer.epsilon is not None:
            options["eps"] = layer.epsilon
        elif not self._native:
            raise invalid_field("model.layers[%s].epsilon" % layer.name, "canonical semantics need a value")
        if self._native and layer.momentum is not None:
            # PyTorch's momentum weights the new value.
            options["momentum"] = 1.0 - layer.momentum
        if self._synchronised is not None:
            return nn.SyncBatchNorm(shape[0], process_group=self._synchronised, **options)
        kinds: Sequence[type] = NORMS if self._native else (BatchNorm1d, BatchNorm2d)
        return kinds[len(shape) == 3](shape[0], **options)
