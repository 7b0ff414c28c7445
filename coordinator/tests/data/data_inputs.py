"""Writers of small inputs, shared by the tests of the data import."""

from __future__ import annotations

import time

import numpy as np

from crosstrain.data import DataCache, import_dataset
from crosstrain.data import importer as importer_module


def csv_text(rows: np.ndarray, header: bool = True) -> str:
    """``rows`` as the plainest CSV text."""
    lines = [",".join(str(value) for value in row) for row in rows.tolist()]
    if header:
        lines.insert(0, ",".join(["label", *(f"pixel{i}" for i in range(rows.shape[1] - 1))]))
    return "\n".join(lines) + "\n"


def import_slowly(path, root, barrier, results):
    """In a process of its own: put (dataset, how often the source was read) into the queue ``results``."""
    real = importer_module.READERS["csv"]
    reads = []

    def slow(*arguments):
        reads.append(1)
        time.sleep(0.3)
        return real(*arguments)

    importer_module.READERS["csv"] = slow
    barrier.wait()
    results.put((import_dataset(path, None, DataCache(root)).to_json(), len(reads)))
