"""A model and canonical weights as a PyTorch module: Python source and a state_dict in safetensors.

PyTorch's layouts are the canonical ones, so no array is changed. Written with several modules, because PyTorch has
no single one: padding that differs before and after, or exceeds half of a pooling kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from safetensors.numpy import save

from crosstrain_service import model as plain

from .exporting import (
    Arrays,
    Export,
    constants,
    heading,
    names_of,
    pool_windows,
    prepared,
    refused,
    uneven,
    unused,
)

SOURCE, WEIGHTS = "network.py", "weights.safetensors"

#: Attributes of nn.Sequential, which no layer in it may be called.
RESERVED = frozenset(
    """T_destination add_module append apply bfloat16 buffers call_super_init children compile cpu cuda double
    dump_patches eval extend extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half
    insert ipu load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters pop
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook requires_grad_
    set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu zero_grad""".split()
)
_PARTS = {
    "weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias",
    "running_mean": "running_mean", "running_var": "running_var",
}  # fmt: skip

_AVERAGE = '''

class CountedAverage(nn.Module):
    """Average pooling of a padded input in which each window has a divisor of its own.

    ``lengths``: per dimension, the elements that each window counts.
    """

    def __init__(self, kernel, stride, lengths):
        super().__init__()
        self.average = (nn.AvgPool1d, nn.AvgPool2d)[len(kernel) - 1](kernel, stride)
        scale = torch.ones(())
        for size, row in zip(kernel, lengths):
            scale = scale.unsqueeze(-1) * (size / torch.tensor(row, dtype=torch.float32))
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x):
        return self.average(x) * self.scale
'''

_SPATIAL_NORM = '''

class SpatialResponseNorm(nn.Module):
    """x / (k + alpha * sum of x^2) ** beta, the sum over ``size`` positions per dimension of a channel."""

    def __init__(self, dims, size, alpha, beta, k):
        super().__init__()
        self.average = (nn.AvgPool1d, nn.AvgPool2d)[dims - 1](size, 1, size // 2)
        self.factor, self.beta, self.k = alpha * size**dims, beta, k

    def forward(self, x):
        return x / (self.k + self.factor * self.average(x * x)) ** self.beta
'''

_LOAD = '''

def load(path=Path(__file__).with_name("{weights}"), device="cpu"):
    """The trained network, in evaluation mode."""
    network = Network()
    network.load_state_dict(load_file(str(path)))
    return network.to(device).eval()
'''


def export_torch(model: plain.Model, weights: Mapping[str, np.ndarray], divisor: float | None = None) -> Export:
    """Source of a module ``Network`` with ``load()``, and its state_dict (float32) as safetensors.

    ``weights`` are canonical, batch norm statistics included; ``divisor`` of the data is told in the docstring.
    Raises CrosstrainError (``INVALID_MODEL``, ``INVALID_WEIGHTS``) naming the layer or the array.
    """
    arrays = prepared(model, weights)
    names = names_of(model, RESERVED)
    used = {*RESERVED, *names.values()}
    modules = []
    for layer, shape in zip(model.layers, model.input_shapes().values(), strict=True):
        for suffix, text in _modules(layer, shape):
            name = names[layer.name]
            if suffix:
                name = unused(name + suffix, used)
                used.add(name)
            modules.append(f'            ("{name}", {text}),\n')
    order = "channels first"
    body = "".join(modules)
    source = (
        f"{heading(model, 'PyTorch module', model.input_shape, order, divisor)}\n"
        "from collections import OrderedDict\nfrom pathlib import Path\n\n"
        f"{'import torch' + chr(10) if ' CountedAverage(' in body else ''}"
        "from safetensors.torch import load_file\nfrom torch import nn\n\n"
        f"{constants(model, model.input_shape, divisor)}"
        f"{_AVERAGE if ' CountedAverage(' in body else ''}"
        f"{_SPATIAL_NORM if ' SpatialResponseNorm(' in body else ''}"
        "\n\nclass Network(nn.Sequential):\n"
        f'    """From {model.input_shape!r} per sample to {model.classes} logits."""\n\n'
        "    def __init__(self):\n        super().__init__(OrderedDict([\n"
        f"{body}        ]))\n"
        f"{_LOAD.format(weights=WEIGHTS)}"
    )
    # The metadata that other tools look for.
    return Export(source, save(_state(model, arrays, names), metadata={"format": "pt"}))


def _state(model: plain.Model, arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    state = {}
    for name, value in arrays.items():
        layer, part = name.rsplit(".", 1)
        state[f"{names[layer]}.{_PARTS[part]}"] = value
    for norm in model.layers_of(plain.BatchNorm):
        # Of use to PyTorch only where training goes on without a momentum.
        state[f"{names[norm.name]}.num_batches_tracked"] = np.zeros((), np.int64)
    return state


def _modules(layer: plain.Layer, shape: plain.Shape) -> list[tuple[str, str]]:
    """Suffix of the name and constructor of each module of a layer whose input has ``shape``."""
    dims = len(shape) - 1
    if isinstance(layer, plain.Convolution):
        even = layer.pad_begin == layer.pad_end
        padding = layer.pad_begin if even else (0,) * dims
        text = f"nn.Conv{dims}d({shape[0]}, {layer.out_channels}, {layer.kernel}, {layer.stride}, {padding}"
        pad = [] if even else [("_pad", _pad(layer.pad_begin, layer.pad_end, "0.0"))]
        return [*pad, ("", f"{text}, bias={layer.bias})")]
    if isinstance(layer, plain.Pool):
        return _pool(layer, shape)
    if isinstance(layer, plain.Dense):
        return [("", f"nn.Linear({shape[0]}, {layer.units}, bias={layer.bias})")]
    if isinstance(layer, plain.Relu):
        return [("", "nn.ReLU()")]
    if isinstance(layer, plain.Flatten):
        return [("", "nn.Flatten()")]
    if isinstance(layer, plain.Dropout):
        return [("", f"nn.Dropout({layer.rate!r})")]
    if isinstance(layer, plain.Pad):
        return [("", _pad(layer.begin, layer.end, "0.0"))]
    if isinstance(layer, plain.BatchNorm):
        # PyTorch's momentum is the weight of the new value.
        momentum = "" if layer.momentum is None else f", momentum={1.0 - layer.momentum!r}"
        return [("", f"nn.BatchNorm{max(dims, 1)}d({shape[0]}, eps={layer.epsilon!r}{momentum})")]
    if isinstance(layer, plain.LocalResponseNorm) and layer.region == "within_channel":
        values = f"{dims}, {layer.size}, alpha={layer.alpha_sum!r}, beta={layer.beta!r}, k={layer.k!r}"
        return [("", f"SpatialResponseNorm({values})")]
    if isinstance(layer, plain.LocalResponseNorm):
        # PyTorch divides its alpha by the size.
        alpha = layer.alpha_sum * layer.size
        return [("", f"nn.LocalResponseNorm({layer.size}, alpha={alpha!r}, beta={layer.beta!r}, k={layer.k!r})")]
    raise refused(layer.name, f"no module of PyTorch is known for {type(layer).__name__}")


def _pool(layer: plain.Pool, shape: plain.Shape) -> list[tuple[str, str]]:
    dims, window = len(shape) - 1, f"{layer.kernel}, {layer.stride}"
    begin, ceil = layer.pad_begin, layer.round_mode == "ceil"
    if begin == layer.pad_end and all(2 * pad <= size for pad, size in zip(begin, layer.kernel, strict=True)):
        if layer.kind == "max":
            return [("", f"nn.MaxPool{dims}d({window}, {begin}, ceil_mode={ceil})")]
        counted = f"count_include_pad={layer.count_include_pad}"
        return [("", f"nn.AvgPool{dims}d({window}, {begin}, ceil_mode={ceil}, {counted})")]
    ends, lengths = pool_windows(layer, shape)
    if layer.kind == "max":
        return [("_pad", _pad(begin, ends, 'float("-inf")')), ("", f"nn.MaxPool{dims}d({window})")]
    average = f"CountedAverage({window}, {lengths})" if uneven(layer, lengths) else f"nn.AvgPool{dims}d({window})"
    return [("_pad", _pad(begin, ends, "0.0")), ("", average)]


def _pad(begin: plain.Shape, end: plain.Shape, value: str) -> str:
    # Last dimension first, as PyTorch wants it.
    amounts = tuple(amount for pair in reversed(list(zip(begin, end, strict=True))) for amount in pair)
    return f"nn.ConstantPad{len(begin)}d({amounts}, {value})"
