"""A Caffe solver (``solver.prototxt``) as the training part of a job document."""

from __future__ import annotations

from typing import Any

from .caffe_net import Decay
from .reading import Fields
from .textproto import parse

#: What only says when Caffe prints, tests and saves, and with which files; none of them is opened.
_WITHOUT_INFLUENCE = (
    "net", "train_net", "test_net", "test_iter", "test_interval", "test_initialization", "test_compute_loss",
    "display", "average_loss", "snapshot", "snapshot_prefix", "snapshot_format", "snapshot_diff",
    "snapshot_after_train", "solver_mode", "device_id", "debug_info", "layer_wise_reduce",
)  # fmt: skip
_OLD_TYPES = ("SGD", "NESTEROV", "ADAGRAD", "RMSPROP", "ADADELTA", "ADAM")


def import_solver(text: str, multipliers: Decay, ignore_rates: bool = False) -> dict[str, Any]:
    """The ``training`` mapping of a job document; its batch size belongs to the network.

    Adam's and the other rules' ``delta`` is carried over as epsilon: Caffe adds Adam's to the uncorrected root
    ("epsilon hat"), which canonical semantics do not. ``ignore_rates`` trains every parameter with the same rate
    where the network has ``lr_mult`` other than 1. Raises CrosstrainError (``INVALID_MODEL``) naming what cannot be
    taken.
    """
    solver = Fields(parse(text), "the solver")
    solver.ignore(*_WITHOUT_INFLUENCE)
    steps = solver.whole("max_iter", 0)
    # Caffe counts steps alone; as many epochs are never fewer.
    training: dict[str, Any] = {"epochs": max(1, steps)}
    if steps > 0:
        training["max_steps"] = steps
    seed = solver.whole("random_seed", -1)
    training["seed"] = max(0, seed)
    if solver.whole("iter_size", 1) != 1:
        raise solver.wrong("iter_size must be 1: gradients of several batches are not added up")
    training["optimizer"] = _optimizer(solver)
    schedule = _schedule(solver)
    if schedule:
        training["schedule"] = schedule
    limit = solver.number("clip_gradients", -1.0)
    if limit > 0:
        training["clip_norm"] = limit
    decay = solver.number("weight_decay", 0.0)
    if solver.word("regularization_type", "L2") != "L2":
        raise solver.wrong("regularization_type must be L2")
    if decay:
        training["weight_decay"] = _decay(decay, multipliers, solver)
    others = {name: rate for name, rate in multipliers.rates.items() if rate != 1}
    if others and not ignore_rates:
        shown = ", ".join(f"{name} ({rate:g})" for name, rate in list(others.items())[:8])
        raise solver.wrong(
            f"the network has lr_mult other than 1 for {shown}; Crosstrain has one learning rate for all parameters. "
            "Set them to 1, or import with --ignore-lr-mult"
        )
    solver.finish()
    return training


def _optimizer(solver: Fields) -> dict[str, Any]:
    old = solver.word("solver_type", "")
    kind = solver.word("type", old or "SGD")
    if kind.isdigit() and int(kind) < len(_OLD_TYPES):
        kind = _OLD_TYPES[int(kind)]
    rate = solver.number("base_lr", 0.0)
    if rate <= 0:
        raise solver.wrong("base_lr must be given and positive")
    momentum, second = solver.number("momentum", 0.0), solver.number("momentum2", 0.999)
    delta, rho = solver.number("delta", 1e-8), solver.number("rms_decay", 0.99)
    rules: dict[str, dict[str, Any]] = {
        "sgd": {"sgd": {"learning_rate": rate, "momentum": momentum}},
        "nesterov": {"sgd": {"learning_rate": rate, "momentum": momentum, "nesterov": momentum > 0}},
        "adagrad": {"adagrad": {"learning_rate": rate, "epsilon": delta, "initial_accumulator": 0.0}},
        "rmsprop": {"rmsprop": {"learning_rate": rate, "rho": rho, "epsilon": delta}},
        "adadelta": {"adadelta": {"learning_rate": rate, "rho": momentum, "epsilon": delta}},
        "adam": {"adam": {"learning_rate": rate, "beta1": momentum, "beta2": second, "epsilon": delta}},
    }
    if kind.lower() not in rules:
        raise solver.wrong(f"type {kind[:40]!r} is none of SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam")
    return rules[kind.lower()]


def _schedule(solver: Fields) -> dict[str, Any]:
    policy = solver.word("lr_policy", "fixed")
    gamma, size = solver.number("gamma", 0.0), solver.whole("stepsize", 0)
    solver.ignore("power")
    if policy == "fixed":
        return {}
    if policy == "step" and size > 0 and 0 < gamma <= 1:
        return {"decay": {"step": {"factor": gamma, "every_steps": size}}}
    if policy == "exp" and 0 < gamma <= 1:
        return {"decay": {"exponential": {"factor": gamma, "every_steps": 1}}}
    raise solver.wrong(f"lr_policy {policy[:40]!r} is not taken; taken are fixed, step and exp with a gamma up to 1")


def _decay(rate: float, multipliers: Decay, solver: Fields) -> dict[str, Any]:
    weights = {name: value for name, value in multipliers.decays.items() if name.endswith(".weight")}
    others = {name: value for name, value in multipliers.decays.items() if name not in weights}
    odd = sorted(name for name, value in weights.items() if value != 1)
    if odd:
        raise solver.wrong(f"decay_mult of {odd[0]} must be 1")
    if not others or all(value == 0 for value in others.values()):
        return {"rate": rate, "include_biases": False}
    if all(value == 1 for value in others.values()):
        return {"rate": rate, "include_biases": True}
    raise solver.wrong("decay_mult must be 0 for all biases, gammas and betas, or 1 for all")
