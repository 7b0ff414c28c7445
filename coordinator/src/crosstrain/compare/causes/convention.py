"""What a convention is, and the place in a record where one is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from crosstrain.compare.certificate.comparison import Check, Problem, group
from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain_reference import Layer, Network
from crosstrain_service.model import Layer as PlainLayer

#: Alternatives of a computation: takes the computation as it is and the place, yields others.
Vary = Callable[[Any, "Place"], Iterator[Any]]


@dataclass(frozen=True)
class Convention:
    """One way in which an engine may depart from the canonical function.

    ``says`` is one sentence for somebody who does not know the convention; ``found_in`` names frameworks and
    versions;
    ``restore`` says what brings the canonical function back. ``vary`` gives, by stage (see :func:`stage_of`), what
    the computation becomes under the convention. ``specific`` orders conventions that explain the same: the
    smaller comes first.
    """

    id: str
    title: str
    says: str
    found_in: str
    restore: str
    vary: Mapping[str, Vary] = field(compare=False)
    specific: int = 5

    @property
    def family(self) -> str:
        """The first part of the id."""
        return self.id.split(".", 1)[0]


def stage_of(check: Check) -> str:
    """Which part of the computation a check belongs to."""
    kind = check.kind.split(",")[0]
    if kind == "input":
        part = check.subject.split(" of ")[0]
        return {"batch": "input", "labels": "labels", "mask": "mask"}.get(part, "rate")
    stages = {
        "initial weights": "weights", "forward": "layer", "backward": "layer", "gradient": "layer",
        "loss": "loss", "loss gradient": "loss", "update": "update", "state": "update",
    }  # fmt: skip
    return stages.get(kind, kind)


def tensor_name(check: Check) -> str:
    """Name of the engine's tensor that a check compares."""
    kind = check.kind.split(",")[0]
    subject = check.subject
    if kind == "input":
        if subject.startswith("mask of "):
            return "mask/" + subject[len("mask of ") :]
        return {"batch": "input", "learning rate": "learning_rate"}.get(subject, subject)
    if kind == "loss":
        return "loss" if subject == "training step" else "probe_loss"
    prefixes = {
        "initial weights": "parameter", "initial state": "state", "forward": "output", "gradient": "gradient",
        "loss gradient": "output_grad", "update": "parameter_after", "state": "state_after",
        "statistics": "statistic",
    }  # fmt: skip
    return "logits" if kind == "evaluation" else f"{prefixes.get(kind, kind)}/{subject}"


@dataclass
class Place:
    """A failed check with everything that alternatives may need; arrays are in the checking type."""

    problem: Problem
    network: Network
    records: Mapping[int, Arrays]
    check: Check

    @property
    def step(self) -> int:
        """The step; -1 for the evaluation."""
        return self.check.step

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """Floating-point type of the run."""
        return self.problem.arithmetic

    @property
    def record(self) -> Arrays:
        """The step's tensors."""
        return self.records[self.step]

    @cached_property
    def params(self) -> Arrays:
        """Parameters before the step."""
        return {name: self.arithmetic.wide(value) for name, value in group(self.record, "parameter").items()}

    @cached_property
    def found(self) -> np.ndarray:
        """The engine's value, as recorded."""
        name = tensor_name(self.check)
        if self.check.kind == "backward":
            name = "output_grad/" + self.network.layers[self.index - 1].name
        return np.asarray(self.record[name])

    @cached_property
    def index(self) -> int:
        """Position of the layer."""
        return [layer.name for layer in self.network.layers].index(self.check.layer)

    @cached_property
    def layer(self) -> Layer:
        """The layer that computed the value."""
        return self.network.layers[self.index]

    @cached_property
    def plain(self) -> PlainLayer:
        """The layer as the job describes it."""
        return self.problem.model.layers[self.index]

    @cached_property
    def x(self) -> np.ndarray:
        """The layer's input, from the engine."""
        name = f"output/{self.network.layers[self.index - 1].name}" if self.index else "input"
        return self.arithmetic.wide(self.record[name])

    @cached_property
    def dy(self) -> np.ndarray:
        """The gradient of the layer's output, from the engine."""
        return self.arithmetic.wide(self.record[f"output_grad/{self.layer.name}"])

    @cached_property
    def mask(self) -> np.ndarray | None:
        """The recorded dropout mask of the layer."""
        value = self.record.get(f"mask/{self.layer.name}")
        return None if value is None else self.arithmetic.wide(value)

    def exactly(self, value: np.ndarray) -> Bounded:
        """A value that admits no rounding."""
        return Bounded(value, 0.0)
