"""The certificate of one case: all checks in the order of computation, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crosstrain.compare.certificate.checks import check_records, initial_state
from crosstrain.compare.certificate.comparison import Check, NotComparable, Problem
from crosstrain.compare.numerics.bounds import Arrays
from crosstrain_service.model import Dropout


@dataclass(frozen=True)
class Certificate:
    """All checks of one case, in the order in which a step is computed: input, forward 1 to n, loss, loss gradient,
    backward and gradients n to 1, update, state; evaluation last.
    """

    case: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that do not hold."""
        return tuple(check for check in self.checks if not check.holds)

    @property
    def holds(self) -> bool:
        """Whether every check holds: the engine computed the problem's function up to rounding."""
        return not self.failed

    @property
    def first_failure(self) -> Check | None:
        """The first failed check; nothing before it in the computation is wrong."""
        return next((check for check in self.checks if not check.holds), None)

    def worst_by_kind(self) -> dict[str, Check]:
        """The check of largest ratio of every kind."""
        worst: dict[str, Check] = {}
        for check in self.checks:
            if check.kind not in worst or check.ratio > worst[check.kind].ratio:
                worst[check.kind] = check
        return worst

    @property
    def ties(self) -> int:
        """Gradients at tied maxima of pooling windows that the engine decided otherwise."""
        return sum(check.ties for check in self.checks)

    @property
    def zeros(self) -> int:
        """Gradients at ReLU inputs of exactly 0 that the engine decided otherwise."""
        return sum(check.zeros for check in self.checks)

    @property
    def identical(self) -> bool:
        """Whether every value is that of the reference, without any rounding."""
        return all(check.ratio == 0 for check in self.checks)


def certify(problem: Problem, records: Mapping[int, Arrays], case: str = "start") -> Certificate:
    """Checks the recorded steps of one case; ``records`` maps steps (-1: evaluation) to tensors by name.

    Raises :class:`NotComparable` where records are missing, incomplete, damaged or of another problem. A value that
    the engine computed wrong, not finite or of another shape is a failed check.
    """
    validate(problem, records)
    with np.errstate(all="ignore"):
        return Certificate(case, tuple(check_records(problem, records)))


def validate(problem: Problem, records: Mapping[int, Arrays]) -> None:
    """Raises :class:`NotComparable` unless the records hold what the problem's checks need."""
    steps = sorted(step for step in records if step >= 0)
    if not steps:
        raise NotComparable("no step is recorded")
    if steps[-1] >= len(problem.training.learning_rates):
        raise NotComparable(f"step {steps[-1]} is recorded, but the problem has {len(problem.training.learning_rates)}")
    shapes = problem.model.parameter_shapes()
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    layers = [layer.name for layer in problem.model.layers]
    dropped = [layer.name for layer in problem.model.layers if isinstance(layer, Dropout) and layer.rate]
    states = {name: value.shape for name, value in initial_state(problem).items()}
    for step in steps:
        record = records[step]
        _numbers(record, f"step {step}")
        for name in ("input", "labels", "learning_rate", "loss", "probe_loss"):
            _need(record, name, step)
        for prefix, names in (
            ("parameter", wanted), ("parameter_after", wanted), ("gradient", wanted), ("state", states),
            ("state_after", states),
        ):  # fmt: skip
            _exact(record, prefix, names, step)
        for layer in layers:
            _need(record, f"output/{layer}", step)
            _need(record, f"output_grad/{layer}", step)
        for name in dropped:
            _need(record, f"mask/{name}", step)
        _labels(record["labels"], problem.model.classes, record[f"output/{layers[-1]}"], step)
    if -1 in records:
        _numbers(records[-1], "the evaluation")
        if problem.test is None:
            raise NotComparable("an evaluation is recorded, but the problem has no test data")
        _need(records[-1], "logits", -1)
        for name, shape in problem.model.statistics_shapes().items():
            value = _need(records[-1], f"statistic/{name}", -1)
            if value.shape != tuple(shape):
                raise NotComparable(f"the evaluation's {name} has shape {value.shape}, expected {tuple(shape)}")


def _need(record: Arrays, name: str, step: int) -> np.ndarray:
    if name not in record:
        raise NotComparable(f"step {step}: {name} is not recorded")
    return record[name]


def _numbers(record: Arrays, where: str) -> None:
    for name, value in record.items():
        if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "fiu":
            raise NotComparable(f"{where}: {name} does not hold numbers")


def _exact(record: Arrays, prefix: str, shapes: Mapping[str, tuple[int, ...]], step: int) -> None:
    """The tensors that the model needs, with its shapes; others would belong to another rule or model."""
    for name, shape in shapes.items():
        value = _need(record, f"{prefix}/{name}", step)
        if value.shape != shape:
            raise NotComparable(f"step {step}: {prefix}/{name} has shape {value.shape}, the model has {shape}")


def _labels(labels: np.ndarray, classes: int, logits: np.ndarray, step: int) -> None:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise NotComparable(f"step {step}: labels are {labels.dtype} {labels.shape}, expected integers (N,)")
    if logits.ndim == 2 and len(logits) != len(labels):
        raise NotComparable(f"step {step}: {len(labels)} labels, but logits of {len(logits)} samples")
