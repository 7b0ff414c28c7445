"""A model and canonical weights as a Keras model: Python source and an npz file in Keras's own layouts.

Keras holds samples with channels last: kernels OIHW become HWIO (OIL: LIO), dense weights (out, in) become
(in, out), and values are flattened in the order H, W, C. Where a dense layer follows a flatten (perhaps after
layers that work on each value alone), the rows of its weight are permuted here; anywhere else the network
permutes before it flattens.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from crosstrain_service import model as plain

from .exporting import Arrays, Export, constants, heading, pool_windows, prepared, refused, uneven, unused

SOURCE, WEIGHTS = "network.py", "weights.npz"
_LAST = 'data_format="channels_last"'
_PARTS = {
    "weight": "kernel", "bias": "bias", "gamma": "gamma", "beta": "beta",
    "running_mean": "moving_mean", "running_var": "moving_variance",
}  # fmt: skip

_CLASSES = {
    "LowestPadding": '''

class LowestPadding(keras.layers.Layer):
    """Pads with minus infinity, which no maximum takes. ``pads``: (begin, end) per dimension."""

    def __init__(self, pads, **options):
        super().__init__(**options)
        self.pads = [list(pair) for pair in pads]

    def call(self, x):
        return tf.pad(x, [[0, 0], *self.pads, [0, 0]], constant_values=float("-inf"))

    def get_config(self):
        return {**super().get_config(), "pads": self.pads}
''',
    "WindowScale": '''

class WindowScale(keras.layers.Layer):
    """Turns averages over the kernel into averages over the elements that each window counts.

    ``kernel``: its size per dimension; ``lengths``: per dimension, the elements that each window counts.
    """

    def __init__(self, kernel, lengths, **options):
        super().__init__(**options)
        self.kernel = list(kernel)
        self.lengths = [list(row) for row in lengths]

    def call(self, x):
        scale = np.ones(())
        for size, row in zip(self.kernel, self.lengths):
            scale = scale[..., np.newaxis] * (size / np.array(row))
        return x * tf.constant(scale[..., np.newaxis], x.dtype)

    def get_config(self):
        return {**super().get_config(), "kernel": self.kernel, "lengths": self.lengths}
''',
    "LocalResponseNorm": '''

class LocalResponseNorm(keras.layers.Layer):
    """x / (k + alpha * sum of x^2) ** beta, the sum over ``size`` neighbouring channels."""

    def __init__(self, size, alpha, beta, k, **options):
        super().__init__(**options)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def call(self, x):
        y = x if len(x.shape) == 4 else tf.expand_dims(x, 1)
        y = tf.nn.local_response_normalization(y, self.size // 2, self.k, self.alpha, self.beta)
        return y if len(x.shape) == 4 else tf.squeeze(y, 1)

    def get_config(self):
        own = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}
        return {**super().get_config(), **own}
''',
    "SpatialResponseNorm": '''

class SpatialResponseNorm(keras.layers.Layer):
    """x / (k + alpha * sum of x^2) ** beta, the sum over ``size`` positions per dimension of a channel."""

    def __init__(self, size, alpha, beta, k, **options):
        super().__init__(**options)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def call(self, x):
        dims = len(x.shape) - 2
        around = [[self.size // 2, self.size // 2]] * dims
        squares = tf.pad(tf.square(x), [[0, 0], *around, [0, 0]])
        pool = (tf.nn.avg_pool1d, tf.nn.avg_pool2d)[dims - 1]
        total = self.size**dims * pool(squares, [self.size] * dims, [1] * dims, "VALID")
        return x / (self.k + self.alpha * total) ** self.beta

    def get_config(self):
        own = {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}
        return {**super().get_config(), **own}
''',
}

# Keras's registry takes a name once in some versions, so that two exports could not be used together.
_CUSTOM = '''

#: To be given to keras.models.load_model if the model is saved by Keras.
CUSTOM_OBJECTS = {{{custom}}}
'''

_LOAD = '''

def load(path=Path(__file__).with_name("{weights}")):
    """The trained model."""
    model = build_model()
    with np.load(str(path), allow_pickle=False) as arrays:
        for name, parts in PARTS.items():
            model.get_layer(name).set_weights([arrays[name + "/" + part] for part in parts])
    return model
'''


def export_keras(model: plain.Model, weights: Mapping[str, np.ndarray], divisor: float | None = None) -> Export:
    """Source with ``build_model()`` and ``load()`` for Keras 2 and 3 on TensorFlow, and its arrays (float32) as npz.

    ``weights`` are canonical, batch norm statistics included; ``divisor`` of the data is told in the docstring.
    Arrays are called ``layer/kernel``, ``layer/bias``, ``layer/gamma``, ``layer/beta``, ``layer/moving_mean`` and
    ``layer/moving_variance``. Raises CrosstrainError (``INVALID_MODEL``, ``INVALID_WEIGHTS``) naming the layer or
    the array.
    """
    arrays = _arranged(model, prepared(model, weights))
    used = {layer.name for layer in model.layers}
    shape = (*model.input_shape[1:], model.input_shape[0])
    lines = [f'        keras.Input(INPUT_SHAPE, name="{unused("input", used)}"),\n']
    used.add(unused("input", used))
    rows = _flattened(model)
    for layer, entry in zip(model.layers, model.input_shapes().values(), strict=True):
        direct = layer.name in rows.values() or not _mixed(entry)
        for suffix, text in _layers(layer, entry, direct):
            name = unused(layer.name + suffix, used) if suffix else layer.name
            used.add(name)
            comma = "" if text.endswith("()") else ", "
            lines.append(f'        {text[:-1]}{comma}name="{name}"),\n')
    body = "".join(lines)
    classes = "".join(text for name, text in _CLASSES.items() if f" {name}(" in body)
    custom = ", ".join(f'"{name}": {name}' for name in _CLASSES if f" {name}(" in body)
    parts: dict[str, list[str]] = {}
    for key in arrays:
        layer_name, part = key.split("/")
        parts.setdefault(layer_name, []).append(part)
    held = "".join(f'    "{name}": {tuple(found)!r},\n' for name, found in parts.items())
    source = (
        f"{heading(model, 'Keras model', shape, 'channels last', divisor)}\n"
        "from pathlib import Path\n\nimport numpy as np\n"
        f"{'import tensorflow as tf' + chr(10) if classes else ''}"
        "from tensorflow import keras\n\n"
        f"{constants(model, shape, divisor)}"
        "#: The arrays of each layer, in the order of set_weights.\n"
        f"PARTS = {{\n{held}}}\n"
        f"{classes}"
        f"{_CUSTOM.format(custom=custom) if custom else ''}"
        "\n\ndef build_model():\n"
        f'    """From {shape!r} per sample to {model.classes} logits; weights are Keras\'s initial ones."""\n'
        f"    return keras.Sequential([\n{body}    ])\n"
        f"{_LOAD.format(weights=WEIGHTS)}"
    )
    buffer = io.BytesIO()
    values: dict[str, Any] = dict(arrays)
    np.savez(buffer, **values)
    return Export(source, buffer.getvalue())


def _mixed(shape: plain.Shape) -> bool:
    """Whether flattening channels last differs from flattening channels first."""
    return len(shape) > 1 and shape[0] > 1 and int(np.prod(shape[1:])) > 1


def _flattened(model: plain.Model) -> dict[str, str]:
    """By dense layer whose rows are to be permuted, the flatten layer before it."""
    found = {}
    open_flatten = ""
    for layer, shape in zip(model.layers, model.input_shapes().values(), strict=True):
        if isinstance(layer, plain.Flatten) and _mixed(shape):
            open_flatten = layer.name
        elif isinstance(layer, plain.Dense):
            if open_flatten:
                found[layer.name] = open_flatten
            open_flatten = ""
        elif not isinstance(layer, (plain.Relu, plain.Dropout, plain.Flatten)):
            open_flatten = ""
    return found


def _arranged(model: plain.Model, arrays: Arrays) -> Arrays:
    """Arrays by Keras's names, in its layouts and in the order of ``set_weights``."""
    kinds = {layer.name: layer for layer in model.layers}
    inputs = model.input_shapes()
    rows = _flattened(model)
    found: dict[str, np.ndarray] = {}
    # Parameters come before statistics in both.
    for name, value in arrays.items():
        layer, part = name.rsplit(".", 1)
        if part == "weight" and isinstance(kinds[layer], plain.Convolution):
            value = np.moveaxis(value, (1, 0), (-2, -1))
        elif part == "weight" and layer in rows:
            value = value.reshape(-1, *inputs[rows[layer]])
            value = np.moveaxis(value, (1, 0), (-2, -1)).reshape(-1, len(value))
        elif part == "weight":
            value = value.T
        found[f"{layer}/{_PARTS[part]}"] = np.ascontiguousarray(value)
    return found


def _layers(layer: plain.Layer, shape: plain.Shape, direct: bool) -> list[tuple[str, str]]:
    """Suffix of the name and constructor of each Keras layer; ``shape``: the input's, (C, spatial...) or (F,).

    ``direct``: values may be flattened in Keras's own order.
    """
    dims = len(shape) - 1
    if isinstance(layer, plain.Convolution):
        pads, mode = _padding(layer, shape, tuple(zip(layer.pad_begin, layer.pad_end, strict=True)))
        window = f'{layer.kernel}, {layer.stride}, padding="{mode}", {_LAST}'
        text = f"keras.layers.Conv{dims}D({layer.out_channels}, {window}, use_bias={layer.bias})"
        return [*_zeros(pads), ("", text)]
    if isinstance(layer, plain.Pool):
        return _pool(layer, shape)
    if isinstance(layer, plain.Dense):
        return [("", f"keras.layers.Dense({layer.units}, use_bias={layer.bias})")]
    if isinstance(layer, plain.Relu):
        return [("", "keras.layers.ReLU()")]
    if isinstance(layer, plain.Flatten):
        permute = [] if direct else [("_order", f"keras.layers.Permute({(dims + 1, *range(1, dims + 1))})")]
        return [*permute, ("", f"keras.layers.Flatten({_LAST})")]
    if isinstance(layer, plain.Dropout):
        return [("", f"keras.layers.Dropout({layer.rate!r})")]
    if isinstance(layer, plain.Pad):
        return [("", _zeros(tuple(zip(layer.begin, layer.end, strict=True)))[0][1])]
    if isinstance(layer, plain.BatchNorm):
        # Keras's momentum, as ours, is the weight of the old value.
        momentum = "" if layer.momentum is None else f", momentum={layer.momentum!r}"
        return [("", f"keras.layers.BatchNormalization(epsilon={layer.epsilon!r}{momentum})")]
    if isinstance(layer, plain.LocalResponseNorm):
        values = f"{layer.size}, alpha={layer.alpha_sum!r}, beta={layer.beta!r}, k={layer.k!r}"
        kind = "SpatialResponseNorm" if layer.region == "within_channel" else "LocalResponseNorm"
        return [("", f"{kind}({values})")]
    raise refused(layer.name, f"no layer of Keras is known for {type(layer).__name__}")


Pads = tuple[tuple[int, int], ...]


def _pool(layer: plain.Pool, shape: plain.Shape) -> list[tuple[str, str]]:
    ends, lengths = pool_windows(layer, shape)
    needed = tuple(zip(layer.pad_begin, ends, strict=True))
    # "same" leaves padding out of maxima and of the average's divisor.
    ignores = layer.kind == "max" or not layer.count_include_pad
    pads, mode = _padding(layer, shape, needed) if ignores else (needed if any(map(any, needed)) else (), "valid")
    kind = "MaxPooling" if layer.kind == "max" else "AveragePooling"
    text = f'keras.layers.{kind}{len(ends)}D({layer.kernel}, {layer.stride}, padding="{mode}", {_LAST})'
    if layer.kind == "max":
        return [*([("_pad", f"LowestPadding({pads})")] if pads else []), ("", text)]
    scale = mode == "valid" and uneven(layer, lengths)
    return [*_zeros(pads), ("", text), *([("_scale", f"WindowScale({layer.kernel}, {lengths})")] if scale else [])]


def _padding(layer: plain.Convolution | plain.Pool, shape: plain.Shape, pads: Pads) -> tuple[Pads, str]:
    """Explicit padding, if any, and the mode after it. "same" pads by the least that gives n / stride outputs,
    the odd one at the end."""
    same = []
    for size, kernel, stride in zip(shape[1:], layer.kernel, layer.stride, strict=True):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        same.append((total // 2, total - total // 2))
    if not any(map(any, pads)):
        return (), "valid"
    return ((), "same") if pads == tuple(same) else (pads, "valid")


def _zeros(pads: Pads) -> list[tuple[str, str]]:
    if not pads:
        return []
    if len(pads) == 1:
        return [("_pad", f"keras.layers.ZeroPadding1D({pads[0]})")]
    return [("_pad", f"keras.layers.ZeroPadding2D({pads}, {_LAST})")]
