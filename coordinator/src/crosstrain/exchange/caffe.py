"""Caffe's files as a model, a job and canonical weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosstrain_service import model as plain
from crosstrain_service import weights as canonical
from crosstrain_service.errors import CrosstrainError

from . import caffemodel
from .caffe_net import Imported, import_net
from .caffe_solver import import_solver

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class CaffeImport:
    """A model with the ``training`` of its job document, canonical weights (None without a file), and remarks."""

    model: plain.Model
    training: dict[str, Any]
    divisor: float
    weights: Arrays | None
    remarks: tuple[str, ...]


def import_caffe(
    net: str,
    solver: str,
    weights: bytes | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    ignore_rates: bool = False,
) -> CaffeImport:
    """Reads a network, its solver and perhaps its weights.

    Raises CrosstrainError (``INVALID_MODEL``, ``INVALID_WEIGHTS``) naming the layer, line or array.
    """
    found = import_net(net, input_shape)
    training = import_solver(solver, found.multipliers, ignore_rates)
    training["batch_size"] = found.batch_size or 64
    remarks = list(found.remarks)
    if "adam" in training["optimizer"]:
        remarks.append(
            "Caffe adds Adam's delta to the uncorrected root; the job has the same value as epsilon, beside the "
            "corrected root in canonical semantics, and as Caffe's own delta in native semantics"
        )
    if found.multipliers.rates and any(rate != 1 for rate in found.multipliers.rates.values()):
        remarks.append("lr_mult was ignored: every parameter is trained with the same learning rate")
    if not found.batch_size:
        remarks.append("the network does not tell the batch size; 64 was taken")
    arrays = None if weights is None else import_weights(weights, found)
    return CaffeImport(found.model, training, found.divisor, arrays, tuple(remarks))


def import_weights(data: bytes, found: Imported) -> Arrays:
    """Canonical parameters and batch norm statistics of an imported network from a caffemodel.

    Raises CrosstrainError (``INVALID_WEIGHTS``) naming the layer that is missing or has other shapes.
    """
    blobs = caffemodel.read(data)
    arrays: Arrays = {}
    shapes = {**found.model.parameter_shapes(), **found.model.statistics_shapes()}
    for name, shape in shapes.items():
        layer, part = name.rsplit(".", 1)
        sources = found.sources[layer]
        source = sources[0] if part.startswith("running") else sources[-1]
        place = {"weight": 0, "bias": 1, "gamma": 0, "beta": 1, "running_mean": 0, "running_var": 1}[part]
        held = blobs.get(source, [])
        if len(held) <= place:
            raise CrosstrainError("INVALID_WEIGHTS", f"the caffemodel has no {part} of layer {source!r}", name)
        value = _fitted(held[place], shape, source, name)
        if part.startswith("running"):
            # Caffe keeps sums and the weight they have.
            if len(held) < 3 or held[2].size != 1:
                raise CrosstrainError("INVALID_WEIGHTS", f"layer {source!r} lacks the weight of its statistics", name)
            weight = float(held[2].reshape(-1)[0])
            value = value * np.float32(1 / weight if weight else 0)
        arrays[name] = np.ascontiguousarray(value, dtype=np.float32)
    checked, statistics = canonical.check_weights(arrays, found.model)
    return {**checked, **statistics}


def _fitted(value: np.ndarray, shape: plain.Shape, source: str, name: str) -> np.ndarray:
    if value.shape == shape:
        return value
    # Older files write all shapes with four dimensions, ones first.
    if value.ndim == 4 and value.shape == (1,) * (4 - len(shape)) + tuple(shape):
        return value.reshape(shape)
    message = f"layer {source!r} has an array of shape {value.shape} where the network needs {tuple(shape)}"
    raise CrosstrainError("INVALID_WEIGHTS", message, name)


def model_text(model: plain.Model) -> str:
    """A model document (YAML): name and layers."""
    lines = [f"name: {json.dumps(model.name)}", "layers:"]
    lines += [f"  - {json.dumps(_document(layer))}" for layer in model.layers]
    return "\n".join(lines) + "\n"


def job_text(found: CaffeImport, model_file: str, weights_digest: str = "") -> str:
    """A job document (YAML) for an imported network; the data's paths are to be filled in."""
    data: dict[str, Any] = {"train": "train.csv", "test": "test.csv"}
    if found.divisor != 1.0:
        data["divisor"] = found.divisor
    document: dict[str, Any] = {"name": found.model.name, "model": model_file, "data": data}
    document["training"] = found.training
    norms = [layer for layer in found.model.layers if isinstance(layer, plain.BatchNorm)]
    if any(layer.momentum is not None for layer in norms):
        # Caffe's weight of the old statistics has a meaning in native semantics only.
        document["semantics"] = "native"
    document["engines"] = ["caffe", "torch"]
    if weights_digest:
        document["initial_weights"] = weights_digest
    remarks = [f"# {remark}" for remark in found.remarks]
    if weights_digest:
        remarks.append("# The initial weights must be stored: crosstrain evaluate JOB --weights weights.safetensors")
    shape = "x".join(map(str, found.model.input_shape))
    head = [f"# Imported from Caffe. Samples have the shape {shape}, classes: {found.model.classes}.", *remarks]
    return "\n".join([*head, *(f"{key}: {json.dumps(value)}" for key, value in document.items())]) + "\n"


def _document(layer: plain.Layer) -> dict[str, Any]:
    settings: dict[str, Any] = {"name": layer.name}
    kind = type(layer).__name__
    if isinstance(layer, (plain.Convolution, plain.Pool)):
        settings |= {"kernel": list(layer.kernel), "stride": list(layer.stride)}
        begin, end = list(layer.pad_begin), list(layer.pad_end)
        settings["padding"] = begin if begin == end else {"begin": begin, "end": end}
    if isinstance(layer, plain.Convolution):
        return {"convolution": {**settings, "channels": layer.out_channels, "bias": layer.bias}}
    if isinstance(layer, plain.Pool):
        settings["rounding"] = layer.round_mode
        if layer.kind == "average":
            settings["count_include_pad"] = layer.count_include_pad
        return {f"{layer.kind}_pool": settings}
    if isinstance(layer, plain.Dense):
        return {"dense": {**settings, "units": layer.units, "bias": layer.bias}}
    if isinstance(layer, plain.Dropout):
        return {"dropout": {**settings, "rate": layer.rate}}
    if isinstance(layer, plain.BatchNorm):
        given: Mapping[str, Any] = {"epsilon": layer.epsilon, "momentum": layer.momentum}
        return {"batch_norm": {**settings, **{key: value for key, value in given.items() if value is not None}}}
    if isinstance(layer, plain.LocalResponseNorm):
        values = {"size": layer.size, "alpha_sum": layer.alpha_sum, "beta": layer.beta, "k": layer.k}
        if layer.region != "across_channels":
            settings["region"] = layer.region
        return {"local_response_norm": {**settings, **values}}
    if isinstance(layer, plain.Pad):
        return {"pad": {**settings, "padding": {"begin": list(layer.begin), "end": list(layer.end)}}}
    return {kind.lower(): settings}
