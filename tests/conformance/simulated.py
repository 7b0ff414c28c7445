"""An engine made of the reference in the run's own type, with one convention changed at will.

It shows that the checks see a wrong convention, and where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from crosstrain.compare.certificate.checks import Problem
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.numerics.bounds import Arrays, network_of
from crosstrain_reference import Network, Optimizer, cross_entropy, cross_entropy_gradient
from crosstrain_service.training import Training

Update = Callable[[Training, Arrays, Arrays, Arrays, float, int], tuple[Arrays, Arrays]]


def reference_update(
    training: Training, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int
) -> tuple[Arrays, Arrays]:
    """The canonical update by the reference's optimizer (all rules but AdaDelta)."""
    return optimizer_of(training, list(params)).update(params, gradients, state, rate, step + 1)


def optimizer_of(training: Training, names: list[str]) -> Optimizer:
    """The reference's optimizer for some settings."""
    rule, decay = training.rule, training.weight_decay
    constants: dict[str, Any] = {
        "sgd": {"momentum": rule.momentum, "nesterov": rule.nesterov},
        "rmsprop": {"rho": rule.rho, "eps": rule.epsilon},
        "adagrad": {"eps": rule.epsilon, "initial_accumulator": rule.initial_accumulator},
        "adam": {"beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.epsilon},
    }[rule.name]
    return Optimizer(
        rule.name,
        weight_decay=decay.rate if decay else 0.0,
        decoupled=bool(decay and decay.decoupled),
        decayed=[name for name in names if decay and decay.applies_to(name)],
        clip_norm=training.clip_norm or None,
        **constants,
    )


class Simulated:
    """Records of a case. Override :meth:`network`, :meth:`loss`, :meth:`loss_gradient`, :meth:`update` or
    :meth:`rows` to change a convention."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def network(self) -> Network:
        """The layers."""
        return network_of(self.problem.model)

    def rows(self, step: int) -> np.ndarray:
        """Rows of a step's batch."""
        return rows_of_step(len(self.problem.data.labels), self.problem.training, step)

    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        """Mean loss."""
        return cross_entropy(logits, labels)

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Its gradient."""
        return cross_entropy_gradient(logits, labels)

    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> tuple[Arrays, Arrays]:
        """Parameters and state after a step counted from 0."""
        return reference_update(self.problem.training, params, gradients, state, rate, step)

    def records(self) -> dict[int, Arrays]:
        """What a probe of all steps would record."""
        problem, net = self.problem, self.network()
        params = {name: value.astype(problem.dtype) for name, value in problem.initial.items()}
        state = optimizer_of(problem.training, list(params)).init_state(params)
        found = {}
        for step, rate in enumerate(problem.training.learning_rates):
            rows = self.rows(step)
            x, labels = problem.data.inputs(rows).astype(problem.dtype), problem.data.labels[rows]
            masks = masks_of_step(problem.model, len(rows), problem.training, step)
            masks = {name: mask.astype(problem.dtype) for name, mask in masks.items()}
            forward = net.forward(x, params, masks)
            logits = forward.outputs[net.layers[-1].name]
            backward = net.backward(self.loss_gradient(logits, labels), forward, params)
            after, state_after = self.update(params, backward.params, state, float(rate), step)
            loss = np.float64(self.loss(logits, labels))
            record = {
                "input": x,
                "labels": labels,
                "learning_rate": np.float64(rate),
                "loss": loss,
                "probe_loss": loss,
            }
            for prefix, values in (
                ("mask", masks), ("parameter", params), ("state", state), ("output", forward.outputs),
                ("output_grad", backward.outputs), ("gradient", backward.params), ("parameter_after", after),
                ("state_after", state_after),
            ):  # fmt: skip
                record.update({f"{prefix}/{name}": np.asarray(value) for name, value in values.items()})
            found[step] = record
            params, state = after, state_after
        return found
