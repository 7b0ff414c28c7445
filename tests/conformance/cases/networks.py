"""The built-in networks in small."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain_service.model import (
    Dense,
    Dropout,
    Flatten,
    Layer,
    Relu,
)
from crosstrain_service.training import Rule

from .builder import Case, case, conv, pool


def network_cases() -> list[Case]:
    """The built-in networks in small."""
    layers: list[Layer] = []
    for number, width in enumerate((4, 6, 5), 1):
        layers += [
            conv(f"conv{number}", width, 3, begin=1),
            Relu(f"relu{number}"),
            pool(f"pool{number}", "max", 2, 2),
        ]
    digits = np.random.RandomState(3).randint(0, 256, (10, 1, 16, 12)).astype(np.uint8)
    digits[:, :, :3] = 0
    digits[:, :, :, 9:] = 0
    head = [Flatten("flatten"), Dense("dense1", 16), Relu("relu_dense1")]
    momentum = Rule("sgd", momentum=0.9, nesterov=False)
    common: dict[str, Any] = {
        "pixels": digits,
        "divisor": 255.0,
        "classes": 10,
        "biases": False,
        "rule": momentum,
        "batch": 4,
        "steps": 5,
        "evaluate": True,
    }
    return [
        case(
            "cnn2_small",
            "two convolutions on images with blank borders, zero biases",
            (1, 16, 12),
            [*layers[:6], *head, Dense("dense2", 10)],
            **common,
        ),
        case(
            "cnn3_small",
            "three convolutions, two dense layers with dropout",
            (1, 16, 12),
            [
                *layers,
                *head,
                Dropout("drop1", 0.5),
                Dense("dense2", 12),
                Relu("relu_dense2"),
                Dropout("drop2", 0.5),
                Dense("dense3", 10),
            ],
            double=True,
            **common,
        ),
    ]
