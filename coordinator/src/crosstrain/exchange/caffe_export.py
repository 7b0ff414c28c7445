"""A model and canonical weights as Caffe's ``deploy.prototxt`` and ``.caffemodel``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from crosstrain_service import model as plain

from . import caffemodel
from .exporting import refused, taken


def export_caffe(model: plain.Model, weights: Mapping[str, np.ndarray]) -> tuple[str, bytes]:
    """Prototxt (from the input ``data`` to the logits) and caffemodel.

    ``weights`` are canonical and checked (``weights.check_weights``); without batch norm statistics predictions
    in Caffe would divide by zero, so they are needed. Raises CrosstrainError (``INVALID_MODEL``,
    ``INVALID_WEIGHTS``) naming a layer that one layer of Caffe cannot express.
    """
    shape = model.input_shape if len(model.input_shape) == 3 else (model.input_shape[0], 1, model.input_shape[1])
    lines = [f"name: {json.dumps(model.name)}"]
    dims = " ".join(f"dim: {size}" for size in (1, *shape))
    lines.append(f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}')
    held: dict[str, tuple[str, Sequence[np.ndarray]]] = {}
    bottom = "data"
    inputs = model.input_shapes()
    for layer in model.layers:
        for name, top, kind, settings, blobs in _layers(layer, bottom, weights, len(inputs[layer.name]) == 2):
            text = f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" top: "{top}" {settings}'
            lines.append(text.rstrip() + " }")
            if blobs:
                held[name] = (kind, blobs)
            bottom = top
    return "\n".join(lines) + "\n", caffemodel.write(model.name, held)


Part = tuple[str, str, str, str, list[np.ndarray]]


def _layers(layer: plain.Layer, bottom: str, weights: Mapping[str, np.ndarray], line: bool) -> list[Part]:
    """(name, output, type, settings, arrays) of Caffe's layers for one layer; ``line``: one dimension."""
    name = layer.name
    if name == "data":
        raise refused(name, "the name is that of the input in the prototxt; rename the layer")
    if isinstance(layer, plain.Convolution):
        settings = f"num_output: {layer.out_channels} bias_term: {_truth(layer.bias)} {_window(layer)}"
        blobs = taken(weights, name, ("weight", "bias") if layer.bias else ("weight",))
        if line:
            blobs[0] = blobs[0][:, :, None, :]
        return [(name, name, "Convolution", f"convolution_param {{ {settings} }}", blobs)]
    if isinstance(layer, plain.Pool):
        padded = any(layer.pad_begin)
        if layer.kind == "average" and padded and not layer.count_include_pad:
            raise refused(name, "Caffe counts padding in averages")
        kind = {"max": "MAX", "average": "AVE"}[layer.kind]
        settings = f"pool: {kind} round_mode: {layer.round_mode.upper()} {_window(layer)}"
        return [(name, name, "Pooling", f"pooling_param {{ {settings} }}", [])]
    if isinstance(layer, plain.Dense):
        settings = f"inner_product_param {{ num_output: {layer.units} bias_term: {_truth(layer.bias)} }}"
        blobs = taken(weights, name, ("weight", "bias") if layer.bias else ("weight",))
        return [(name, name, "InnerProduct", settings, blobs)]
    if isinstance(layer, plain.Dropout):
        return [(name, name, "Dropout", f"dropout_param {{ dropout_ratio: {layer.rate!r} }}", [])]
    if isinstance(layer, plain.BatchNorm):
        epsilon = "" if layer.epsilon is None else f"batch_norm_param {{ eps: {layer.epsilon!r} }}"
        statistics = [*taken(weights, name, ("running_mean", "running_var")), np.ones(1, np.float32)]
        inner = f"{name}.normalised"
        return [
            (inner, inner, "BatchNorm", epsilon, statistics),
            (name, name, "Scale", "scale_param { bias_term: true }", taken(weights, name, ("gamma", "beta"))),
        ]
    if isinstance(layer, plain.LocalResponseNorm):
        return [(name, name, "LRN", f"lrn_param {{ {_response_norm(layer)} }}", [])]
    if isinstance(layer, plain.Pad):
        raise refused(name, "Caffe has no padding layer")
    return [(name, name, {plain.Relu: "ReLU", plain.Flatten: "Flatten"}[type(layer)], "", [])]


def _response_norm(layer: plain.LocalResponseNorm) -> str:
    # Caffe divides its alpha by the number of elements of the window.
    if layer.region == "across_channels":
        return f"local_size: {layer.size} alpha: {layer.alpha_sum * layer.size!r} beta: {layer.beta!r} k: {layer.k!r}"
    if layer.k != 1:
        raise refused(layer.name, f"k is {layer.k!r}, but Caffe adds 1 within a channel")
    # A square also over lines, which are images of height 1. The engine since cuDNN has another implementation.
    values = f"local_size: {layer.size} alpha: {layer.alpha_sum * layer.size**2!r} beta: {layer.beta!r}"
    return f"norm_region: WITHIN_CHANNEL {values} engine: CAFFE"


def _window(layer: plain.Convolution | plain.Pool) -> str:
    if layer.pad_begin != layer.pad_end:
        raise refused(layer.name, "Caffe pads the same before and after")
    fields = (("kernel", layer.kernel, 1), ("stride", layer.stride, 1), ("pad", layer.pad_begin, 0))
    parts = []
    for field, sizes, fill in fields:
        high, wide = (fill, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
        parts.append(f"{field}_h: {high} {field}_w: {wide}")
    return " ".join(parts)


def _truth(value: bool) -> str:
    return "true" if value else "false"
