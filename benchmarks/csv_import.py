"""First import of a CSV file into the data cache, against numpy.loadtxt of the same file.

The import parses, checks, converts, hashes and stores the data; loadtxt only parses it. Both run in
turn in this process, in alternating order, so that a busy machine slows both. Prints the ratio
import time / loadtxt time: below 1 the import is faster.

    python benchmarks/csv_import.py [--rows 20000] [--columns 785] [--pairs 5] [--floats]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from crosstrain.data import DataCache, import_dataset


def write_csv(path: Path, rows: int, columns: int, floats: bool) -> None:
    """Labels 0..9 and pixels of which four in five are zero, as in handwritten digits."""
    random = np.random.RandomState(1)
    with open(path, "wb") as file:
        for start in range(0, rows, 1000):
            block = random.randint(0, 256, (min(1000, rows - start), columns))
            block[random.random_sample(block.shape) < 0.8] = 0
            label = (np.arange(start, start + len(block)) % 10)[:, None]
            if floats:
                lines = np.hstack([label, block[:, 1:] / 256])
                np.savetxt(file, lines, fmt=["%d"] + ["%.6g"] * (columns - 1), delimiter=",")
            else:
                np.savetxt(file, np.hstack([label, block[:, 1:]]), fmt="%d", delimiter=",")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Run the pairs and print one line for each, then minimum, median and maximum of the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--columns", type=int, default=785)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--floats", action="store_true", help="values in 0..1 instead of bytes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        write_csv(path, arguments.rows, arguments.columns, arguments.floats)
        megabytes = path.stat().st_size / 1e6
        print(f"{arguments.rows} x {arguments.columns}, {megabytes:.1f} MB")
        ratios = []
        for pair in range(arguments.pairs):
            cache = DataCache(Path(folder) / f"cache{pair}")
            works: list[Callable[[], object]] = [
                lambda cache=cache: import_dataset(path, None, cache),  # type: ignore[misc]
                lambda: np.loadtxt(path, delimiter=",", dtype=np.float32),
            ]
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            taken = dict(zip(order, [seconds(works[index]) for index in order], strict=True))
            ratios.append(taken[0] / taken[1])
            print(
                f"import {taken[0]:.3f} s ({megabytes / taken[0]:.0f} MB/s)  "
                f"loadtxt {taken[1]:.3f} s ({megabytes / taken[1]:.0f} MB/s)  ratio {ratios[-1]:.3f}"
            )
    print(f"ratio min {min(ratios):.3f}  median {statistics.median(ratios):.3f}  max {max(ratios):.3f}")


if __name__ == "__main__":
    main()
