"""Writers of small inputs, shared by the tests of the data import."""

from __future__ import annotations

import numpy as np


def csv_text(rows: np.ndarray, header: bool = True) -> str:
    """``rows`` as the plainest CSV text."""
    lines = [",".join(str(value) for value in row) for row in rows.tolist()]
    if header:
        lines.insert(0, ",".join(["label", *(f"pixel{i}" for i in range(rows.shape[1] - 1))]))
    return "\n".join(lines) + "\n"
