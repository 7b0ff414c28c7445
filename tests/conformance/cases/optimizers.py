"""Update rules, learning rates, decay, clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosstrain_service.model import (
    BatchNorm,
    Dense,
    Flatten,
    Relu,
)
from crosstrain_service.training import Rule, WeightDecay

from .builder import SGD, Case, case, conv


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
        _tiny(
            "momentum_rate_drop",
            "the velocity holds the learning rate: rate falls to a tenth at step 2",
            momentum,
            drop,
            double=True,
        ),
        _tiny("nesterov_rate_drop", "Nesterov's form, rate falls at step 2", nesterov, drop),
        _tiny("rmsprop", "mean square, rate falls", Rule("rmsprop", rho=0.9, epsilon=1e-7), drop, double=True),
        _tiny("rmsprop_large_epsilon", "eps = 1 outside the root", Rule("rmsprop", rho=0.7, epsilon=1.0), varied),
        _tiny(
            "adagrad",
            "accumulator from 0",
            Rule("adagrad", epsilon=1e-7, initial_accumulator=0.0),
            varied,
            double=True,
        ),
        _tiny(
            "adagrad_started",
            "accumulator from 0.3, large eps",
            Rule("adagrad", epsilon=0.1, initial_accumulator=0.3),
        ),
        _tiny("adam", "usual constants, rate falls", adam, np.array(drop) / 10, double=True),
        _tiny(
            "adam_other_constants",
            "eps beside the corrected root",
            Rule("adam", beta1=0.7, beta2=0.9, epsilon=0.01),
            varied,
        ),
        _tiny(
            "adam_tiny_gradients",
            "gradients near eps at step 0: eps against eps-hat is a factor 31.6",
            adam,
            1e-3,
            pixels=zeros + np.float32(1e-7),
            batch=4,
            steps=4,
            initial={"conv.bias": 0, "logits.weight": 0.1},
        ),
        _tiny(
            "adadelta",
            "both accumulators",
            Rule("adadelta", rho=0.9, epsilon=1e-4),
            [1.0, 1.0, 0.5, 0.5, 0.5],
            double=True,
        ),
        _tiny(
            "l2_weights",
            "g += rate w, biases not decayed, penalty not in the loss",
            momentum,
            drop,
            weight_decay=decay,
        ),
        _tiny("l2_everything", "biases decayed too", adam, 0.01, weight_decay=everything),
        case(
            "l2_batch_norm",
            "gamma and beta are not weights",
            (1, 4, 4),
            [conv("conv", 2, 3), BatchNorm("norm", 1e-3), Relu("relu")],
            samples=4,
            batch=4,
            weight_decay=decay,
        ),
        _tiny(
            "decoupled_adam",
            "w *= 1 - rate decay before the rule",
            adam,
            np.array(varied) / 10,
            weight_decay=decoupled,
        ),
        _tiny(
            "decoupled_momentum",
            "decoupled with momentum, biases too",
            momentum,
            varied,
            weight_decay=WeightDecay(0.2, decoupled=True, include_biases=True),
        ),
        _tiny("clip_active", "one norm over all tensors, not one each", SGD, 0.1, clip_norm=0.05, double=True),
        _tiny("clip_inactive", "gradients below the limit stay as they are", momentum, 0.1, clip_norm=1e4),
        case(
            "clip_small_norm",
            "no constant is added to the norm: limit and norm are tiny",
            (1, 3, 4),
            [Flatten("flatten"), Dense("logits", 3, bias=False)],
            rule=momentum,
            scale=1e-4,
            clip_norm=1e-6,
        ),
        _tiny(
            "clip_l2_nesterov",
            "clip, then decay, then the rule",
            nesterov,
            drop,
            clip_norm=0.3,
            weight_decay=decay,
        ),
        _tiny(
            "clip_decoupled_adam",
            "clip, decoupled decay, Adam",
            adam,
            0.02,
            clip_norm=0.2,
            weight_decay=decoupled,
        ),
        _tiny(
            "clip_l2_rmsprop",
            "clip, L2 over everything, RMSProp",
            Rule("rmsprop", rho=0.8, epsilon=1e-3),
            0.01,
            clip_norm=0.4,
            weight_decay=everything,
        ),
    ]
