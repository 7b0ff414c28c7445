"""Reads a pair of IDX files of unsigned bytes, as MNIST is distributed, into a sample sink.

Format: two zero bytes, the type code (0x08, unsigned byte), the number of axes, each axis as a
big-endian 32-bit integer, then the values in C order. Either file may be gzip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import DataError, listing
from .info import ImportOptions
from .npy import CHUNK_BYTES
from .reading import ReadResult, StartSink
from .shapes import check_size, times
from .source import Progress, Source, chunks, first_bytes, reading, regular_file

UBYTE = 0x08
TYPES = {
    0x09: "signed byte",
    0x0B: "16-bit integer",
    0x0C: "32-bit integer",
    0x0D: "float32",
    0x0E: "float64",
}
IMAGES_NAME = re.compile(r"(?P<start>.*)images(?P<middle>[-.]idx)3(?P<end>-ubyte(\.gz)?)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class IdxHeader:
    """Axes of an IDX file of unsigned bytes, and how many bytes the header takes."""

    shape: tuple[int, ...]
    length: int


def looks_idx(start: bytes) -> bool:
    """Whether these first bytes can be an IDX file of one type or another."""
    return len(start) >= 4 and start[:2] == b"\0\0" and start[2] in (UBYTE, *TYPES) and 1 <= start[3] <= 4


def is_images_file(path: Path) -> bool:
    """Whether the name is that of the images half of a pair: ``train-images-idx3-ubyte``, also .gz."""
    return IMAGES_NAME.match(path.name) is not None


def find_pair(path: Path) -> tuple[Path, Path]:
    """(images, labels) of a folder with one pair, or of an images file.

    Raises:
        DataError: no labels beside the images, or several pairs in the folder.
    """
    with reading(path):
        if path.is_dir():
            found = sorted(entry for entry in path.iterdir() if is_images_file(entry))
            if len(found) != 1:
                names = listing([entry.name for entry in found]) or "none"
                message = f"one IDX images file is needed in the folder, found {names}; name the file"
                raise DataError(path.name, message)
            path = found[0]
    regular_file(path)
    match = IMAGES_NAME.match(path.name)
    if match is None:
        hint = "; this seems to be the labels file" if "label" in path.name.lower() else ""
        raise DataError(path.name, f"an IDX images file is named like train-images-idx3-ubyte{hint}")
    plain = f"{match['start']}labels{match['middle']}1-ubyte"
    options = [path.with_name(name) for name in (plain + (match[4] or ""), plain, plain + ".gz")]
    for labels in options:
        with reading(labels):
            if labels.exists():
                return path, regular_file(labels)
    raise DataError(path.name, f"its labels file {options[0].name} is not beside it")


def read_idx(source: Source, options: ImportOptions, start: StartSink, progress: Progress) -> ReadResult:
    """Read images (N, H, W) or (N, C, H, W) and labels (N,) of unsigned bytes.

    Raises:
        DataError: a wrong magic number, length or shape; numbers of images and labels that differ.
    """
    images, labels = source.files
    header, label_header = _header(images, (3, 4)), _header(labels, (1,))
    if header.shape[0] != label_header.shape[0]:
        raise DataError(
            images.name, f"holds {header.shape[0]} images, {labels.name} holds {label_header.shape[0]} labels"
        )
    shape = header.shape[1:] if len(header.shape) == 4 else (1, *header.shape[1:])
    if options.shape is not None and math.prod(options.shape) == math.prod(shape):
        shape = options.shape
    if options.shape is not None and options.shape != shape:
        raise DataError("data.shape", f"{times(options.shape)} was stated, {images.name} has {times(shape)}")
    check_size(shape, images.name)
    raw = b"".join(_payload(labels, label_header, 1, lambda done, total: None))
    numbers = np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
    sink = start(shape)
    per_sample = math.prod(shape)
    for data in _payload(images, header, per_sample, progress):
        block = np.frombuffer(data, dtype=np.uint8).reshape(-1, per_sample)
        sink.add(block, numbers[sink.samples : sink.samples + len(block)])
    return ReadResult(sink, f"{images.name} and {labels.name} (IDX, {times(header.shape)})", None)


def _header(path: Path, axes: tuple[int, ...]) -> IdxHeader:
    start = first_bytes(path, 20)
    shown = start[:4].hex(" ")
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in (UBYTE, *TYPES):
        raise DataError(path.name, f"is not an IDX file: it starts with {shown}", value=shown)
    if start[2] != UBYTE:
        message = f"holds {TYPES[start[2]]} values; unsigned bytes (type 08) are read"
        raise DataError(path.name, message, value=shown)
    if start[3] not in axes:
        wanted = " or ".join(str(n) for n in axes)
        message = f"has {start[3]} axes (it starts with {shown}); {wanted} needed"
        raise DataError(path.name, message, value=shown)
    length = 4 + 4 * start[3]
    if len(start) < length:
        raise DataError(path.name, "is cut short in its header")
    shape = tuple(int.from_bytes(start[at : at + 4], "big") for at in range(4, length, 4))
    return IdxHeader(shape, length)


def _payload(path: Path, header: IdxHeader, per_sample: int, progress: Progress) -> Iterator[bytes]:
    """The values in whole samples, checked to be exactly as many as the header says."""
    size = max(per_sample, CHUNK_BYTES // per_sample * per_sample)
    expected = math.prod(header.shape)
    held, seen, skip = b"", 0, header.length
    for chunk in chunks(path, progress, size):
        chunk = held + chunk[skip:]
        skip = 0
        whole = len(chunk) // per_sample * per_sample
        seen += whole
        if seen > expected:
            break
        held = chunk[whole:]
        if whole:
            yield chunk[:whole]
    if seen != expected or held:
        found = f"more than {expected}" if seen > expected or seen == expected else str(seen + len(held))
        raise DataError(path.name, f"its header announces {expected} values, the file holds {found}")
