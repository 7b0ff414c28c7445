"""Peak memory of a CSV import does not grow with the file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from crosstrain.data import DataCache, ImportOptions, import_dataset
import crosstrain.data.csv_reader, crosstrain.data.npz_reader
import pyarrow.compute

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

start = peak()
info = import_dataset(sys.argv[1], ImportOptions(), DataCache(sys.argv[2]))
print((peak() - start) // 1024, info.samples, info.dtype)
"""


def grown(tmp_path, rows, pixels, values):
    """(MiB above import, samples, dtype) of importing ``rows`` rows with ``pixels`` pixel columns."""
    path = tmp_path / f"{rows}.csv"
    body = ",".join(values[index % len(values)] for index in range(pixels))
    with open(path, "w") as file:
        for index in range(rows):
            file.write(f"{index % 10},{index % 256},{body[body.index(',') + 1 :]}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", CODE, str(path), str(tmp_path / f"cache{rows}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    path.unlink()
    memory, samples, dtype = done.stdout.split()
    return int(memory), int(samples), dtype


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
@pytest.mark.parametrize(
    ("rows", "pixels", "values", "dtype"),
    [
        (60000, 784, ["0", "0", "255"], "uint8"),
        (400, 224 * 224, ["0", "0", "255"], "uint8"),
        (100, 3 * 224 * 224, ["0.5", "0.25", "1"], "float32"),
    ],
)
def test_peak_memory(tmp_path, rows, pixels, values, dtype):
    memory, samples, stored = grown(tmp_path, rows, pixels, values)
    assert (samples, stored) == (rows, dtype)
    assert memory <= 100
    smaller = grown(tmp_path, rows // 4, pixels, values)[0]
    assert memory - smaller <= 16
