"""Canonical parameters: initial values, and safetensors files checked at the boundary."""

import json
import struct
from collections import OrderedDict
from typing import Dict, Iterable, Mapping, Optional, Tuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as _load
from safetensors.numpy import save as _save

from .errors import CrosstrainError
from .model import Convolution, Dense, Model

#: Version of the file format, stored in every file.
FORMAT = "crosstrain-1"
#: Largest safetensors header accepted, bytes.
MAX_HEADER = 8 << 20
_DTYPES = {"float32", "float64", "int64", "int32", "uint8"}


def initial_parameters(model: Model, seed: int) -> Dict[str, np.ndarray]:
    """The float32 tensors every engine starts from, in canonical layout.

    One NumPy ``RandomState(seed + 1)`` (a frozen generator) draws all weights in order of execution:
    ``uniform(-1, 1) * sqrt(6 / (fan_in + fan_out))`` in float64, cast to float32 (Glorot and Bengio
    2010, with fans counted over the kernel). Dense weights are drawn as (in, out) and transposed.
    Biases and betas are 0, gammas 1.
    """
    random = np.random.RandomState(seed + 1)
    inputs = model.input_shapes()
    parameters: Dict[str, np.ndarray] = OrderedDict()
    for name, shape in model.parameter_shapes().items():
        layer_name, part = name.rsplit(".", 1)
        layer = next(item for item in model.layers if item.name == layer_name)
        if part == "weight" and isinstance(layer, Convolution):
            area = int(np.prod(layer.kernel))
            limit = np.sqrt(6.0 / (area * (shape[0] + shape[1])))
            value = random.uniform(-1, 1, size=shape) * limit
        elif part == "weight" and isinstance(layer, Dense):
            limit = np.sqrt(6.0 / (inputs[layer_name][0] + layer.units))
            value = (random.uniform(-1, 1, size=shape[::-1]) * limit).T
        else:
            value = np.ones(shape) if part == "gamma" else np.zeros(shape)
        parameters[name] = np.ascontiguousarray(value, dtype="<f4")
    return parameters


def to_bytes(arrays: Mapping[str, np.ndarray], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """A safetensors file holding ``arrays`` (C order, little-endian) and string ``metadata``.

    Equal arrays and metadata give equal bytes, so that digests can be compared.
    """
    ordered = {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in arrays.items()}
    info = {"format": FORMAT}
    info.update(metadata or {})
    data = _save(ordered, metadata=info)
    if len(info) == 1:
        return data
    # The library writes several entries of metadata in a random order.
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length].decode("utf-8"), object_pairs_hook=OrderedDict)
    header["__metadata__"] = OrderedDict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, memoryview(data)[8 + length:]))


def from_bytes(data: bytes) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Arrays and metadata of a safetensors file.

    Raises ``INVALID_WEIGHTS`` if the bytes are truncated or no safetensors file.
    """
    try:
        if len(data) < 8:
            raise ValueError("only %d bytes" % len(data))
        (length,) = struct.unpack("<Q", data[:8])
        if length > min(MAX_HEADER, len(data) - 8):
            raise ValueError("header of %d bytes in a file of %d" % (length, len(data)))
        header = json.loads(data[8:8 + length].decode("utf-8"))
        arrays = _load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CrosstrainError("INVALID_WEIGHTS", "not a complete safetensors file: %s" % error) from error
    for name, value in arrays.items():
        if value.dtype.name not in _DTYPES:
            raise CrosstrainError("INVALID_WEIGHTS", "tensor %r has the type %s" % (name, value.dtype.name), name)
    metadata = header.get("__metadata__") or {}
    return arrays, {str(key): str(value) for key, value in metadata.items()}


def check(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Tuple[int, ...]],
          optional: Iterable[str] = ()) -> Dict[str, np.ndarray]:
    """The arrays named in ``shapes``, in its order, as float32 or float64.

    Raises ``INVALID_WEIGHTS`` naming the tensor that is missing (unless in ``optional``), left
    over, of another shape or type, or not finite.
    """
    optional = set(optional)
    unknown = sorted(set(arrays) - set(shapes))
    if unknown:
        raise CrosstrainError("INVALID_WEIGHTS", "the model has no parameter %r" % unknown[0], unknown[0])
    result: Dict[str, np.ndarray] = OrderedDict()
    for name, shape in shapes.items():
        if name not in arrays:
            if name in optional:
                continue
            raise CrosstrainError("INVALID_WEIGHTS", "parameter %r is missing" % name, name)
        value = arrays[name]
        if tuple(value.shape) != tuple(shape):
            raise CrosstrainError(
                "INVALID_WEIGHTS",
                "parameter %r has shape %s, the model needs %s" % (name, tuple(value.shape), tuple(shape)), name)
        if value.dtype.name not in ("float32", "float64"):
            raise CrosstrainError("INVALID_WEIGHTS", "parameter %r has the type %s" % (name, value.dtype.name), name)
        if not np.isfinite(value).all():
            raise CrosstrainError("INVALID_WEIGHTS", "parameter %r holds a value that is not finite" % name, name)
        result[name] = value
    return result


def check_weights(arrays: Mapping[str, np.ndarray], model: Model) -> Tuple[
        Dict[str, np.ndarray], Dict[str, np.ndarray]]:
    """Parameters and batch norm statistics (perhaps empty) of a weights file for ``model``.

    Raises ``INVALID_WEIGHTS`` as :func:`check` does.
    """
    parameters, statistics = model.parameter_shapes(), model.statistics_shapes()
    shapes = OrderedDict(list(parameters.items()) + list(statistics.items()))
    checked = check(arrays, shapes, optional=statistics)
    found = OrderedDict((name, value) for name, value in checked.items() if name in statistics)
    if found and len(found) != len(statistics):
        missing = next(name for name in statistics if name not in found)
        raise CrosstrainError("INVALID_WEIGHTS", "statistic %r is missing" % missing, missing)
    return OrderedDict((name, checked[name]) for name in parameters), found
