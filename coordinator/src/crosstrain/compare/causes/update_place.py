"""The update of one step with everything that alternative forms need, whole or at a sample of its elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from crosstrain.compare.causes.weighted import WeightedSamples
from crosstrain.compare.certificate.comparison import Check, Problem, group, ratios
from crosstrain.compare.certificate.update_checks import gradient_distance
from crosstrain.compare.numerics import bounds, forms, updates
from crosstrain.compare.numerics.bounds import Arrays, Bounded
from crosstrain.compare.numerics.forms import Form, Start, canonical_form
from crosstrain.compare.numerics.losses import loss_gradient
from crosstrain_reference import BatchNorm, Network, Trace

# Elements of every tensor that an alternative is tried on first.
_SAMPLE = 24


@dataclass
class UpdatePlace:
    """One step's update; ``failed`` are its checks that do not hold."""

    problem: Problem
    network: Network
    records: Mapping[int, Arrays]
    step: int
    failed: tuple[Check, ...]
    picks: Mapping[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def own_start(self) -> dict[str, float]:
        """See the function of that name."""
        return own_start(self.records, self.problem)

    @property
    def record(self) -> Arrays:
        """The step's tensors."""
        return self.records[self.step]

    @property
    def batch(self) -> int:
        """Samples of the batch."""
        return len(self.record["labels"])

    @property
    def rates(self) -> np.ndarray:
        """Learning rates of all steps."""
        return self.problem.training.learning_rates

    def canonical(self) -> Form:
        """What the job asks for."""
        return canonical_form(self.problem.training, self.step)

    @cached_property
    def start(self) -> Start:
        """The engine's own values before the update."""
        arithmetic = bounds.arithmetic_of(self.problem.dtype)
        params, gradients, state = (group(self.record, prefix) for prefix in ("parameter", "gradient", "state"))
        start = updates.start_of(params, gradients, state, self.step, arithmetic)
        start.highest = self._highest()
        start.ahead = self._gradients_at
        start.weighted = WeightedSamples(self.network, self.record, arithmetic)
        return start

    @cached_property
    def found(self) -> tuple[Arrays, Arrays]:
        """The engine's parameters and state after the update."""
        return group(self.record, "parameter_after"), group(self.record, "state_after")

    def _highest(self) -> Arrays:
        highest: Arrays = {}
        for step in sorted(item for item in self.records if 0 <= item <= self.step):
            for key, value in group(self.records[step], "state").items():
                name, _, part = key.rpartition(".")
                if part == "v":
                    highest[name] = np.maximum(highest.get(name, value), value)
        return highest

    def _gradients_at(self, params: Arrays) -> forms.Gradients:
        """Gradients of the batch at other parameters, with the bounds of a whole pass."""
        arithmetic = bounds.arithmetic_of(self.problem.dtype)
        masks = {name: arithmetic.wide(value) for name, value in group(self.record, "mask").items()}
        x = Bounded(arithmetic.wide(self.record["input"]))
        inputs: dict[str, Any] = {}
        traces = {}
        for layer in self.network.layers:
            inputs[layer.name] = x.error
            x, traces[layer.name] = bounds.forward(layer, x, params, arithmetic, mask=masks.get(layer.name))
        dy = loss_gradient(x.value, self.record["labels"], x.error, arithmetic)
        values, errors = {}, {}
        for layer in reversed(self.network.layers):
            dy, own = bounds.backward(layer, dy, traces[layer.name], params, arithmetic, inputs[layer.name])
            for name, gradient in own.items():
                values[name], errors[name] = gradient.value, np.asarray(gradient.error)
        if not tells(values, errors):
            raise ValueError("the bounds of a whole pass are larger than the gradients")
        return values, errors

    @cached_property
    def local(self) -> dict[str, Any]:
        """Twice the rounding bound of each gradient: the same products added in another order."""
        arithmetic = bounds.arithmetic_of(self.problem.dtype)
        params = {name: arithmetic.wide(value) for name, value in group(self.record, "parameter").items()}
        before = "input"
        found: dict[str, Any] = {}
        for layer in self.network.layers:
            if any(name.startswith(layer.name + ".") for name in params):
                x = arithmetic.wide(self.record[before])
                dy = Bounded(arithmetic.wide(self.record[f"output_grad/{layer.name}"]))
                trace = layer.forward(x, params, True)[1] if isinstance(layer, BatchNorm) else Trace(x, True)
                _, own = bounds.backward(layer, dy, trace, params, arithmetic)
                found.update({name: 2 * np.asarray(value.error) for name, value in own.items()})
            before = f"output/{layer.name}"
        return found

    @cached_property
    def own_pass(self) -> dict[str, Any]:
        """How far two correct passes may be apart."""
        return dict(gradient_distance(self.network, self.record, bounds.arithmetic_of(self.problem.dtype)))

    def evaluate(self, form: Form) -> tuple[dict[str, Bounded], dict[str, Bounded]]:
        """Parameters and state after the update in a form; ``ValueError`` or ``KeyError`` where it cannot be had."""
        return forms.apply(form, self.start)

    def with_errors(self, errors: Mapping[str, Any]) -> UpdatePlace:
        """The same with gradients that may be off by ``errors``."""
        other = UpdatePlace(self.problem, self.network, self.records, self.step, self.failed, self.picks)
        start = updates.start_of(
            self.start.params, self.start.gradients, self.start.state, self.step, self.start.arithmetic, errors)
        start.highest, start.ahead, start.weighted = self.start.highest, self.start.ahead, self.start.weighted
        other.__dict__["start"] = start
        return other

    def sampled(self) -> UpdatePlace:
        """The same at some elements of every tensor, those of the failed checks' worst ones among them."""
        random = np.random.RandomState(0)
        picks = {}
        for name, value in self.start.params.items():
            chosen = random.permutation(value.size)[:_SAMPLE]
            worst = [
                int(np.ravel_multi_index(check.coordinates, value.shape))
                for check in self.failed
                if check.coordinates is not None and check.subject in (name, *(f"{name}.{part}" for part in _PARTS))
            ]
            picks[name] = np.unique(np.concatenate([chosen, np.array(worst, dtype=np.int64)]))
        other = UpdatePlace(self.problem, self.network, self.records, self.step, self.failed, picks)
        other.__dict__["start"] = self.start.sampled(picks)
        after, state = self.found
        other.__dict__["found"] = (
            {name: value.reshape(-1)[picks[name]] for name, value in after.items()},
            {key: value.reshape(-1)[picks[key.rsplit(".", 1)[0]]] for key, value in state.items()},
        )
        return other

    def ratio(self, form: Form, parameters_only: bool = False) -> float:
        """The largest error over its bound, over all tensors; infinity where a tensor is not predicted."""
        try:
            after, state = self.evaluate(form)
        except (KeyError, ValueError):
            return float("inf")
        found, found_state = self.found
        worst = 0.0
        pairs = [(found[name], after[name]) for name in found if name in after]
        if not parameters_only:
            if set(found_state) - set(state):
                return float("inf")
            pairs += [(found_state[name], state[name]) for name in found_state]
        for value, wanted in pairs:
            if value.size:
                worst = max(worst, float(ratios(value, wanted).max()))
        return worst


def tells(gradients: Mapping[str, Any], errors: Mapping[str, Any]) -> bool:
    """Whether gradients with these bounds can refute anything: bounds as large as the gradients cannot.

    All tensors are taken together, since single gradients are zero but for rounding (a bias before batch norm). The
    bounds of a whole pass grow with every layer, and a deep network's say nothing.
    """
    error = sum(float(np.square(np.broadcast_to(errors[name], np.shape(gradients[name]))).sum()) for name in errors)
    return error < sum(float(np.square(gradients[name]).sum()) for name in errors)


def own_start(records: Mapping[int, Arrays], problem: Problem) -> dict[str, float]:
    """The number that Adagrad's accumulators start from, by the name of the rule's constant, if it is not the job's."""
    rule = problem.training.rule
    if rule.name != "adagrad" or 0 not in records:
        return {}
    state = [np.unique(value) for value in group(records[0], "state").values() if value.size]
    found = np.unique(np.concatenate(state)) if state else np.array([])
    if len(found) != 1 or found[0] == found.dtype.type(rule.initial_accumulator or 0.0):
        return {}
    # A constant that was rounded to float32 reads as it was written.
    return {"initial_accumulator": float(f"{float(found[0]):.6g}")}


_PARTS = ("velocity", "mean_square", "accumulator", "m", "v", "mean_update")
