"""Decides which format a path holds and which files belong to it."""

from __future__ import annotations

from pathlib import Path

from .csv_blocks import OTHER_ENCODINGS
from .errors import DataError, listing
from .idx_reader import find_pair, is_images_file, looks_idx
from .image_reader import find_images, looks_image_folder
from .source import Source, first_bytes, is_gzip, reading, regular_file

ZIP_MAGIC = b"PK\x03\x04"
NOT_DATA = {
    b"\x89PNG": "a single PNG image; give the folder that holds one subfolder per class",
    b"\xff\xd8\xff": "a single JPEG image; give the folder that holds one subfolder per class",
    b"\x89HDF": "an HDF5 file; save the arrays as npz",
    b"PAR1": "a Parquet file; write it as CSV or npz",
    b"\x93NUMPY": "a single npy array; save images and labels together as npz",
    b"\x80": "a pickle, which is never loaded; save the arrays as npz",
    b"%PDF": "a PDF file",
}


def find_source(path: Path, stated: str | None) -> tuple[str, Source]:
    """(format, source) of what the user named.

    The stated format counts first, then the first bytes of a file or the contents of a folder; the
    suffix only decides what to complain about.

    Raises:
        DataError: missing, unreadable, or of no known format.
    """
    with reading(path):
        folder = path.is_dir()
    kind = stated or (_folder_format(path) if folder else _file_format(path))
    if kind == "images":
        if not folder:
            raise DataError(path.name, "an image folder was stated, and this is a file")
        return kind, Source(_name(path), path, find_images(path))
    if kind == "idx":
        return kind, Source(_name(path), path if folder else path.parent, find_pair(path))
    regular_file(path)
    if kind == "npz" and not first_bytes(path).startswith(ZIP_MAGIC):
        raise DataError(path.name, "is not an npz file")
    return kind, Source(_name(path), path, (path,))


def _name(path: Path) -> str:
    return path.name or path.resolve().name or "data"


def _file_format(path: Path) -> str:
    regular_file(path)
    start = first_bytes(path)
    if start.startswith(ZIP_MAGIC):
        return "npz"
    if path.suffix == ".npz":
        raise DataError(path.name, "is not an npz file")
    for magic, what in NOT_DATA.items():
        if start.startswith(magic):
            raise DataError(path.name, f"is {what}")
    if looks_idx(start):
        return "idx"
    if is_images_file(path):
        shown = start[:4].hex(" ")
        raise DataError(
            path.name, f"is not an IDX file: it starts with {shown}, not 00 00 08 03", value=shown
        )
    if b"\0" in start and start[:2] not in OTHER_ENCODINGS:
        what = "gzip data around binary data" if is_gzip(path) else "binary data"
        raise DataError(path.name, f"is {what} of no known format (CSV, npz, IDX)")
    return "csv"


def _folder_format(path: Path) -> str:
    with reading(path):
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if any(is_images_file(path / name) for name in names):
        return "idx"
    if looks_image_folder(path):
        return "images"
    csv = [name for name in names if ".csv" in name]
    if csv:
        raise DataError(_name(path), f"is a folder; name one of its files: {listing(csv, 5)}")
    raise DataError(
        _name(path), "is a folder with neither an IDX pair nor one subfolder of PNG or JPEG images per class"
    )
