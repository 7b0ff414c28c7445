"""The cases: small networks, data and settings that together cover every row of the semantics table.

What a case needs of an engine follows from its network and settings (``capabilities.features_of_*``). An
engine that declares all of it must compute the case as the reference does; one that lacks something must
refuse it and name what it lacks.
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from crosstrain_service import capabilities, weights
from crosstrain_service.model import (
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    LocalResponseNorm,
    Model,
    Pad,
    Pool,
    Relu,
)
from crosstrain_service.training import Execution, Rule, Training, WeightDecay

from .checks import Problem
from .platform_streams import Data

SGD = Rule("sgd", momentum=0.0, nesterov=False)
EXECUTION = Execution(intra_threads=1)


@dataclass(frozen=True)
class Case:
    """One probe. ``covers`` says which conventions would show; ``double``: also run in float64 where declared."""

    name: str
    covers: str
    model: Model
    training: Training
    data: Data
    initial: dict[str, np.ndarray]
    test: Data | None = None
    double: bool = False

    @property
    def steps(self) -> list[int]:
        """All steps; every one is recorded."""
        return list(range(len(self.training.learning_rates)))

    def needs(self, precision: str = "float32", execution: Execution = EXECUTION) -> set[str]:
        """Features an engine must have."""
        chosen = dataclasses.replace(execution, precision=precision)
        return (
            capabilities.features_of_model(self.model)
            | capabilities.features_of_training(self.training)
            | capabilities.features_of_execution(chosen)
            | {"probe"}
        )

    def problem(self, precision: str = "float32") -> Problem:
        """The case as the checks take it."""
        dtype = np.float64 if precision == "float64" else np.float32
        return Problem(self.model, self.training, self.data, self.initial, dtype, self.test)


def conv(name: str, channels: int, kernel: Any, stride: Any = 1, begin: Any = 0, end: Any = None, bias: bool = True,
         dims: int = 2) -> Convolution:
    """A convolution; single numbers mean the same in every dimension, ``end`` is ``begin`` unless given."""
    spread = _spreader(dims)
    return Convolution(name, channels, spread(kernel), spread(stride), spread(begin),
                       spread(begin if end is None else end), bias)


def pool(name: str, kind: str, kernel: Any, stride: Any, begin: Any = 0, end: Any = None, ceil: bool = False,
         include: bool = False, dims: int = 2) -> Pool:
    """A pooling layer, written as :func:`conv`."""
    spread = _spreader(dims)
    return Pool(name, kind, spread(kernel), spread(stride), spread(begin), spread(begin if end is None else end),
                "ceil" if ceil else "floor", include)


def _spreader(dims: int) -> Any:
    return lambda value: (value,) * dims if isinstance(value, int) else tuple(value)


def case(name: str, covers: str, shape: tuple[int, ...], layers: list[Layer], *, classes: int = 3, samples: int = 6,
         batch: int = 3, steps: int = 2, rule: Rule = SGD, rates: Any = 0.1, pixels: np.ndarray | None = None,
         labels: Any = None, divisor: float = 1.0, initial: dict[str, Any] | None = None, evaluate: bool = False,
         double: bool = False, biases: bool = True, scale: float = 1.0, **training: Any) -> Case:
    """Completes a case: random data (half of it exact zeros where not given) and weights from the case's name.

    A flatten and a dense layer with ``classes`` units are added where the last layer is not dense.
    ``initial`` overrides single tensors; ``biases`` draws biases, gammas and betas at random, otherwise they
    keep their usual 0 and 1.
    """
    random = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    if not isinstance(layers[-1], Dense):
        layers = [*layers, Flatten("flatten"), Dense("logits", classes)]
    model = Model("case", shape, classes, tuple(layers)).validate()
    if pixels is None:
        pixels = random.uniform(-1, 1, (samples, *shape)) * (random.uniform(size=(samples, *shape)) > 0.3) * scale
        pixels = pixels.astype(np.float32)
    if labels is None:
        labels = random.randint(0, classes, len(pixels))
    tensors = weights.initial_parameters(model, random.randint(1000))
    for key, value in tensors.items():
        if biases and not key.endswith(".weight"):
            tensors[key] = (value + random.uniform(-0.5, 0.5, value.shape)).astype(np.float32)
    for key, value in (initial or {}).items():
        tensors[key] = np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float32), tensors[key].shape))
    seed = training.pop("seed", random.randint(1000))
    per_epoch = -(-len(pixels) // batch)
    settings = Training(
        epochs=-(-steps // per_epoch), batch_size=batch, seed=seed, rule=rule, max_steps=steps,
        learning_rates=np.resize(np.asarray(rates, np.float64), steps), **training)
    test = None
    if evaluate:
        test = Data(random.uniform(-1, 1, (5, *shape)).astype(np.float32), random.randint(0, classes, 5), divisor)
    return Case(name, covers, model, settings, Data(pixels, np.asarray(labels, np.int64), divisor), tensors, test, double)


def convolution_cases() -> list[Case]:
    """Kernel orientation, layout, stride, padding."""
    delta = np.zeros((2, 1, 7, 7), np.float32)
    delta[0, 0, 3, 3] = delta[1, 0, 1, 5] = 1
    return [
        case("conv_delta", "kernel flip: a delta image shows the kernel itself", (1, 7, 7),
             [conv("conv", 1, 3, begin=1), Relu("relu")], pixels=delta, labels=[0, 1], batch=2, steps=1,
             initial={"conv.weight": np.arange(1, 10).reshape(1, 1, 3, 3), "conv.bias": 0}, double=True),
        case("conv_same", "layout with C > 1, H != W; a second convolution passes gradients down", (2, 7, 6),
             [conv("conv1", 3, 3, begin=1), Relu("relu1"), conv("conv2", 4, 3, begin=1), Relu("relu2")],
             evaluate=True, double=True),
        case("conv_kernel_not_square", "kernel height against width, stride height against width", (2, 9, 8),
             [conv("conv1", 3, (5, 2), (2, 1), (2, 0)), Relu("relu1"), conv("conv2", 2, (1, 3), (1, 2), (0, 1))]),
        case("conv_stride2_odd", "stride 2 on odd sizes, padding 1", (1, 9, 7),
             [conv("conv1", 2, 3, 2, 1), conv("conv2", 2, 3, 2, 1)]),
        case("conv_stride2_even", "stride 2 on even sizes, where `same` would pad 0 and 1", (1, 8, 6),
             [conv("conv1", 2, 3, 2, 1), conv("conv2", 2, 3, 2, 1)]),
        case("conv_stride_leaves_rest", "stride that does not fit: the last columns are unused", (1, 8, 9),
             [conv("conv1", 2, 3, 1), conv("conv2", 2, 2, 3)]),
        case("conv_no_bias", "no bias in convolution and dense; 1x1 kernel", (3, 5, 4),
             [conv("conv1", 4, 1, bias=False), Relu("relu"), conv("conv2", 2, 2, bias=False), Flatten("flatten"),
              Dense("logits", 3, bias=False)]),
        case("conv_asymmetric_padding", "padding before differs from padding after", (2, 8, 6),
             [conv("conv1", 3, 3, 2, 0, 1), Relu("relu"), conv("conv2", 2, (2, 3), 1, (1, 0), (0, 2))]),
        case("conv1d", "one dimension: orientation, stride, channels", (2, 11),
             [conv("conv1", 3, 3, 1, 1, dims=1), Relu("relu"), conv("conv2", 2, 4, 2, 1, dims=1)], double=True),
        case("conv1d_asymmetric_padding", "one dimension, padding before differs from after", (2, 10),
             [conv("conv1", 3, 3, 2, 0, 1, dims=1), conv("conv2", 2, 4, 1, 1, 2, dims=1)]),
        case("pad_explicit", "explicit padding layer, also behind another layer", (2, 5, 4),
             [Pad("pad1", (1, 0), (2, 1)), conv("conv1", 3, 3), Pad("pad2", (0, 1), (0, 0)), conv("conv2", 2, 2)]),
        case("pad_explicit_1d", "explicit padding layer in one dimension", (2, 6),
             [Pad("pad", (1,), (2,)), conv("conv", 3, 3, dims=1)]),
    ]


def pooling_cases() -> list[Case]:
    """Window origin, rounding, divisor, padding value, ties."""
    bias = {"conv.bias": -5.0}
    first = [conv("conv", 2, 3, begin=1)]
    ties = np.zeros((3, 1, 6, 6), np.float32)
    ties[1, 0, 2:4, 2:6] = 2.0
    ties[2, 0, 0, :] = [1, 2, 2, 2, 1, 1]
    line = np.array([[[1, 2, 2, 2]], [[1, 2, 3, 4]]], np.float32)
    ones = np.ones((2, 1, 4, 4), np.float32)
    identity = {"conv.weight": [[[[1.0]]]], "conv.bias": 0}
    return [
        case("max_pool_floor", "odd sizes lose a row and a column; stride is the kernel", (1, 7, 5),
             [*first, pool("pool", "max", 2, 2)], double=True),
        case("max_pool_even", "window origin on even sizes", (2, 6, 8), [*first, pool("pool", "max", 2, 2)]),
        case("max_pool_overlapping", "kernel 3, stride 2 and stride 1: gradients of windows add up", (1, 9, 8),
             [*first, pool("pool1", "max", 3, 2), pool("pool2", "max", 2, 1)]),
        case("max_pool_not_square", "kernel and stride differ between height and width; stride above kernel",
             (1, 9, 10), [*first, pool("pool", "max", (3, 2), (2, 3))]),
        case("max_pool_ceil", "112, kernel 3, stride 2 in small: 6 windows where floor gives 5", (1, 12, 8),
             [*first, pool("pool", "max", 3, 2, ceil=True)]),
        case("max_pool_padded", "padding is minus infinity, not 0: all values are negative", (1, 7, 6),
             [*first, pool("pool", "max", 3, 2, 1)], initial=bias),
        case("max_pool_padded_ceil", "padding and rounding up: a window starting in the padding is dropped",
             (1, 6, 7), [*first, pool("pool", "max", 3, 2, 1, ceil=True), pool("pool2", "max", 2, 2, 1, ceil=True)],
             initial=bias),
        case("max_pool_asymmetric", "padding after only, minus infinity", (1, 6, 8),
             [*first, pool("pool", "max", 3, 2, 0, 1)], initial=bias),
        case("max_pool_ties", "equal maxima and blank windows: the gradient goes to the first", (1, 6, 6),
             [conv("conv", 1, 1), Relu("relu"), pool("pool", "max", 2, 2)], pixels=ties, labels=[0, 1, 2],
             initial=identity, steps=1, double=True),
        case("max_pool_ties_overlapping", "the same with overlapping windows", (1, 6, 6),
             [conv("conv", 1, 1), Relu("relu"), pool("pool", "max", 3, 2)], pixels=ties, labels=[0, 1, 2],
             initial=identity, steps=1),
        case("max_pool1d_ties", "[1, 2, 2, 2] and window origin on [1, 2, 3, 4]", (1, 4),
             [conv("conv", 1, 1, dims=1), pool("pool", "max", 2, 2, dims=1)], pixels=line, labels=[0, 2], batch=2,
             initial={"conv.weight": [[[1.0]]], "conv.bias": 0}, steps=1),
        case("max_pool1d_padded", "one dimension, padded, overlapping", (2, 9),
             [conv("conv", 2, 3, dims=1), pool("pool", "max", 3, 2, 1, dims=1)], initial=bias),
        case("average_pool", "divisor of whole windows, overlapping and not", (2, 9, 8),
             [*first, pool("pool1", "average", 2, 2), pool("pool2", "average", 3, 1)]),
        case("average_pool_include", "ones, kernel 3, padding 1: padding counts", (1, 4, 4),
             [conv("conv", 1, 1), pool("pool", "average", 3, 1, 1, include=True)], pixels=ones, labels=[0, 1],
             batch=2, initial=identity),
        case("average_pool_exclude", "ones, kernel 3, padding 1: padding does not count", (1, 4, 4),
             [conv("conv", 1, 1), pool("pool", "average", 3, 1, 1)], pixels=ones, labels=[0, 1], batch=2,
             initial=identity),
        case("average_pool_ceil", "the last window is smaller; its divisor too", (1, 8, 6),
             [*first, pool("pool", "average", 3, 2, ceil=True)]),
        case("average_pool_include_ceil", "padding counts, but only up to its end", (1, 7, 6),
             [*first, pool("pool", "average", 3, 2, 1, ceil=True, include=True)]),
        case("average_pool_exclude_ceil", "padding does not count, rounding up", (1, 6, 7),
             [*first, pool("pool", "average", 3, 2, 1, ceil=True)]),
        case("average_pool_asymmetric_include", "padding after only, counted", (1, 6, 7),
             [*first, pool("pool", "average", (3, 2), 2, 0, 1, include=True)]),
        case("average_pool_asymmetric_exclude", "padding before only, not counted", (1, 6, 7),
             [*first, pool("pool", "average", 3, 2, (1, 2), 0)]),
        case("average_pool1d", "one dimension", (2, 9), [conv("conv", 2, 3, dims=1), pool("pool", "average", 3, 2, dims=1)]),
    ]


def layer_cases() -> list[Case]:
    """ReLU at zero, flatten order, dropout, normalisation, loss."""
    mixed = [conv("conv", 7, 3, begin=1), Relu("relu")]
    identity = {"logits.weight": np.eye(3), "logits.bias": 0}
    logits = np.array([[14.4, 50.1, 3.5], [150, -150, 20], [-90, 0, 900]], np.float32).reshape(3, 3, 1, 1)
    return [
        case("relu_at_zero", "blank image, zero bias: every ReLU input is 0 and so is its gradient", (1, 4, 4),
             [conv("conv", 2, 3, begin=1), Relu("relu")], pixels=np.zeros((3, 1, 4, 4), np.float32), biases=False,
             double=True),
        case("relu_at_negative_zero", "inputs of +0, -0 and the smallest numbers", (1, 1, 6),
             [conv("conv", 1, 1, bias=False), Relu("relu")], batch=1, samples=1, steps=1, labels=[1],
             pixels=np.array([0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0], np.float32).reshape(1, 1, 1, 6),
             initial={"conv.weight": 1.0}),
        case("flatten_order", "C-H-W order with C > 1 and H != W, straight from the input and behind a pool",
             (3, 2, 4), [Flatten("flatten"), Dense("dense", 5), Relu("relu"), Dense("logits", 3)], double=True),
        case("flatten_order_behind_pool", "the same behind convolution and pooling", (2, 6, 8),
             [conv("conv", 3, 3, begin=1), pool("pool", "max", 2, 2), Flatten("flatten"), Dense("dense", 4),
              Relu("relu"), Dense("logits", 3)], evaluate=True),
        case("flatten_order_1d", "(C, L) in that order", (3, 4), [Flatten("flatten"), Dense("logits", 3)]),
        case("dropout_dense", "the platform's mask behind a dense layer; off in evaluation", (1, 3, 4),
             [Flatten("flatten"), Dense("dense1", 9), Relu("relu1"), Dropout("drop1", 0.5), Dense("dense2", 8),
              Dropout("drop2", 0.25), Dense("logits", 3)], evaluate=True, double=True),
        case("dropout_convolution", "a mask in C-H-W layout, before flatten, with H != W", (2, 5, 6),
             [conv("conv", 3, 3, begin=1), Relu("relu"), Dropout("drop", 0.3), pool("pool", "max", 2, 2)], evaluate=True,
             samples=5),
        case("batch_norm_convolution", "statistics over batch and space; evaluation; odd last batch", (2, 5, 4),
             [conv("conv", 3, 3), BatchNorm("norm", 1e-3), Relu("relu")], samples=7, batch=4, steps=3, evaluate=True,
             double=True),
        case("batch_norm_dense", "statistics over the batch; eps dominates one feature", (1, 2, 4),
             [Flatten("flatten"), Dense("dense", 4, bias=False), BatchNorm("norm", 1e-2), Relu("relu"),
              Dense("logits", 3)], samples=7, batch=5, evaluate=True,
             initial={"dense.weight": np.vstack([np.full((1, 8), 1e-2), np.random.RandomState(1).randn(3, 8)])}),
        case("batch_norm_twice", "gradients through two layers; statistics of the second depend on the first",
             (2, 5, 4), [conv("conv1", 3, 3, begin=1), BatchNorm("norm1", 1e-5), Relu("relu1"), conv("conv2", 2, 3),
                         BatchNorm("norm2", 1e-3)], samples=6, batch=6, evaluate=True),
        case("lrn", "alpha times the sum, window of 5 of 7 channels, k = 2", (1, 4, 5),
             [*mixed, LocalResponseNorm("lrn", 5, 0.3, 0.75, 2.0)], scale=3.0),
        case("lrn_window_above_channels", "window larger than the channels, k = 1, beta 0.5", (1, 4, 3),
             [conv("conv", 2, 3, begin=1), LocalResponseNorm("lrn", 5, 1.0, 0.5, 1.0)], scale=2.0, evaluate=True),
        case("loss_large_logits", "logits [14.4, 50.1, 3.5] with label 0 and beyond: loss and gradient not clipped",
             (3, 1, 1), [Flatten("flatten"), Dense("logits", 3)], pixels=logits, labels=[0, 1, 1], steps=1,
             initial=identity, double=True, keep_order=True),
        case("loss_confident", "right with p near 1: gradient near 0 keeps its digits", (3, 1, 1),
             [Flatten("flatten"), Dense("logits", 3)], labels=[1, 0, 2], steps=1, initial=identity, keep_order=True,
             pixels=np.array([[0, 20, 1], [95, 1, 2], [3, 4, 15]], np.float32).reshape(3, 3, 1, 1)),
        case("last_partial_batch", "a last batch of one sample: mean over its own samples", (1, 3, 3),
             [conv("conv", 2, 2), Relu("relu")], samples=5, batch=2, steps=6),
        case("drop_last", "a last batch that is dropped; two classes", (1, 3, 3),
             [conv("conv", 2, 2), Relu("relu")], classes=2, samples=5, batch=2, steps=4, drop_last=True),
        case("bytes_in_file_order", "bytes divided by 255, no permutation", (1, 4, 4),
             [conv("conv", 2, 3), Relu("relu")], divisor=255.0, keep_order=True,
             pixels=np.random.RandomState(5).randint(0, 256, (6, 1, 4, 4)).astype(np.uint8), evaluate=True),
    ]


def _tiny(name: str, covers: str, rule: Rule, rates: Any = 0.1, **settings: Any) -> Case:
    layers = [conv("conv", 2, 2), Relu("relu"), Flatten("flatten"), Dense("logits", 3)]
    values = {"samples": 5, "batch": 2, "steps": 5, **settings}
    return case(name, covers, (1, 3, 4), layers, rule=rule, rates=rates, **values)


def optimizer_cases() -> list[Case]:
    """Every rule over five steps with a changing learning rate, decay and clipping."""
    momentum = Rule("sgd", momentum=0.9, nesterov=False)
    nesterov = Rule("sgd", momentum=0.8, nesterov=True)
    adam = Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-8)
    drop = [0.1, 0.1, 0.01, 0.01, 0.01]
    varied = [0.1, 0.05, 0.2, 0.01, 0.03]
    decay, everything = WeightDecay(0.1), WeightDecay(0.2, include_biases=True)
    decoupled = WeightDecay(0.1, decoupled=True)
    zeros = np.zeros((4, 1, 3, 4), np.float32)
    return [
        _tiny("sgd", "no momentum, a rate for every step", SGD, varied, double=True),
        _tiny("momentum_rate_drop", "the velocity holds the learning rate: rate falls to a tenth at step 2", momentum,
              drop, double=True),
        _tiny("nesterov_rate_drop", "Nesterov's form, rate falls at step 2", nesterov, drop),
        _tiny("rmsprop", "mean square, rate falls", Rule("rmsprop", rho=0.9, epsilon=1e-7), drop, double=True),
        _tiny("rmsprop_large_epsilon", "eps = 1 outside the root", Rule("rmsprop", rho=0.7, epsilon=1.0), varied),
        _tiny("adagrad", "accumulator from 0", Rule("adagrad", epsilon=1e-7, initial_accumulator=0.0), varied,
              double=True),
        _tiny("adagrad_started", "accumulator from 0.3, large eps", Rule("adagrad", epsilon=0.1, initial_accumulator=0.3)),
        _tiny("adam", "usual constants, rate falls", adam, np.array(drop) / 10, double=True),
        _tiny("adam_other_constants", "eps beside the corrected root", Rule("adam", beta1=0.7, beta2=0.9, epsilon=0.01),
              varied),
        _tiny("adam_tiny_gradients", "gradients near eps at step 0: eps against eps-hat is a factor 31.6", adam, 1e-3,
              pixels=zeros + np.float32(1e-7), batch=4, steps=4, initial={"conv.bias": 0, "logits.weight": 0.1}),
        _tiny("adadelta", "both accumulators", Rule("adadelta", rho=0.9, epsilon=1e-4), [1.0, 1.0, 0.5, 0.5, 0.5],
              double=True),
        _tiny("l2_weights", "g += rate w, biases not decayed, penalty not in the loss", momentum, drop, weight_decay=decay),
        _tiny("l2_everything", "biases decayed too", adam, 0.01, weight_decay=everything),
        case("l2_batch_norm", "gamma and beta are not weights", (1, 4, 4),
             [conv("conv", 2, 3), BatchNorm("norm", 1e-3), Relu("relu")], samples=4, batch=4, weight_decay=decay),
        _tiny("decoupled_adam", "w *= 1 - rate decay before the rule", adam, np.array(varied) / 10, weight_decay=decoupled),
        _tiny("decoupled_momentum", "decoupled with momentum, biases too", momentum, varied,
              weight_decay=WeightDecay(0.2, decoupled=True, include_biases=True)),
        _tiny("clip_active", "one norm over all tensors, not one each", SGD, 0.1, clip_norm=0.05, double=True),
        _tiny("clip_inactive", "gradients below the limit stay as they are", momentum, 0.1, clip_norm=1e4),
        case("clip_small_norm", "no constant is added to the norm: limit and norm are tiny", (1, 3, 4),
             [Flatten("flatten"), Dense("logits", 3, bias=False)], rule=momentum, scale=1e-4, clip_norm=1e-6),
        _tiny("clip_l2_nesterov", "clip, then decay, then the rule", nesterov, drop, clip_norm=0.3, weight_decay=decay),
        _tiny("clip_decoupled_adam", "clip, decoupled decay, Adam", adam, 0.02, clip_norm=0.2, weight_decay=decoupled),
        _tiny("clip_l2_rmsprop", "clip, L2 over everything, RMSProp", Rule("rmsprop", rho=0.8, epsilon=1e-3), 0.01,
              clip_norm=0.4, weight_decay=everything),
    ]


def network_cases() -> list[Case]:
    """The built-in networks in small."""
    layers: list[Layer] = []
    for number, width in enumerate((4, 6, 5), 1):
        layers += [conv(f"conv{number}", width, 3, begin=1), Relu(f"relu{number}"), pool(f"pool{number}", "max", 2, 2)]
    digits = np.random.RandomState(3).randint(0, 256, (10, 1, 16, 12)).astype(np.uint8)
    digits[:, :, :3] = 0
    digits[:, :, :, 9:] = 0
    head = [Flatten("flatten"), Dense("dense1", 16), Relu("relu_dense1")]
    momentum = Rule("sgd", momentum=0.9, nesterov=False)
    common: dict[str, Any] = {"pixels": digits, "divisor": 255.0, "classes": 10, "biases": False, "rule": momentum,
                              "batch": 4, "steps": 5, "evaluate": True}
    return [
        case("cnn2_small", "two convolutions on images with blank borders, zero biases", (1, 16, 12),
             [*layers[:6], *head, Dense("dense2", 10)], **common),
        case("cnn3_small", "three convolutions, two dense layers with dropout", (1, 16, 12),
             [*layers, *head, Dropout("drop1", 0.5), Dense("dense2", 12), Relu("relu_dense2"), Dropout("drop2", 0.5),
              Dense("dense3", 10)], double=True, **common),
    ]


CASES = [*convolution_cases(), *pooling_cases(), *layer_cases(), *optimizer_cases(), *network_cases()]
BY_NAME = {item.name: item for item in CASES}
assert len(BY_NAME) == len(CASES)
