"""Streams the images and labels of an npz file into a sample sink, without pickle.

Members are decompressed in blocks and never held whole. A member in Fortran order cannot be read in
blocks of samples, so it is first unpacked into a temporary file and mapped.
"""

from __future__ import annotations

import math
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .cache import writing
from .errors import DataError, listing
from .info import Finding, ImportOptions
from .npy import CHUNK_BYTES
from .reading import ReadResult, StartSink
from .shapes import check_size, infer_shape, times
from .source import Progress, Source, reading

# Usual names, in the order in which they are looked for.
PAIRS = (("x_train", "y_train"), ("images", "labels"), ("x", "y"), ("data", "target"), ("x_test", "y_test"))
CHANNELS = (1, 3, 4)
HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Member:
    """One array of the file: name, and what its header says."""

    key: str
    file: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


def read_npz(source: Source, options: ImportOptions, start: StartSink, progress: Progress) -> ReadResult:
    """Read the one file of ``source``.

    Images are (N, H, W, C), (N, C, H, W), (N, H, W) or flat (N, P); labels are (N,), (N, 1), or one-hot
    (N, K) when that was declared.

    Raises:
        DataError: missing or object arrays, damaged data, an ambiguous layout, values not finite.
    """
    path, name = source.files[0], source.name
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            images, labels = _choose(_members(archive, name), name)
            check_size(images.shape[1:], name)
            check_size(labels.shape[1:], name)
            shape, to_flat = _layout(images, options, name)
            raw = _labels(archive, labels, images.shape[0], options, name)
            sink = start(shape)
            for first, block in _blocks(archive, images, name):
                _check_finite(block, first, images.key, name)
                sink.add(to_flat(block), raw[first : first + len(block)])
                progress(first + len(block), images.shape[0])
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError) as error:
        raise DataError(name, f"the npz file is damaged or cut short ({error})") from None
    text = f"{name} (npz, {images.key} {times(images.shape)} {images.dtype.name}, {labels.key})"
    other = [f"{a} and {b}" for a, b in PAIRS if a != images.key and f"{a}.npy" in archive.namelist()]
    warnings: tuple[Finding, ...] = ()
    if other:
        message = f"{name} also holds {listing(other)}, which were not read"
        warnings = (Finding("info", "npz_other_arrays", message),)
    return ReadResult(sink, text, None, warnings)


def _members(archive: zipfile.ZipFile, name: str) -> dict[str, Member]:
    members = {}
    for file in archive.namelist():
        if file.endswith(".npy"):
            with archive.open(file) as stream:
                member = _header(stream, file, name)
            members[member.key.casefold()] = member
    return members


def _header(stream: IO[bytes], file: str, name: str) -> Member:
    key = file.removesuffix(".npy")
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran, dtype = HEADER_READERS[version](stream)
    except (ValueError, KeyError, SyntaxError, TypeError):
        raise DataError(name, f"array {key!r} has no valid npy header") from None
    return Member(key, file, shape, dtype, fortran)


def _choose(members: dict[str, Member], name: str) -> tuple[Member, Member]:
    for first, second in PAIRS:
        if first in members and second in members:
            images, labels = members[first], members[second]
            break
    else:
        wanted = "; ".join(f"{a} and {b}" for a, b in PAIRS)
        found = listing([member.key for member in members.values()]) or "none"
        raise DataError(name, f"no images and labels under a usual pair of names ({wanted}); found {found}")
    for member in (images, labels):
        if member.dtype.hasobject:
            message = f"array {member.key!r} holds Python objects (a pickle), which are never loaded"
            raise DataError(name, message)
        if member.dtype.kind not in "biuf":
            message = f"array {member.key!r} has dtype {member.dtype}; integers or real numbers are needed"
            raise DataError(name, message)
    if len(images.shape) < 2:
        message = f"array {images.key!r} has shape {images.shape}; an axis of samples and more are needed"
        raise DataError(name, message)
    return images, labels


def _labels(
    archive: zipfile.ZipFile, member: Member, samples: int, options: ImportOptions, name: str
) -> NDArray[np.int64]:
    """(N,) labels as they are in the file; small, so read whole."""
    shape = member.shape
    if not shape or shape[0] != samples:
        raise DataError(name, f"{samples} images and labels of shape {shape} do not belong together")
    width = math.prod(shape[1:])
    one_hot = options.labels == "onehot"
    if one_hot and (len(shape) != 2 or width < 2):
        raise DataError("data.labels", f"one-hot labels are (N, K); {member.key!r} of {name} is {shape}")
    if not one_hot and width != 1:
        message = f"{member.key!r} of {name} has shape {shape} where ({samples},) is needed"
        if len(shape) == 2:
            message += "; declare `labels: onehot` if each row holds a single 1 among zeros"
        raise DataError("data.labels", message)
    # Not allocated by the header's word, which may be damaged.
    out = [np.empty(0, dtype=np.int64)]
    for first, block in _blocks(archive, member, name):
        _check_finite(block, first, member.key, name)
        rows = block.reshape(len(block), -1)
        if one_hot:
            wrong = ~(((rows == 0) | (rows == 1)).all(axis=1) & (rows.sum(axis=1) == 1))
            reason, part = "is not a single 1 among zeros", rows.argmax(axis=1)
        else:
            part = rows[:, 0]
            wrong = part != np.floor(part)
            if options.labels != "map" and options.label_values is None:
                wrong = wrong | (part < 0)
            reason = "is not an integer from 0 up"
        if wrong.any():
            row = int(wrong.argmax())
            value = f"{rows[row].tolist() if one_hot else rows[row, 0]}"
            message = f"label {value} of sample {first + row + 1} {reason}"
            raise DataError(name, message, row=first + row + 1, column=member.key, value=value)
        out.append(part.astype(np.int64))
    return np.concatenate(out)


def _blocks(archive: zipfile.ZipFile, member: Member, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """(index of the first sample, samples in native byte order) of a member in blocks of about 1 MiB."""
    samples, rest = member.shape[0], member.shape[1:]
    per_sample = math.prod(rest) * member.dtype.itemsize
    step = max(1, CHUNK_BYTES // per_sample)
    with ExitStack() as stack:
        stream = stack.enter_context(archive.open(member.file))
        _header(stream, member.file, name)
        mapped = None
        if member.fortran:
            spool = stack.enter_context(tempfile.TemporaryFile())
            with writing():
                while chunk := stream.read(CHUNK_BYTES):
                    spool.write(chunk)
                spool.flush()
            if spool.tell() != samples * per_sample:
                raise DataError(name, f"array {member.key!r} is cut short")
            mapped = np.memmap(spool, dtype=member.dtype, mode="r", shape=member.shape, order="F")
        for first in range(0, samples, step):
            count = min(step, samples - first)
            if mapped is not None:
                block = np.ascontiguousarray(mapped[first : first + count])
            else:
                data = stream.read(count * per_sample)
                if len(data) != count * per_sample:
                    raise DataError(name, f"array {member.key!r} is cut short")
                block = np.frombuffer(data, dtype=member.dtype).reshape(count, *rest)
            yield first, block.astype(member.dtype.newbyteorder("="), copy=False)
        if mapped is None and stream.read(1):
            raise DataError(name, f"array {member.key!r} is longer than its header says")


def _check_finite(block: NDArray[Any], first: int, key: str, name: str) -> None:
    if block.dtype.kind != "f":
        return
    wide = block.astype(np.float64, copy=False)
    wrong = ~(np.abs(wide) <= FLOAT32_MAX)
    if wrong.any():
        index = np.unravel_index(int(wrong.argmax()), block.shape)
        value = f"{wide[index]:g}"
        sample = first + int(index[0]) + 1
        place = ", ".join(str(int(i)) for i in index[1:])
        message = f"array {key!r}, sample {sample}, index ({place}): {value} is not a finite float32"
        raise DataError(name, message, row=sample, column=f"{key}[{place}]", value=value)


class _Flatten:
    """Samples of one layout as (n, P) in the order C, H, W."""

    def __init__(self, axes: tuple[int, ...] | None = None) -> None:
        self.axes = axes

    def __call__(self, block: NDArray[Any]) -> NDArray[Any]:
        if self.axes is not None:
            block = block.transpose(self.axes)
        return np.ascontiguousarray(block).reshape(len(block), -1)


def _layout(images: Member, options: ImportOptions, name: str) -> tuple[tuple[int, ...], _Flatten]:
    """(sample shape as (C, H, W), how to bring a block there)."""
    rest = images.shape[1:]
    if len(rest) == 3:
        last = _channels_last(rest, options, name)
        shape: tuple[int, ...] = (rest[2], rest[0], rest[1]) if last else rest
        flatten = _Flatten((0, 3, 1, 2) if last else None)
    elif len(rest) == 2 and (options.shape is None or len(options.shape) == 3):
        shape, flatten = (1, *rest), _Flatten()
    else:
        shape, flatten = infer_shape(math.prod(rest), options.shape), _Flatten()
    if options.shape is not None and shape != options.shape:
        raise DataError("data.shape", f"{times(options.shape)} was stated, {name} has {times(shape)}")
    return shape, flatten


def _channels_last(rest: tuple[int, ...], options: ImportOptions, name: str) -> bool:
    if options.layout is not None:
        return options.layout == "nhwc"
    first, last = rest[0] in CHANNELS, rest[2] in CHANNELS
    if options.shape is not None and first == last:
        first, last = rest == options.shape, (rest[2], rest[0], rest[1]) == options.shape
    if first != last:
        return last
    message = f"images of {name} are {times(rest)}; state `layout: nhwc` (channels last) or `layout: nchw`"
    raise DataError("data.layout", message)
