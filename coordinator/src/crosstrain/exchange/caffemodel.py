"""Caffe's weights files (``.caffemodel``): protobuf's wire format, of which only layers and arrays are read.

Field numbers are those of ``caffe.proto``: NetParameter.layer 100 (layers of the first format: 2), LayerParameter.name
1, type 2, blobs 7; BlobProto.shape 7 with dim 1, data 5, double_data 8, and the older num, channels, height,
width 1 to 4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from crosstrain_service.errors import CrosstrainError

MAX_BYTES = 2**31 - 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(data: bytes) -> dict[str, list[np.ndarray]]:
    """Arrays (float32 or float64) by layer name, of those layers that have any.

    Raises CrosstrainError (``INVALID_WEIGHTS``) for a file that is truncated or no caffemodel.
    """
    if len(data) > MAX_BYTES:
        raise _wrong(f"the file is longer than {MAX_BYTES} bytes")
    found: dict[str, list[np.ndarray]] = {}
    layers = 0
    for number, value in _fields(memoryview(data)):
        if number == 2:
            raise _wrong(
                "the file has the first format; Caffe's upgrade_net_proto_binary turns it into the present one"
            )
        if number == 100:
            layers += 1
            name, blobs = _layer(_message(value))
            if blobs:
                found[name] = blobs
    if not layers:
        raise _wrong("the file holds no layers: it is no caffemodel")
    return found


def _wrong(message: str) -> CrosstrainError:
    return CrosstrainError("INVALID_WEIGHTS", message, "caffemodel")


def _message(value: object) -> memoryview:
    if not isinstance(value, memoryview):
        raise _wrong("the file is no caffemodel: a field has another type")
    return value


def _layer(data: memoryview) -> tuple[str, list[np.ndarray]]:
    name, blobs = "", []
    for number, value in _fields(data):
        if number == 1:
            name = bytes(_message(value)).decode("utf-8", "replace")
        elif number == 7:
            blobs.append(_blob(_message(value), name))
    return name, blobs


def _blob(data: memoryview, layer: str) -> np.ndarray:
    shape: list[int] = []
    old = [0, 0, 0, 0]
    parts: list[np.ndarray] = []
    for number, value in _fields(data):
        if number in (1, 2, 3, 4) and isinstance(value, int):
            old[number - 1] = value
        elif number == 7:
            shape = _dims(_message(value))
        elif number in (5, 8):
            kind = "<f4" if number == 5 else "<f8"
            if isinstance(value, float):
                parts.append(np.array([value], kind))
                continue
            packed = _message(value)
            if len(packed) % np.dtype(kind).itemsize:
                raise _wrong(f"an array of layer {layer!r} is cut off")
            parts.append(np.frombuffer(packed, kind))
    values = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    shape = shape or (old if any(old) else [len(values)])
    expected = 1
    for size in shape:
        expected *= size
    if expected != len(values):
        raise _wrong(f"an array of layer {layer!r} has {len(values)} values for the shape {tuple(shape)}")
    return values.reshape(shape)


def _dims(data: memoryview) -> list[int]:
    dims: list[int] = []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            dims.append(value)
        elif number == 1:
            packed, at = _message(value), 0
            while at < len(packed):
                size, at = _varint(packed, at)
                dims.append(size)
    if len(dims) > 32 or any(size > MAX_BYTES for size in dims):
        raise _wrong("the shape of an array is absurd")
    return dims


def _fields(data: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise _wrong("the file is no caffemodel: it holds a field of an unknown kind")
        if size > len(data) - at:
            raise _wrong("the file is cut off, or no caffemodel")
        part = data[at : at + size]
        at += size
        if kind == _BYTES:
            yield number, part
        else:
            yield number, struct.unpack("<f" if size == 4 else "<d", part)[0]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _wrong("the file is cut off, or no caffemodel")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _wrong("the file is no caffemodel: a number is too long")


def write(name: str, layers: Mapping[str, tuple[str, Sequence[np.ndarray]]]) -> bytes:
    """A caffemodel of layers (type and float32 arrays by name), in the given order."""
    parts = [_string(1, name)]
    for layer, (kind, blobs) in layers.items():
        body = [_string(1, layer), _string(2, kind)]
        for blob in blobs:
            dims = b"".join(_encoded(size) for size in blob.shape)
            shape = _delimited(7, _delimited(1, dims))
            values = _delimited(5, np.ascontiguousarray(blob, "<f4").tobytes())
            body.append(_delimited(7, shape + values))
        parts.append(_delimited(100, b"".join(body)))
    return b"".join(parts)


def _string(number: int, text: str) -> bytes:
    return _delimited(number, text.encode("utf-8"))


def _delimited(number: int, data: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(data)) + data


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
