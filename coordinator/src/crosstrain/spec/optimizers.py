"""Update rules in a job document, and the constants that canonical semantics gives them.

The formulas are those of ``training.proto``. A constant that is not given has the value
below in canonical semantics, and the framework's own default in native semantics.

=========  ======================================================  =================================
rule       constants                                               canonical
=========  ======================================================  =================================
sgd        momentum, nesterov                                      0, false
rmsprop    rho, epsilon (outside the root)                         0.9, 1e-7
adagrad    epsilon (outside the root), initial_accumulator         1e-7, 0.1
adam       beta1, beta2, epsilon (beside the corrected root)       0.9, 0.999, 1e-8
adamw      as adam, and weight_decay (decoupled)                   as adam, 0.01
adadelta   rho, epsilon (inside both roots)                        0.95, 1e-6
=========  ======================================================  =================================

Adagrad starts its accumulator at 0.1 rather than 0: from 0 the first step is
``learning_rate * sign(g)``, which turns rounding noise of a gradient near 0 into a whole step.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from .base import NotNegative, Part, Positive, Share


class Rule(Part):
    """An update rule; ``learning_rate`` is the base rate that the schedule starts from."""

    #: Name of the rule in the API, and the constants of canonical semantics.
    api_name: ClassVar[str]
    canonical: ClassVar[dict[str, Any]]

    learning_rate: Positive

    def constants(self, native: bool) -> dict[str, Any]:
        """Constants to send; in native semantics those that were given only."""
        given = {name: getattr(self, name) for name in self.canonical}
        if native:
            return {name: value for name, value in given.items() if value is not None}
        return {name: self.canonical[name] if value is None else value for name, value in given.items()}


class Sgd(Rule):
    """v = momentum v + lr g; w -= v."""

    api_name: ClassVar[str] = "sgd"
    canonical: ClassVar[dict[str, Any]] = {"momentum": 0.0, "nesterov": False}
    momentum: Share | None = None
    nesterov: bool | None = None


class RmsProp(Rule):
    """s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + epsilon)."""

    api_name: ClassVar[str] = "rmsprop"
    canonical: ClassVar[dict[str, Any]] = {"rho": 0.9, "epsilon": 1e-7}
    rho: Share | None = None
    epsilon: Positive | None = None


class Adagrad(Rule):
    """a += g^2; w -= lr g / (sqrt(a) + epsilon)."""

    api_name: ClassVar[str] = "adagrad"
    canonical: ClassVar[dict[str, Any]] = {"epsilon": 1e-7, "initial_accumulator": 0.1}
    epsilon: Positive | None = None
    initial_accumulator: NotNegative | None = None


class Adam(Rule):
    """w -= lr m_hat / (sqrt(v_hat) + epsilon)."""

    api_name: ClassVar[str] = "adam"
    canonical: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    beta1: Share | None = None
    beta2: Share | None = None
    epsilon: Positive | None = None


class AdamW(Adam):
    """Adam with w *= 1 - lr weight_decay before the rule, on weights but not on biases."""

    weight_decay: NotNegative = 0.01


class AdaDelta(Rule):
    """d = g sqrt(u + epsilon) / sqrt(s + epsilon); w -= lr d."""

    api_name: ClassVar[str] = "adadelta"
    canonical: ClassVar[dict[str, Any]] = {"rho": 0.95, "epsilon": 1e-6}
    rho: Share | None = None
    epsilon: Positive | None = None


class OptimizerSpec(Part):
    """Exactly one rule, for example ``{sgd: {learning_rate: 0.05, momentum: 0.9}}``."""

    sgd: Sgd | None = None
    rmsprop: RmsProp | None = None
    adagrad: Adagrad | None = None
    adam: Adam | None = None
    adamw: AdamW | None = None
    adadelta: AdaDelta | None = None

    @model_validator(mode="after")
    def _one(self) -> OptimizerSpec:
        if len(self.model_fields_set) != 1 or self._rules() == []:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one rule with its learning_rate; known are {known}")
        return self

    def _rules(self) -> list[Rule]:
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value for value in values if value is not None]

    @property
    def rule(self) -> Rule:
        """The rule that was given."""
        return self._rules()[0]

    def resolved(self, native: bool) -> OptimizerSpec:
        """The same with every constant that will be sent."""
        name = next(iter(self.model_fields_set))
        return self.model_copy(update={name: self.rule.model_copy(update=self.rule.constants(native))})
