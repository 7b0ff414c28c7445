"""For tests: an engine made of the reference in the run's own type, in which one convention is changed at will.

It shows what the checks see of a wrong convention, and which cause is named. Nothing here is used outside tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Problem
from crosstrain.compare.certificate.platform_streams import masks_of_step, rows_of_step
from crosstrain.compare.numerics.bounds import Arrays, network_of
from crosstrain_reference import (
    BatchNorm,
    Forward,
    Network,
    Optimizer,
    cross_entropy,
    cross_entropy_gradient,
)
from crosstrain_service.training import Training


def optimizer_of(training: Training, names: list[str]) -> Optimizer:
    """The reference's optimizer for some settings."""
    rule, decay = training.rule, training.weight_decay
    constants: dict[str, Any] = {
        "sgd": {"momentum": rule.momentum, "nesterov": rule.nesterov},
        "rmsprop": {"rho": rule.rho, "eps": rule.epsilon},
        "adagrad": {"eps": rule.epsilon, "initial_accumulator": rule.initial_accumulator},
        "adam": {"beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.epsilon},
        "adadelta": {"rho": rule.rho, "eps": rule.epsilon},
    }[rule.name]
    return Optimizer(
        rule.name,
        weight_decay=decay.rate if decay else 0.0,
        decoupled=bool(decay and decay.decoupled),
        decayed=[name for name in names if decay and decay.applies_to(name)],
        clip_norm=training.clip_norm or None,
        **constants,
    )


def reference_update(
    training: Training, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int
) -> tuple[Arrays, Arrays]:
    """The canonical update by the reference's optimizer."""
    return optimizer_of(training, list(params)).update(params, gradients, state, rate, step + 1)


class Simulated:
    """Records of a problem. Override a method to change a convention."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def typed(self, value: Any) -> np.ndarray:
        """A value in the run's type."""
        return np.ascontiguousarray(np.asarray(value, dtype=self.problem.dtype))

    def network(self) -> Network:
        """The layers."""
        return network_of(self.problem.model)

    def rows(self, step: int) -> np.ndarray:
        """Rows of a step's batch."""
        return rows_of_step(len(self.problem.data.labels), self.problem.training, step)

    def read(self, x: np.ndarray) -> np.ndarray:
        """The network's input for the job's."""
        return x

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """The labels that are used for the job's."""
        return labels

    def masks(self, step: int, samples: int) -> Mapping[str, np.ndarray]:
        """Dropout masks of a step."""
        return masks_of_step(self.problem.model, samples, self.problem.training, step)

    def initial(self) -> Mapping[str, np.ndarray]:
        """Initial parameters."""
        return self.problem.initial

    def initial_state(self, params: Arrays) -> Arrays:
        """Initial state of the optimizer."""
        return optimizer_of(self.problem.training, list(params)).init_state(params)

    def loss(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        """Mean loss."""
        return cross_entropy(logits, labels)

    def loss_gradient(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Its gradient."""
        return cross_entropy_gradient(logits, labels)

    def reported(self, loss: Any, before: Arrays, after: Arrays, batch: tuple[Any, ...]) -> Any:
        """The loss that the training step reports; ``batch`` is (input, labels, masks)."""
        return loss

    def gradients(self, gradients: Arrays) -> Arrays:
        """What becomes of the parameters' gradients."""
        return gradients

    def update(self, params: Arrays, gradients: Arrays, state: Arrays, rate: float, step: int) -> tuple[Arrays, Arrays]:
        """Parameters and state after a step counted from 0."""
        return reference_update(self.problem.training, params, gradients, state, rate, step)

    def statistics(self, params: Arrays, seen: list[Forward]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Batch norm statistics for evaluation: those of the training set, batch by batch in file order."""
        net, data = self.network(), self.problem.data
        size, samples = self.problem.training.batch_size, len(data.labels)
        sums: dict[str, list[np.ndarray]] = {}
        for start in range(0, samples, size):
            x = self.typed(self.read(data.inputs(np.arange(start, min(start + size, samples)))))
            for name, (mean, variance) in _forward(net, x, params).statistics.items():
                parts = sums.setdefault(name, [np.zeros_like(mean), np.zeros_like(mean)])
                parts[0] = parts[0] + len(x) * mean
                parts[1] = parts[1] + len(x) * (variance + mean * mean)
        found = {}
        for name, (first, second) in sums.items():
            mean = first / self.problem.dtype(samples)
            found[name] = (mean, second / self.problem.dtype(samples) - mean * mean)
        return found

    def logits(self, params: Arrays, x: np.ndarray, statistics: Any) -> np.ndarray:
        """Logits in evaluation mode."""
        net = self.network()
        return net.forward(x, params, train=False, statistics=statistics).outputs[net.layers[-1].name]

    def records(self) -> dict[int, Arrays]:
        """What a probe of all steps, and an evaluation where there is test data, would record."""
        problem, net = self.problem, self.network()
        params = {name: self.typed(value) for name, value in self.initial().items()}
        state = self.initial_state(params)
        found: dict[int, Arrays] = {}
        seen: list[Forward] = []
        for step, rate in enumerate(problem.training.learning_rates):
            rows = self.rows(step)
            x = self.typed(self.read(problem.data.inputs(rows)))
            labels = self.labels(problem.data.labels[rows])
            masks = {name: self.typed(mask) for name, mask in self.masks(step, len(rows)).items()}
            forward = net.forward(x, params, masks)
            seen.append(forward)
            logits = forward.outputs[net.layers[-1].name]
            backward = net.backward(self.loss_gradient(logits, labels), forward, params)
            gradients = {name: self.typed(value) for name, value in self.gradients(backward.params).items()}
            after, state_after = self.update(params, gradients, state, float(rate), step)
            loss = np.float64(self.loss(logits, labels))
            record: Arrays = {
                "input": x,
                "labels": labels,
                "learning_rate": np.asarray(rate, np.float64),
                "loss": np.asarray(self.reported(loss, params, after, (x, labels, masks)), np.float64),
                "probe_loss": np.asarray(loss),
            }
            for prefix, values in (
                ("mask", masks), ("parameter", params), ("state", state), ("output", forward.outputs),
                ("output_grad", backward.outputs), ("gradient", gradients), ("parameter_after", after),
                ("state_after", state_after),
            ):  # fmt: skip
                record.update({f"{prefix}/{name}": np.asarray(value) for name, value in values.items()})
            found[step] = record
            params, state = after, state_after
        if problem.test is not None:
            statistics = self.statistics(params, seen)
            x = self.typed(self.read(problem.test.inputs(np.arange(len(problem.test.labels)))))
            found[-1] = {"logits": self.logits(params, x, statistics)}
            for name, (mean, variance) in statistics.items():
                found[-1][f"statistic/{name}.running_mean"] = self.typed(mean)
                found[-1][f"statistic/{name}.running_var"] = self.typed(variance)
        return found


def _forward(net: Network, x: np.ndarray, params: Arrays) -> Forward:
    """A pass with batch norm in training mode and everything else in evaluation mode."""
    outputs: Arrays = {}
    traces = {}
    y = x
    for layer in net.layers:
        y, traces[layer.name] = layer.forward(y, params, isinstance(layer, BatchNorm))
        outputs[layer.name] = y
    return Forward(x, outputs, traces)
