"""Conventions of weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.numerics.forms import Form


def _where(condition: Callable[[Form], bool], change: Callable[[Form], Form]) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        if form.decay and form.decays != "none" and condition(form):
            yield change(form)

    return vary


CONVENTIONS = (
    Convention(
        "decay.missing",
        "Weight decay left out",
        "Weights are not decayed although the job asks for it.",
        "Options that an optimizer ignores; Keras regularizers that are not attached to the layer; "
        "decay_mult: 0 in Caffe.",
        "Give it to the optimizer (weight_decay) or attach a regularizer to every layer with weights.",
        {"update": _where(lambda f: True, lambda f: replace(f, decays="none"))},
        2,
    ),
    Convention(
        "decay.doubled",
        "Weight decay twice as strong",
        "The gradient gets 2 lambda w instead of lambda w.",
        "Keras's l2(l) and Lasagne's l2 add l times the sum of squares, whose gradient is 2 l w; all others "
        "add lambda w.",
        "Halve the constant: l2(lambda / 2) in Keras and Lasagne.",
        {"update": _where(lambda f: True, lambda f: replace(f, decay=2 * f.decay))},
        1,
    ),
    Convention(
        "decay.halved",
        "Weight decay half as strong",
        "The gradient gets lambda / 2 times w instead of lambda w.",
        "A constant converted for Keras used elsewhere; tf.nn.l2_loss already holds the factor one half.",
        "Use lambda itself in PyTorch, Caffe and Torch7, and with tf.nn.l2_loss.",
        {"update": _where(lambda f: True, lambda f: replace(f, decay=f.decay / 2))},
        1,
    ),
    Convention(
        "decay.decoupled",
        "Decay beside the rule",
        "Weights shrink by a factor before the update instead of the decay entering the gradient.",
        "weight_decay of Keras 2.11 and later optimizers, AdamW and SGDW.",
        "Use an L2 term in the gradient: kernel_regularizer=l2(lambda / 2) in Keras, weight_decay of Adam or "
        "SGD in PyTorch.",
        {"update": _where(lambda f: not f.decoupled, lambda f: replace(f, decoupled=True))},
        2,
    ),
    Convention(
        "decay.coupled",
        "Decay through the rule",
        "The decay enters the gradient and so goes through momentum and adaptive scaling, where the job "
        "wants it beside the rule.",
        "weight_decay of PyTorch's Adam and SGD, Keras regularizers, Caffe.",
        "Use the decoupled form: AdamW in PyTorch, weight_decay of Keras 2.11 and later.",
        {"update": _where(lambda f: f.decoupled, lambda f: replace(f, decoupled=False))},
        2,
    ),
    Convention(
        "decay.biases_included",
        "Biases decayed too",
        "Biases, gammas and betas are decayed although the job decays weights only.",
        "PyTorch's weight_decay on one parameter group, Caffe unless decay_mult is 0, Torch7, Keras's weight_decay.",
        "Put biases and batch norm into a group of their own with weight_decay=0; decay_mult: 0; "
        "exclude_from_weight_decay.",
        {"update": _where(lambda f: f.decays == "weights", lambda f: replace(f, decays="all"))},
        2,
    ),
    Convention(
        "decay.biases_excluded",
        "Biases not decayed",
        "Biases, gammas and betas are not decayed although the job decays everything.",
        "Keras kernel_regularizer, Lasagne's regularize_network_params (weights only by default).",
        "Regularize biases too: bias_regularizer, gamma_regularizer; or set include_biases: false in the job.",
        {"update": _where(lambda f: f.decays == "all", lambda f: replace(f, decays="weights"))},
        2,
    ),
    Convention(
        "decay.before_clip",
        "Decay counted in the clipped norm",
        "The decay is added to the gradient before its norm is taken and clipped, not after.",
        "Keras and Lasagne: the penalty is part of the loss, so clipnorm and total_norm_constraint see its "
        "gradient too.",
        "Clip the gradients of the loss alone, then add the decay: weight_decay of the optimizer after "
        "clip_grad_norm_.",
        {"update": _where(lambda f: not f.decoupled and bool(f.clip_norm) and not f.decay_before_clip,
                          lambda f: replace(f, decay_before_clip=True))},
        2,
    ),
)  # fmt: skip
