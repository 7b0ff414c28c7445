"""Small data files and job documents."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from crosstrain.data.digits import load_digits

TINY = {
    "name": "tiny",
    "layers": [
        {"convolution": {"channels": 4, "kernel": 3, "padding": 1}},
        {"relu": {}},
        {"max_pool": {"kernel": 4}},
        {"flatten": {}},
        {"dense": {"units": 16}},
        {"relu": {}},
        {"dense": {"units": "classes"}},
    ],
}
TRAIN, TEST = 160, 60


def document(engines: list[str], **fields: Any) -> str:
    """A job in JSON, which YAML contains: the tiny network, SGD and no verdict, unless ``fields`` say otherwise."""
    training = {
        "epochs": 1,
        "batch_size": 16,
        "optimizer": {"sgd": {"learning_rate": 0.05, "momentum": 0.9}},
        "seed": 3,
        **fields.pop("training", {}),
    }
    execution = {"threads": 1, **fields.pop("execution", {})}
    values = {
        "name": "small", "model": TINY, "training": training, "engines": engines, "execution": execution,
        "cross_evaluate": False, "verdict": {"judge": False}, **fields,
    }  # fmt: skip
    return json.dumps(values)


def npy(array: np.ndarray) -> bytes:
    """An array as a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def write_csv(path: Path, labels: np.ndarray, pixels: np.ndarray) -> Path:
    """``label,pixel0,...`` with one row per sample."""
    header = ",".join(["label", *(f"pixel{index}" for index in range(pixels.shape[1]))])
    rows = np.column_stack([labels, pixels])
    np.savetxt(path, rows, fmt="%d", delimiter=",", header=header, comments="")
    return path


def write_digits(folder: Path) -> tuple[Path, Path]:
    """Real digits, the classes in turn: 160 to train on and 60 others to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = load_digits()
    order = np.argsort(rows[:, 0], kind="stable").reshape(10, -1).T.reshape(-1)
    train, test = rows[order[:TRAIN]], rows[order[TRAIN : TRAIN + TEST]]
    return (
        write_csv(folder / "train.csv", train[:, 0], train[:, 1:]),
        write_csv(folder / "test.csv", test[:, 0], test[:, 1:]),
    )
