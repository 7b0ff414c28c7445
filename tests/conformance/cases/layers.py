"""ReLU, flatten, dropout, normalisation, loss, batches."""

from __future__ import annotations

import numpy as np

from crosstrain_service.model import (
    BatchNorm,
    Dense,
    Dropout,
    Flatten,
    LocalResponseNorm,
    Relu,
)

from .builder import Case, case, conv, pool


def layer_cases() -> list[Case]:
    """ReLU at zero, flatten order, dropout, normalisation, loss."""
    mixed = [conv("conv", 7, 3, begin=1), Relu("relu")]
    identity = {"logits.weight": np.eye(3), "logits.bias": 0}
    logits = np.array([[14.4, 50.1, 3.5], [150, -150, 20], [-90, 0, 900]], np.float32).reshape(3, 3, 1, 1)
    return [
        case(
            "relu_at_zero",
            "blank image, zero bias: every ReLU input is 0 and so is its gradient",
            (1, 4, 4),
            [conv("conv", 2, 3, begin=1), Relu("relu")],
            pixels=np.zeros((3, 1, 4, 4), np.float32),
            biases=False,
            double=True,
        ),
        case(
            "relu_at_negative_zero",
            "inputs of +0, -0 and the smallest numbers",
            (1, 1, 6),
            [conv("conv", 1, 1, bias=False), Relu("relu")],
            batch=1,
            samples=1,
            steps=1,
            labels=[1],
            pixels=np.array([0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0], np.float32).reshape(1, 1, 1, 6),
            initial={"conv.weight": 1.0},
        ),
        case(
            "flatten_order",
            "C-H-W order with C > 1 and H != W, straight from the input and behind a pool",
            (3, 2, 4),
            [Flatten("flatten"), Dense("dense", 5), Relu("relu"), Dense("logits", 3)],
            double=True,
        ),
        case(
            "flatten_order_behind_pool",
            "the same behind convolution and pooling",
            (2, 6, 8),
            [
                conv("conv", 3, 3, begin=1),
                pool("pool", "max", 2, 2),
                Flatten("flatten"),
                Dense("dense", 4),
                Relu("relu"),
                Dense("logits", 3),
            ],
            evaluate=True,
        ),
        case("flatten_order_1d", "(C, L) in that order", (3, 4), [Flatten("flatten"), Dense("logits", 3)]),
        case(
            "dropout_dense",
            "the platform's mask behind a dense layer; off in evaluation",
            (1, 3, 4),
            [
                Flatten("flatten"),
                Dense("dense1", 9),
                Relu("relu1"),
                Dropout("drop1", 0.5),
                Dense("dense2", 8),
                Dropout("drop2", 0.25),
                Dense("logits", 3),
            ],
            evaluate=True,
            double=True,
        ),
        case(
            "dropout_convolution",
            "a mask in C-H-W layout, before flatten, with H != W",
            (2, 5, 6),
            [conv("conv", 3, 3, begin=1), Relu("relu"), Dropout("drop", 0.3), pool("pool", "max", 2, 2)],
            evaluate=True,
            samples=5,
        ),
        case(
            "batch_norm_convolution",
            "statistics over batch and space; evaluation; odd last batch",
            (2, 5, 4),
            [conv("conv", 3, 3), BatchNorm("norm", 1e-3), Relu("relu")],
            samples=7,
            batch=4,
            steps=3,
            evaluate=True,
            double=True,
        ),
        case(
            "batch_norm_dense",
            "statistics over the batch; eps dominates one feature",
            (1, 2, 4),
            [
                Flatten("flatten"),
                Dense("dense", 4, bias=False),
                BatchNorm("norm", 1e-2),
                Relu("relu"),
                Dense("logits", 3),
            ],
            samples=7,
            batch=5,
            evaluate=True,
            initial={
                "dense.weight": np.vstack([np.full((1, 8), 1e-2), np.random.RandomState(1).randn(3, 8)])
            },
        ),
        case(
            "batch_norm_twice",
            "gradients through two layers; statistics of the second depend on the first",
            (2, 5, 4),
            [
                conv("conv1", 3, 3, begin=1),
                BatchNorm("norm1", 1e-5),
                Relu("relu1"),
                conv("conv2", 2, 3),
                BatchNorm("norm2", 1e-3),
            ],
            samples=6,
            batch=6,
            evaluate=True,
        ),
        case(
            "lrn",
            "alpha times the sum, window of 5 of 7 channels, k = 2",
            (1, 4, 5),
            [*mixed, LocalResponseNorm("lrn", 5, 0.3, 0.75, 2.0)],
            scale=3.0,
        ),
        case(
            "lrn_window_above_channels",
            "window larger than the channels, k = 1, beta 0.5",
            (1, 4, 3),
            [conv("conv", 2, 3, begin=1), LocalResponseNorm("lrn", 5, 1.0, 0.5, 1.0)],
            scale=2.0,
            evaluate=True,
        ),
        case(
            "loss_large_logits",
            "logits [14.4, 50.1, 3.5] with label 0 and beyond: loss and gradient not clipped",
            (3, 1, 1),
            [Flatten("flatten"), Dense("logits", 3)],
            pixels=logits,
            labels=[0, 1, 1],
            steps=1,
            initial=identity,
            double=True,
            keep_order=True,
        ),
        case(
            "loss_confident",
            "right with p near 1: gradient near 0 keeps its digits",
            (3, 1, 1),
            [Flatten("flatten"), Dense("logits", 3)],
            labels=[1, 0, 2],
            steps=1,
            initial=identity,
            keep_order=True,
            pixels=np.array([[0, 20, 1], [95, 1, 2], [3, 4, 15]], np.float32).reshape(3, 3, 1, 1),
        ),
        case(
            "last_partial_batch",
            "a last batch of one sample: mean over its own samples",
            (1, 3, 3),
            [conv("conv", 2, 2), Relu("relu")],
            samples=5,
            batch=2,
            steps=6,
        ),
        case(
            "drop_last",
            "a last batch that is dropped; two classes",
            (1, 3, 3),
            [conv("conv", 2, 2), Relu("relu")],
            classes=2,
            samples=5,
            batch=2,
            steps=4,
            drop_last=True,
        ),
        case(
            "bytes_in_file_order",
            "bytes divided by 255, no permutation",
            (1, 4, 4),
            [conv("conv", 2, 3), Relu("relu")],
            divisor=255.0,
            keep_order=True,
            pixels=np.random.RandomState(5).randint(0, 256, (6, 1, 4, 4)).astype(np.uint8),
            evaluate=True,
        ),
    ]
