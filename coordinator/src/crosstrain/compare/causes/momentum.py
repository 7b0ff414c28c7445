"""Conventions of momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.causes.losses import lookahead
from crosstrain.compare.numerics.forms import Form, with_rule


def _momentum(*kinds: str) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        if form.rule.momentum and form.momentum == "canonical":
            for kind in kinds:
                yield replace(form, momentum=kind)

    return vary


def _ahead(form: Form, place: Any) -> Iterator[Form]:
    # The look-ahead takes the place of Nesterov's extra term.
    for other in _momentum("ahead")(form, place):
        yield with_rule(other, nesterov=False)


def _where(condition: Callable[[Form], bool], **constants: Any) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        if form.rule.name == "sgd" and form.rule.momentum and condition(form):
            yield with_rule(form, **constants)

    return vary


CONVENTIONS = (
    Convention(
        "momentum.rate_outside",
        "Learning rate outside the momentum buffer",
        "The buffer gathers plain gradients and is multiplied by the current learning rate, so that a change "
        "of the rate acts on "
        "old gradients too; the two forms are equal until the rate changes.",
        "PyTorch and Torch7; TensorFlow, Keras, Caffe and Lasagne keep the rate inside.",
        "PyTorch: multiply each momentum_buffer by old rate / new rate when the rate changes; or keep the "
        "rate constant.",
        {"update": _momentum("rate outside")},
        1,
    ),
    Convention(
        "momentum.dampening",
        "New gradients dampened",
        "New gradients enter the momentum buffer times 1 - momentum, so that steps are smaller from the "
        "second update on.",
        "Torch7's sgd: dampening defaults to the momentum; PyTorch with dampening; running-mean forms.",
        "dampening = 0.",
        {"update": _momentum("dampened", "always dampened")},
        2,
    ),
    Convention(
        "momentum.missing",
        "Momentum left out",
        "Each update uses the new gradient only.",
        "Momentum is 0 by default in PyTorch, Keras and Torch7.",
        "Set momentum, and keep one optimizer object for the whole run: a new one starts with empty buffers.",
        {"update": _momentum("missing", "missing, unused buffer")},
        2,
    ),
    Convention(
        "momentum.nesterov",
        "Nesterov momentum where plain is meant",
        "The step looks ahead by one more momentum term.",
        "nesterov=True in PyTorch and Keras, type: \"Nesterov\" in Caffe, nesterov_momentum in Lasagne.",
        "nesterov=False; or ask for it in the job.",
        {"update": _where(lambda f: not f.rule.nesterov, nesterov=True)},
        1,
    ),
    Convention(
        "momentum.no_nesterov",
        "Plain momentum where Nesterov is meant",
        "The step lacks the look-ahead term.",
        "nesterov is off by default everywhere.",
        "nesterov=True, type: \"Nesterov\", nesterov_momentum.",
        {"update": _where(lambda f: bool(f.rule.nesterov), nesterov=False)},
        1,
    ),
    Convention(
        "momentum.lookahead",
        "Gradient taken at the looked-ahead weights",
        "The gradient is that of the weights moved by the old velocity, not of the weights themselves.",
        "Torch7's optim.nag, Nesterov's original form.",
        "Use sgd with nesterov = true (dampening 0), which is the same method in the weights' own variables.",
        {"update": _ahead, "loss": lookahead},
        3,
    ),
)
