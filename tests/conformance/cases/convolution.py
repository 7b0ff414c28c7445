"""Convolution and explicit padding."""

from __future__ import annotations

import numpy as np

from crosstrain_service.model import (
    Dense,
    Flatten,
    Pad,
    Relu,
)

from .builder import Case, case, conv


def convolution_cases() -> list[Case]:
    """Kernel orientation, layout, stride, padding."""
    delta = np.zeros((2, 1, 7, 7), np.float32)
    delta[0, 0, 3, 3] = delta[1, 0, 1, 5] = 1
    return [
        case(
            "conv_delta",
            "kernel flip: a delta image shows the kernel itself",
            (1, 7, 7),
            [conv("conv", 1, 3, begin=1), Relu("relu")],
            pixels=delta,
            labels=[0, 1],
            batch=2,
            steps=1,
            initial={"conv.weight": np.arange(1, 10).reshape(1, 1, 3, 3), "conv.bias": 0},
            double=True,
        ),
        case(
            "conv_same",
            "layout with C > 1, H != W; a second convolution passes gradients down",
            (2, 7, 6),
            [conv("conv1", 3, 3, begin=1), Relu("relu1"), conv("conv2", 4, 3, begin=1), Relu("relu2")],
            evaluate=True,
            double=True,
        ),
        case(
            "conv_kernel_not_square",
            "kernel height against width, stride height against width",
            (2, 9, 8),
            [
                conv("conv1", 3, (5, 2), (2, 1), (2, 0)),
                Relu("relu1"),
                conv("conv2", 2, (1, 3), (1, 2), (0, 1)),
            ],
        ),
        case(
            "conv_stride2_odd",
            "stride 2 on odd sizes, padding 1",
            (1, 9, 7),
            [conv("conv1", 2, 3, 2, 1), conv("conv2", 2, 3, 2, 1)],
        ),
        case(
            "conv_stride2_even",
            "stride 2 on even sizes, where `same` would pad 0 and 1",
            (1, 8, 6),
            [conv("conv1", 2, 3, 2, 1), conv("conv2", 2, 3, 2, 1)],
        ),
        case(
            "conv_stride_leaves_rest",
            "stride that does not fit: the last columns are unused",
            (1, 8, 9),
            [conv("conv1", 2, 3, 1), conv("conv2", 2, 2, 3)],
        ),
        case(
            "conv_no_bias",
            "no bias in convolution and dense; 1x1 kernel",
            (3, 5, 4),
            [
                conv("conv1", 4, 1, bias=False),
                Relu("relu"),
                conv("conv2", 2, 2, bias=False),
                Flatten("flatten"),
                Dense("logits", 3, bias=False),
            ],
        ),
        case(
            "conv_asymmetric_padding",
            "padding before differs from padding after",
            (2, 8, 6),
            [conv("conv1", 3, 3, 2, 0, 1), Relu("relu"), conv("conv2", 2, (2, 3), 1, (1, 0), (0, 2))],
        ),
        case(
            "conv1d",
            "one dimension: orientation, stride, channels",
            (2, 11),
            [conv("conv1", 3, 3, 1, 1, dims=1), Relu("relu"), conv("conv2", 2, 4, 2, 1, dims=1)],
            double=True,
        ),
        case(
            "conv1d_asymmetric_padding",
            "one dimension, padding before differs from after",
            (2, 10),
            [conv("conv1", 3, 3, 2, 0, 1, dims=1), conv("conv2", 2, 4, 1, 1, 2, dims=1)],
        ),
        case(
            "pad_explicit",
            "explicit padding layer, also behind another layer",
            (2, 5, 4),
            [
                Pad("pad1", (1, 0), (2, 1)),
                conv("conv1", 3, 3),
                Pad("pad2", (0, 1), (0, 0)),
                conv("conv2", 2, 2),
            ],
        ),
        case(
            "pad_explicit_1d",
            "explicit padding layer in one dimension",
            (2, 6),
            [Pad("pad", (1,), (2,)), conv("conv", 3, 3, dims=1)],
        ),
    ]
