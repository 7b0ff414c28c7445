"""Reads a folder with one subfolder of PNG or JPEG images per class into a sample sink."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, listing
from .info import Finding, ImportOptions
from .npy import CHUNK_BYTES
from .reading import ReadResult, StartSink
from .shapes import times
from .source import Progress, Source, reading

SUFFIXES = (".png", ".jpg", ".jpeg")
# Pillow modes that hold bytes, and the mode they are read in. Transparency is not dropped silently.
MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}


def class_folders(path: Path) -> list[Path]:
    """Subfolders in the order of their names; names that start with a dot are left out."""
    with reading(path):
        found = [entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    return sorted(found, key=lambda entry: entry.name)


def looks_image_folder(path: Path) -> bool:
    """Whether a subfolder holds a PNG or JPEG file."""
    for folder in class_folders(path):
        with reading(folder):
            if any(_is_image(file) for file in folder.iterdir()):
                return True
    return False


def find_images(path: Path) -> tuple[Path, ...]:
    """Every image of every class, in the order of the class names and then of the file names.

    Raises:
        DataError: no subfolders, or a subfolder without images.
    """
    folders = class_folders(path)
    if not folders:
        raise DataError(path.name, "has no subfolders; one per class is needed")
    files: list[Path] = []
    for folder in folders:
        with reading(folder):
            images = sorted(filter(_is_image, folder.iterdir()), key=lambda file: file.name)
        if not images:
            raise DataError(folder.name, "this class folder holds no PNG or JPEG image")
        files += images
    return tuple(files)


def read_images(source: Source, options: ImportOptions, start: StartSink, progress: Progress) -> ReadResult:
    """Read all images as (1, H, W) or (3, H, W) bytes; no image is resized or rotated.

    Raises:
        DataError: an image is damaged, or of another size or kind than the first one.
    """
    found = tuple(folder.name for folder in class_folders(source.root))
    names = options.class_names or found
    strange = [name for name in found if name not in names]
    if strange:
        message = f"{source.name} has folders of unknown classes: {listing(strange)}"
        raise DataError("data.class_names", message)
    number = {name: index for index, name in enumerate(names)}
    first = _decode(source.files[0], source.root, None)
    shape = first.shape
    if options.shape is not None and options.shape != shape:
        raise DataError("data.shape", f"{times(options.shape)} was stated, the images are {times(shape)}")
    sink = start(shape)
    per_block = max(1, CHUNK_BYTES // first.size)
    for at in range(0, len(source.files), per_block):
        files = source.files[at : at + per_block]
        block = np.stack([_decode(file, source.root, shape) for file in files]).reshape(len(files), -1)
        sink.add(block, np.array([number[file.parent.name] for file in files], dtype=np.int64))
        progress(at + len(files), len(source.files))
    text = f"{source.name} (image folder, {len(source.files)} files, {len(found)} classes)"
    return ReadResult(sink, text, names, tuple(_remarks(source)))


def _decode(path: Path, root: Path, shape: tuple[int, ...] | None) -> NDArray[np.uint8]:
    """One image as (C, H, W) uint8."""
    from PIL import Image, UnidentifiedImageError  # imported here: the other formats never need it

    name = str(path.relative_to(root))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=("PNG", "JPEG")) as image:
                if image.mode not in MODES or "transparency" in image.info:
                    message = f"its kind ({image.mode}) is not read; save it as 8-bit grey or RGB"
                    raise DataError(name, message)
                mode = MODES[image.mode]
                size = (3 if mode == "RGB" else 1, image.height, image.width)
                if shape is not None and size != shape:
                    message = f"is {times(size)} (C x H x W) where the first image is {times(shape)}"
                    raise DataError(name, message + "; all must be equal")
                values: NDArray[Any] = np.asarray(image.convert(mode), dtype=np.uint8)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(name, "has more pixels than an image for training can have") from None
    except UnidentifiedImageError:
        raise DataError(name, "is not a PNG or JPEG image") from None
    except (OSError, SyntaxError, ValueError, EOFError):
        raise DataError(name, "the image is damaged or cut short") from None
    return values.reshape(1, *values.shape) if values.ndim == 2 else values.transpose(2, 0, 1)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _others(root: Path) -> Iterator[str]:
    for folder in class_folders(root):
        for entry in sorted(folder.iterdir()):
            if not entry.name.startswith(".") and not _is_image(entry):
                yield f"{folder.name}/{entry.name}"


def _remarks(source: Source) -> list[Finding]:
    findings = []
    others = list(_others(source.root))
    if others:
        message = f"{len(others)} entries of {source.name} are not PNG or JPEG images and were left out: "
        findings.append(Finding("warning", "files_left_out", message + listing(others, 3)))
    if any(file.suffix.lower() != ".png" for file in source.files):
        message = "decoded JPEG values depend on the version of the JPEG library; the digest tells"
        findings.append(Finding("info", "jpeg", message))
    return findings
