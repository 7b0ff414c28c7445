"""One update, in the canonical form or any other that frameworks have: a :class:`Form` says which.

The canonical form of every rule is that of :class:`crosstrain_service.training.Rule`. The other fields of a form
are the ways in which frameworks depart from it; each default is the canonical choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crosstrain.compare.numerics.approximate import Approximate
from crosstrain.compare.numerics.rounding import Arithmetic, Arrays, Bounded
from crosstrain_service.training import Rule, Training

_EQUAL_FORMS = 2.0
Gradients = tuple[Arrays, Mapping[str, Any]]


@dataclass(frozen=True)
class Form:
    """An update rule with everything around it.

    ``decays`` is "weights", "all", "biases" or "none"; ``clip`` "global", "tensor" or "none"; ``epsilon`` "outside",
    "inside" or "hat" (beside the uncorrected root); ``momentum`` "canonical", "dampened" (new gradients times 1 - mu
    from the second step on), "always dampened", "rate outside" (the buffer holds no learning rate), "ahead" (gradient
    at the weights moved by the old velocity), "missing" or "missing, unused buffer" (a buffer that stays as it is).
    ``rate`` is this step's learning rate, ``before`` that of the step before (of this one at step 0). ``short`` lists
    what is formed from float32 constants: "differences" (1 - beta), "powers" (1 - beta^t in float32), "betas"
    (1 - beta^t in float64 of a beta rounded to float32). ``weights``: what each sample's loss counts, the mean being
    canonical where all are 1; empty for that.
    """

    rule: Rule
    rate: float
    before: float
    decay: float = 0.0
    decoupled: bool = False
    decays: str = "weights"
    decay_before_clip: bool = False
    clip_norm: float = 0.0
    clip: str = "global"
    clip_epsilon: float = 0.0
    epsilon: str = "outside"
    corrected: bool = True
    amsgrad: bool = False
    momentum: str = "canonical"
    gradient_factor: float = 1.0
    short: str = ""
    weights: tuple[float, ...] = ()

    def applies_to(self, name: str) -> bool:
        """Whether a parameter is decayed."""
        weight = name.endswith(".weight")
        return self.decay > 0 and {"weights": weight, "all": True, "biases": not weight, "none": False}[self.decays]


def canonical_form(training: Training, step: int) -> Form:
    """What a training asks for at a step counted from 0."""
    decay = training.weight_decay
    rates = training.learning_rates
    return Form(
        training.rule,
        float(rates[step]),
        float(rates[max(step - 1, 0)]),
        decay.rate if decay else 0.0,
        bool(decay and decay.decoupled),
        "all" if decay and decay.include_biases else "weights",
        clip_norm=training.clip_norm,
        clip="global" if training.clip_norm else "none",
    )


@dataclass
class Start:
    """What an update starts from: the engine's parameters, gradients and state, in the checking type.

    ``errors`` bounds how far the gradients that were used may be from these; ``highest`` holds the largest second
    moment that was recorded before, by parameter (for AMSGrad); ``ahead`` gives gradients at other parameters,
    ``weighted`` those of weighted samples, at the picked elements.
    A start may be ``sampled``: then ``full`` is the whole one, which norms are taken of.
    """

    params: Arrays
    gradients: Arrays
    state: Arrays
    step: int
    arithmetic: Arithmetic
    errors: Mapping[str, Any] = field(default_factory=dict)
    highest: Arrays = field(default_factory=dict)
    ahead: Callable[[Arrays], Gradients] | None = None
    weighted: Callable[[tuple[float, ...], Mapping[str, np.ndarray]], Gradients] | None = None
    full: Start | None = None
    picks: Mapping[str, np.ndarray] = field(default_factory=dict)
    _norms: dict[Any, Approximate] = field(default_factory=dict)

    def sampled(self, picks: Mapping[str, np.ndarray]) -> Start:
        """The same at some elements: ``picks`` holds flat indices by parameter."""
        parts = {
            name: {key: _pick(value, picks[_owner(key, picks)]) for key, value in items.items()}
            for name, items in (("params", self.params), ("gradients", self.gradients), ("state", self.state),
                                ("errors", self.errors), ("highest", self.highest))
        }  # fmt: skip
        return Start(step=self.step, arithmetic=self.arithmetic, ahead=self.ahead, weighted=self.weighted, full=self,
                     picks=picks, **parts)  # fmt: skip


def _owner(key: str, picks: Mapping[str, np.ndarray]) -> str:
    return key if key in picks else key.rsplit(".", 1)[0]


def _pick(value: Any, chosen: np.ndarray) -> Any:
    value = np.asarray(value)
    return value.reshape(-1)[chosen] if value.ndim else value


def apply(form: Form, start: Start) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
    """Parameters and state after one update, with bounds.

    Raises ``KeyError`` where the rule needs a state that is not there, ``ValueError`` where a constant is missing.
    """
    rule = _Rules(form, start)
    after: dict[str, Bounded] = {}
    state_after: dict[str, Bounded] = {}
    arithmetic = start.arithmetic
    gradients = rule.gradients()
    for name, value in start.params.items():
        old = {
            key[len(name) + 1 :]: rule.stored(item)
            for key, item in start.state.items()
            if key.rsplit(".", 1)[0] == name
        }
        new, kept = rule.update(name, Approximate(value, 0.0, arithmetic), gradients[name], old)
        after[name] = Bounded(new.value, _EQUAL_FORMS * new.error)
        for key, item in kept.items():
            conversion = 2 * arithmetic.unit * np.abs(item.value)
            state_after[f"{name}.{key}"] = Bounded(item.value, _EQUAL_FORMS * (item.error + conversion))
    return after, state_after


class _Rules:
    def __init__(self, form: Form, start: Start) -> None:
        self.form = form
        self.start = start
        self.arithmetic = start.arithmetic
        self.rate = self.constant(form.rate)
        self.count = start.step + 1

    def constant(self, value: float | None) -> Approximate:
        if value is None:
            raise ValueError("canonical semantics needs every constant")
        wide = self.arithmetic.work(value)
        return Approximate(wide, self.arithmetic.unit * abs(wide), self.arithmetic)

    def stored(self, value: np.ndarray) -> Approximate:
        wide = self.arithmetic.wide(value)
        return Approximate(wide, 2 * self.arithmetic.unit * np.abs(wide), self.arithmetic)

    def gradients(self) -> dict[str, Approximate]:
        """Gradients as they enter the rule or, where decay comes after, the decay."""
        start, form = self.start, self.form
        found = self._prepared(start)
        if form.clip == "none" or not form.clip_norm:
            return found
        if form.clip == "tensor":
            norms = {name: self._norm((name,)) for name in found}
        else:
            norm = self._norm(tuple(start.params))
            norms = {name: norm for name in found}
        return {name: self._clipped(value, norms[name]) for name, value in found.items()}

    def _prepared(self, start: Start) -> dict[str, Approximate]:
        form = self.form
        values, errors = start.gradients, start.errors
        if form.momentum == "ahead":
            values, errors = self._ahead()
        elif form.weights:
            values, errors = self._weighted(start)
        found = {}
        for name, value in values.items():
            gradient = Approximate(value, errors.get(name, 0.0), self.arithmetic)
            if form.gradient_factor != 1.0:
                gradient = self.constant(form.gradient_factor) * gradient
            if form.decay_before_clip and not form.decoupled and form.applies_to(name):
                gradient = gradient + self.constant(form.decay) * Approximate(start.params[name], 0.0, self.arithmetic)
            found[name] = gradient
        return found

    def _ahead(self) -> Gradients:
        start = self.start
        whole = start.full or start
        if start.ahead is None:
            raise ValueError("no gradients at other parameters")
        momentum = float(self.form.rule.momentum or 0.0)
        moved = {name: value - momentum * whole.state[name + ".velocity"] for name, value in whole.params.items()}
        values, errors = start.ahead(moved)
        if not start.picks:
            return values, errors
        picks = start.picks
        return ({name: _pick(value, picks[name]) for name, value in values.items()},
                {name: _pick(value, picks[name]) for name, value in errors.items()})  # fmt: skip

    def _weighted(self, start: Start) -> Gradients:
        if start.weighted is None:
            raise ValueError("no gradients of weighted samples")
        values, errors = start.weighted(self.form.weights, start.picks)
        return values, {name: error + start.errors.get(name, 0.0) for name, error in errors.items()}

    def _norm(self, names: tuple[str, ...]) -> Approximate:
        whole = self.start.full or self.start
        form = self.form
        key = (names, form.momentum == "ahead", form.gradient_factor, form.decay_before_clip, form.decay, form.decays)
        if key not in whole._norms:
            full = _Rules(form, whole)._prepared(whole)
            square = sum((full[name].value ** 2).sum() for name in names)
            count = sum(full[name].value.size for name in names)
            incoming = sum((2 * np.abs(full[name].value) * full[name].error).sum() for name in names)
            error = self.arithmetic.sum_of(count) * square + incoming
            whole._norms[key] = Approximate(square, error, self.arithmetic).root()
        return whole._norms[key]

    def _clipped(self, gradient: Approximate, norm: Approximate) -> Approximate:
        limit = self.form.clip_norm
        if norm.value + norm.error < limit:
            return gradient
        if norm.value < limit:
            # So close to the limit that rounding decides: the factor may fall below 1.
            norm = Approximate(self.arithmetic.work(limit), norm.error, self.arithmetic)
        if self.form.clip_epsilon:
            norm = norm + self.constant(self.form.clip_epsilon)
        return gradient * (self.constant(limit) / norm)

    def update(
        self, name: str, weight: Approximate, gradient: Approximate, old: dict[str, Approximate]
    ) -> tuple[Approximate, dict[str, Approximate]]:
        form = self.form
        if form.applies_to(name) and form.decoupled:
            weight = weight * self.constant(1.0 - form.rate * form.decay)
        elif form.applies_to(name) and not form.decay_before_clip:
            gradient = gradient + self.constant(form.decay) * weight
        change, kept = getattr(self, "_" + form.rule.name)(gradient, old, name)
        return weight - change, kept

    def _sgd(self, gradient: Approximate, old: dict[str, Approximate], name: str) -> Any:
        rule, form = self.form.rule, self.form
        step = self.rate * gradient
        if not rule.momentum:
            return step, {}
        momentum = self.constant(rule.momentum)
        velocity = old["velocity"]
        if form.momentum == "rate outside":
            velocity = self.constant(form.rate / form.before if form.before else 0.0) * velocity
        part = step
        if form.momentum == "always dampened" or (form.momentum == "dampened" and self.count > 1):
            part = self.constant(1.0 - rule.momentum) * step
        if form.momentum.startswith("missing"):
            return step, {"velocity": velocity if "unused" in form.momentum else step}
        velocity = momentum * velocity + part
        return (momentum * velocity + step if rule.nesterov else velocity), {"velocity": velocity}

    def _mean(self, old: Approximate, new: Approximate, weight: float | None) -> Approximate:
        rest = 1.0 - float(weight or 0.0)
        if "differences" in self.form.short:
            rest = float(np.float32(1) - np.float32(weight or 0.0))
        return self.constant(weight) * old + self.constant(rest) * new

    def _correction(self, beta: float | None) -> float:
        if "powers" in self.form.short:
            return float(np.float32(1) - np.power(np.float32(beta or 0.0), np.float32(self.count)))
        if "betas" in self.form.short:
            return 1.0 - float(np.float32(beta or 0.0)) ** self.count
        return 1.0 - float(beta or 0.0) ** self.count

    def _root(self, square: Approximate) -> Approximate:
        epsilon = self.constant(self.form.rule.epsilon)
        return (square + epsilon).root() if self.form.epsilon == "inside" else square.root() + epsilon

    def _rmsprop(self, gradient: Approximate, old: dict[str, Approximate], name: str) -> Any:
        square = self._mean(old["mean_square"], gradient * gradient, self.form.rule.rho)
        return self.rate * gradient / self._root(square), {"mean_square": square}

    def _adagrad(self, gradient: Approximate, old: dict[str, Approximate], name: str) -> Any:
        total = old["accumulator"] + gradient * gradient
        return self.rate * gradient / self._root(total), {"accumulator": total}

    def _adam(self, gradient: Approximate, old: dict[str, Approximate], name: str) -> Any:
        rule, form = self.form.rule, self.form
        first = self._mean(old["m"], gradient, rule.beta1)
        second = self._mean(old["v"], gradient * gradient, rule.beta2)
        kept = {"m": first, "v": second}
        used = second
        if form.amsgrad and name in self.start.highest:
            used = second.largest(self.stored(self.start.highest[name]))
        if not form.corrected:
            return self.rate * first / self._root(used), kept
        first_correction, second_correction = self._correction(rule.beta1), self._correction(rule.beta2)
        if form.epsilon == "hat":
            rate = self.rate * self.constant(second_correction**0.5 / first_correction)
            return rate * first / self._root(used), kept
        first_hat = first / self.constant(first_correction)
        return self.rate * first_hat / self._root(used / self.constant(second_correction)), kept

    def _adadelta(self, gradient: Approximate, old: dict[str, Approximate], name: str) -> Any:
        rule = self.form.rule
        epsilon = self.constant(rule.epsilon)
        square = self._mean(old["mean_square"], gradient * gradient, rule.rho)
        step = gradient * (old["mean_update"] + epsilon).root() / (square + epsilon).root()
        update = self._mean(old["mean_update"], step * step, rule.rho)
        return self.rate * step, {"mean_square": square, "mean_update": update}


def with_rule(form: Form, **constants: Any) -> Form:
    """A form with other constants of its rule."""
    return replace(form, rule=replace(form.rule, **constants))
