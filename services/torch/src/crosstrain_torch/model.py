"""The network as a PyTorch module.

PyTorch's layouts are the canonical ones (NCHW, OIHW, dense (out, in), flatten in C-H-W order), and its
convolution is a cross-correlation, so nothing is transposed. Composed from several operations, because
PyTorch has no single one: padding that differs before and after, or exceeds half of a pooling kernel. In
canonical semantics dropout multiplies with a given mask and batch normalisation leaves the running
statistics alone.

Module :mod:`.partition` says how several ranks divide the layers.
"""

import dataclasses
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

from .communication import Group
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
from .partition import Division, divisions
from .sharding import Entry, RowLinear, gather, shards
from .synchronised_norm import Share

#: Attribute of PyTorch's layer that holds each part of the canonical parameters.
_ATTRIBUTES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


class Network(nn.Sequential):
    """The layers of a model in order, or those of one pipeline stage, or a tensor rank's parts of them.

    ``names`` gives every layer's canonical name (PyTorch's own names would forbid some), ``trained`` the
    parameters by canonical name, ``keys`` those names by the key of ``state_dict``. The modules themselves are named by
    the layer's number in the model.
    """

    def __init__(self, model: Model, native: bool, sums_channels: bool, share: Optional[Share] = None,
                 synchronised: Any = None, layers: Optional[range] = None, group: Optional[Group] = None,
                 **options: Any) -> None:
        """``sums_channels``: local response normalisation by plain sums; ``options``: device and dtype.

        Over several processes canonical batch norm is computed with those in ``share``, and native batch norm by
        PyTorch's own module (for GPUs only) with those in the process group ``synchronised``. ``layers``: numbers of
        those in this stage, else all; ``group``: the ranks that divide them.
        """
        group = group or Group()
        build = _Builder(native, sums_channels, synchronised, group, options)
        shapes = model.input_shapes()
        numbers = layers or range(len(model.layers))
        chosen = [model.layers[number] for number in numbers]
        inputs = [shapes[layer.name] for layer in chosen]
        plan = divisions(chosen, inputs, group.size, native)
        built = [build.divided(*each) for each in zip(chosen, inputs, plan)]
        super().__init__(OrderedDict((str(number), module) for number, module in zip(numbers, built)))
        for module in built:
            if isinstance(module, (BatchNorm1d, BatchNorm2d)):
                module.share = share
        self.names = tuple(layer.name for layer in chosen)
        self.group = group
        #: Sizes of the parts of every layer's output along dimension 1, empty where it is whole.
        self.cuts = [division.output for division in plan]
        self._entries = [Entry(division, group, number == 0) for number, division in zip(numbers, plan)]
        modules = dict(zip(self.names, zip(numbers, built)))
        self.trained: Dict[str, nn.Parameter] = OrderedDict()
        self.keys: Dict[str, str] = {}
        for name in model.parameter_shapes():
            layer, part = name.rsplit(".", 1)
            if layer not in modules:
                continue
            number, module = modules[layer]
            padded = isinstance(module, Padded)
            attribute = _ATTRIBUTES[part]
            self.trained[name] = getattr(module.operation if padded else module, attribute)
            self.keys["%d.%s%s" % (number, "operation." if padded else "", attribute)] = name
        self.shards = shards(dict(zip(self.names, plan)), list(self.trained), group.index)

    def forward(self, x: torch.Tensor, masks: Optional[Mapping[str, torch.Tensor]] = None) -> torch.Tensor:
        """Logits (B, K) for ``x`` (B, C, H, W) or (B, C, L); ``masks`` for canonical dropout in training.

        Of a stage of a pipeline: its last layer's output for its first layer's input, both whole.
        """
        if self.group.size == 1:
            for layer in self:
                x = layer(x, masks) if isinstance(layer, MaskedDropout) else layer(x)
            return x
        for layer, entry in zip(self, self._entries):
            x = entry(x)
            if isinstance(layer, MaskedDropout):
                masks = {name: entry.mask(mask) if name == layer.name else mask for name, mask in (masks or {}).items()}
                x = layer(x, masks)
            else:
                x = layer(x)
        return gather(x, self.group, self.cuts[-1]) if self.cuts[-1] else x

    def norms(self) -> List[Tuple[str, nn.Module]]:
        """Batch norm layers with their canonical names."""
        return [(name, layer) for name, layer in zip(self.names, self) if isinstance(layer, NORMS)]

    def batch_statistics(self, x: torch.Tensor) -> Tuple[Dict[str, Tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
        """Mean and biased variance, each (C,), that every batch norm sees for ``x``, and the network's output.

        The module must be in evaluation mode (dropout off).
        """
        found: Dict[str, Tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        for name, layer, entry in zip(self.names, self, self._entries):
            x = entry(x)
            if isinstance(layer, NORMS):
                variance, mean = torch.var_mean(x, dim=[0] + list(range(2, x.dim())), correction=0)
                found[name] = (mean, variance)
                x = normalise_by_batch(layer, x)
            else:
                x = layer(x)
        return found, gather(x, self.group, self.cuts[-1]) if self.cuts[-1] else x


class _Builder:
    def __init__(self, native: bool, sums_channels: bool, synchronised: Any, group: Group,
                 options: Dict[str, Any]) -> None:
        self._native = native
        self._group = group
        self._synchronised = synchronised
        self._sums_channels = sums_channels
        self._options = options

    def divided(self, layer: Layer, shape: Shape, division: Division) -> nn.Module:
        """The module of this tensor rank's part of a layer."""
        index = self._group.index
        if division.kind == "rows":
            module = RowLinear(division.divided[index], layer.units, bias=layer.bias, **self._options)
            module.group = self._group
            return module
        if division.kind == "columns":
            part = "out_channels" if isinstance(layer, Convolution) else "units"
            layer = dataclasses.replace(layer, **{part: division.divided[index]})
        return self.layer(layer, shape)

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
