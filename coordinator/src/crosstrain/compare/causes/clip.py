"""Conventions of clipping gradients by their norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.numerics.forms import Form


def _clip(**fields: Any) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        if form.clip_norm and any(getattr(form, name) != value for name, value in fields.items()):
            yield replace(form, **fields)

    return vary


def _norm_epsilon(form: Form, place: Any) -> Iterator[Form]:
    for value in (1e-6, 1e-7):
        yield from _clip(clip_epsilon=value)(form, place)


CONVENTIONS = (
    Convention(
        "clip.per_tensor",
        "Clipped tensor by tensor",
        "Each parameter's gradient is clipped by its own norm instead of all by their common norm, which "
        "changes the direction.",
        "Keras's clipnorm on TensorFlow, tf.clip_by_norm, norm_constraint in Lasagne.",
        "global_clipnorm in Keras, tf.clip_by_global_norm, clip_grad_norm_ in PyTorch, total_norm_constraint "
        "in Lasagne.",
        {"update": _clip(clip="tensor")},
        1,
    ),
    Convention(
        "clip.missing",
        "Gradients not clipped",
        "Gradients above the limit are used as they are.",
        "Optimizers without clipping (Torch7), options set on another optimizer object.",
        "Clip between backward pass and update: clip_grad_norm_, global_clipnorm, clip_gradients in Caffe.",
        {"update": _clip(clip="none")},
        2,
    ),
    Convention(
        "clip.norm_epsilon",
        "A constant added to the norm",
        "1e-6 is added to the norm before dividing, which shrinks small gradients noticeably more.",
        "clip_grad_norm_ in PyTorch; total_norm_constraint in Lasagne adds 1e-7.",
        "Divide by max(norm, limit): torch.nn.utils.get_total_norm and a multiplication.",
        {"update": _norm_epsilon},
        2,
    ),
)
