"""Update rules with running error bounds.

Four units in the last place, a natural guess, is wrong for rules that amplify their roundings, so the bound
is derived: every number is carried with a bound of its error (:class:`Approximate`), each operation adds
one rounding of its result and what its operands bring in. Constants count as rounded once to the run's
type, after 1 - beta and 1 - beta^t were formed exactly; recorded state counts as rounded twice (some
frameworks keep another form of it, such as the momentum buffer without the learning rate). The sum of
squares of a global norm has the bound of an inner product, see ``bounds``. Frameworks evaluate
algebraically equal forms with a few more operations, hence the factor 2 at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from crosstrain.compare.numerics.bounds import Arithmetic, Arrays, Bounded
from crosstrain_service.training import Training

_EQUAL_FORMS = 2.0


class Approximate:
    """Numbers known up to an error bound: ``value`` and ``error`` are arrays of one shape, or scalars."""

    def __init__(self, value: Any, error: Any, arithmetic: Arithmetic) -> None:
        self.value = value
        self.error = error
        self.arithmetic = arithmetic

    def _rounded(self, value: Any, error: Any) -> Approximate:
        arithmetic = self.arithmetic
        # Results below the smallest normal number may be flushed to zero.
        return Approximate(value, error + arithmetic.unit * np.abs(value) + arithmetic.tiny, arithmetic)

    def __add__(self, other: Approximate) -> Approximate:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Approximate) -> Approximate:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Approximate) -> Approximate:
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self._rounded(self.value * other.value, error)

    def __truediv__(self, other: Approximate) -> Approximate:
        value = self.value / other.value
        room = np.maximum(np.abs(other.value) - other.error, np.finfo(np.float64).tiny)
        return self._rounded(value, (self.error + np.abs(value) * other.error) / room)

    def root(self) -> Approximate:
        """The square root; a value whose error reaches zero may become anything from zero on."""
        value = np.sqrt(self.value)
        return self._rounded(
            value,
            value - np.sqrt(np.maximum(self.value - self.error, 0)) + np.sqrt(self.value + self.error) - value,
        )


def expected(
    training: Training,
    params: Arrays,
    gradients: Arrays,
    state: Arrays,
    learning_rate: float,
    step: int,
    arithmetic: Arithmetic,
    gradient_errors: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
    """Parameters and state after one update, with bounds; ``step`` counts from 0.

    ``gradient_errors`` bounds how far the gradients that the update used may be from the recorded ones.
    """
    rule = _Rules(training, learning_rate, step, arithmetic)
    taken = {
        name: Approximate(arithmetic.wide(value), (gradient_errors or {}).get(name, 0.0), arithmetic)
        for name, value in gradients.items()
    }
    if training.clip_norm:
        taken = rule.clipped(taken)
    after: dict[str, Bounded] = {}
    state_after: dict[str, Bounded] = {}
    for name, value in params.items():
        old = {key[len(name) + 1 :]: rule.stored(item) for key, item in state.items() if key.rsplit(".", 1)[0] == name}
        new, kept = rule.update(name, Approximate(arithmetic.wide(value), 0.0, arithmetic), taken[name], old)
        after[name] = Bounded(new.value, _EQUAL_FORMS * new.error)
        for key, item in kept.items():
            conversion = 2 * arithmetic.unit * np.abs(item.value)
            state_after[f"{name}.{key}"] = Bounded(item.value, _EQUAL_FORMS * (item.error + conversion))
    return after, state_after


class _Rules:
    def __init__(self, training: Training, learning_rate: float, step: int, arithmetic: Arithmetic) -> None:
        self.training = training
        self.arithmetic = arithmetic
        self.rate = self.constant(learning_rate)
        self.learning_rate = learning_rate
        self.count = step + 1

    def constant(self, value: float | None) -> Approximate:
        if value is None:
            raise ValueError("canonical semantics needs every constant")
        wide = self.arithmetic.work(value)
        return Approximate(wide, self.arithmetic.unit * abs(wide), self.arithmetic)

    def stored(self, value: np.ndarray) -> Approximate:
        wide = self.arithmetic.wide(value)
        return Approximate(wide, 2 * self.arithmetic.unit * np.abs(wide), self.arithmetic)

    def clipped(self, gradients: dict[str, Approximate]) -> dict[str, Approximate]:
        limit = self.training.clip_norm
        square = sum((item.value**2).sum() for item in gradients.values())
        count = sum(item.value.size for item in gradients.values())
        incoming = sum((2 * np.abs(item.value) * item.error).sum() for item in gradients.values())
        error = self.arithmetic.sum_of(count) * square + incoming
        norm = Approximate(square, error, self.arithmetic).root()
        if norm.value + norm.error < limit:
            return gradients
        if norm.value < limit:
            # So close to the limit that rounding decides: the factor may fall below 1.
            norm = Approximate(self.arithmetic.work(limit), norm.error, self.arithmetic)
        factor = self.constant(limit) / norm
        return {name: item * factor for name, item in gradients.items()}

    def update(
        self, name: str, weight: Approximate, gradient: Approximate, old: dict[str, Approximate]
    ) -> tuple[Approximate, dict[str, Approximate]]:
        decay = self.training.weight_decay
        if decay is not None and decay.applies_to(name):
            if decay.decoupled:
                weight = weight * self.constant(1.0 - self.learning_rate * decay.rate)
            else:
                gradient = gradient + self.constant(decay.rate) * weight
        change, kept = getattr(self, "_" + self.training.rule.name)(gradient, old)
        return weight - change, kept

    def _sgd(self, gradient: Approximate, old: dict[str, Approximate]) -> Any:
        rule = self.training.rule
        step = self.rate * gradient
        if not rule.momentum:
            return step, {}
        momentum = self.constant(rule.momentum)
        velocity = momentum * old["velocity"] + step
        return (momentum * velocity + step if rule.nesterov else velocity), {"velocity": velocity}

    def _mean(self, old: Approximate, new: Approximate, weight: float | None) -> Approximate:
        return self.constant(weight) * old + self.constant(1.0 - float(weight or 0.0)) * new

    def _rmsprop(self, gradient: Approximate, old: dict[str, Approximate]) -> Any:
        rule = self.training.rule
        square = self._mean(old["mean_square"], gradient * gradient, rule.rho)
        return self.rate * gradient / (square.root() + self.constant(rule.epsilon)), {"mean_square": square}

    def _adagrad(self, gradient: Approximate, old: dict[str, Approximate]) -> Any:
        total = old["accumulator"] + gradient * gradient
        root = total.root() + self.constant(self.training.rule.epsilon)
        return self.rate * gradient / root, {"accumulator": total}

    def _adam(self, gradient: Approximate, old: dict[str, Approximate]) -> Any:
        rule = self.training.rule
        first = self._mean(old["m"], gradient, rule.beta1)
        second = self._mean(old["v"], gradient * gradient, rule.beta2)
        first_hat = first / self.constant(1.0 - float(rule.beta1 or 0.0) ** self.count)
        second_hat = second / self.constant(1.0 - float(rule.beta2 or 0.0) ** self.count)
        return self.rate * first_hat / (second_hat.root() + self.constant(rule.epsilon)), {
            "m": first,
            "v": second,
        }

    def _adadelta(self, gradient: Approximate, old: dict[str, Approximate]) -> Any:
        rule = self.training.rule
        epsilon = self.constant(rule.epsilon)
        square = self._mean(old["mean_square"], gradient * gradient, rule.rho)
        step = gradient * (old["mean_update"] + epsilon).root() / (square + epsilon).root()
        update = self._mean(old["mean_update"], step * step, rule.rho)
        return self.rate * step, {"mean_square": square, "mean_update": update}
