"""The update rule by ``torch.optim``.

Canonical semantics. PyTorch's rmsprop, adagrad, adam and adadelta are the canonical rules. Its SGD keeps a
buffer = momentum buffer + g and subtracts lr buffer; the canonical velocity = momentum velocity + lr g equals
lr buffer while lr is constant, so the buffer is multiplied by a / b when lr changes from a to b. L2 decay is
the optimizer's own ``weight_decay`` (g += rate w, inside the step and so after clipping) by parameter groups;
decoupled decay is AdamW's for adam and an explicit multiplication for the other rules.
``torch.nn.utils.clip_grad_norm_`` scales by c / (norm + 1e-6); the canonical factor c / max(norm, c) is
applied instead, to the norm that PyTorch computes.

Native semantics. PyTorch's classes with PyTorch's defaults: the buffer is not rescaled, ``weight_decay``
applies to every parameter as in ``Optimizer(model.parameters(), weight_decay=...)``, and clipping is
``clip_grad_norm_``. Decoupled decay of other rules than adam, which PyTorch lacks, is multiplied as above.
"""

from collections import OrderedDict
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import nn

from crosstrain_service.engine import Arrays
from crosstrain_service.errors import invalid_field
from crosstrain_service.training import Rule, Training

from .device import to_array, to_tensor

#: PyTorch's state by canonical name.
_STATE: Dict[str, Dict[str, str]] = {
    "sgd": {"velocity": "momentum_buffer"},
    "rmsprop": {"mean_square": "square_avg"},
    "adagrad": {"accumulator": "sum"},
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adadelta": {"mean_square": "square_avg", "mean_update": "acc_delta"},
}

#: PyTorch's argument of every constant; PyTorch takes Adam's two betas as one.
_CONSTANTS: Dict[str, Dict[str, str]] = {
    "rmsprop": {"rho": "alpha", "epsilon": "eps"},
    "adagrad": {"epsilon": "eps", "initial_accumulator": "initial_accumulator_value"},
    "adam": {"epsilon": "eps"},
    "adadelta": {"rho": "rho", "epsilon": "eps"},
}

_ADAM_BETAS = (0.9, 0.999)


class UpdateRule:
    """Clipping, decay and the update of all parameters, in place."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], training: Training, native: bool,
                 norm: Callable[[Sequence[torch.Tensor]], torch.Tensor] = nn.utils.get_total_norm) -> None:
        """``parameters`` by canonical name; ``native``: with PyTorch's own conventions.

        ``norm`` computes the global norm of the gradients of all parameters in order, of which this process may hold
        a part.

        Raises ``INVALID_FIELD`` for a constant that is missing in canonical semantics.
        """
        self._parameters = OrderedDict(parameters)
        self._all = list(self._parameters.values())
        self._native = native
        self._clip_norm = training.clip_norm
        rule, decay = training.rule, training.weight_decay
        rate = decay.rate if decay is not None else 0.0
        decayed, others = [], []
        for name, parameter in self._parameters.items():
            chosen = decay is not None and rate > 0 and (native or decay.applies_to(name))
            (decayed if chosen else others).append(parameter)
        decoupled = bool(decay is not None and decay.decoupled)
        adamw = decoupled and rule.name == "adam"
        explicit = decoupled and not adamw
        self._multiplied = decayed if explicit else []
        self._decay_rate = rate
        self._norm = norm
        groups = [{"params": decayed, "weight_decay": 0.0 if explicit else rate},
                  {"params": others, "weight_decay": 0.0}]
        self.optimizer = _optimizer([group for group in groups if group["params"]], rule, native, adamw)
        if self._multiplied:
            self.optimizer.register_step_pre_hook(self._multiply)
        self._momentum = self.optimizer.defaults.get("momentum", 0.0) if rule.name == "sgd" else 0.0
        self._nesterov = bool(self.optimizer.defaults.get("nesterov", False))
        self._names = _STATE[rule.name] if rule.name != "sgd" or self._momentum else {}
        self._initial = rule.initial_accumulator or 0.0
        # The learning rate that the momentum buffers are expressed in; never 0 in canonical semantics.
        self._rate: Any = None
        self.zero_grad = self.optimizer.zero_grad

    @torch.no_grad()
    def step(self, learning_rate: float, apply: Optional[Callable[[], Any]] = None) -> None:
        """One update from the gradients in ``.grad``; ``apply`` calls the optimizer's step, or may leave it out."""
        if self._clip_norm:
            self._clip()
        if learning_rate != self._rate:
            if self._momentum and not self._native:
                if learning_rate == 0:
                    # Decoupled decay is a multiplication by 1 then.
                    self._coast()
                    return
                self._rescale(learning_rate)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self._rate = learning_rate
        (apply or self.optimizer.step)()

    def _multiply(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        factor = 1.0 - self._rate * self._decay_rate
        for parameter in self._multiplied:
            parameter.mul_(factor)

    def _clip(self) -> None:
        gradients = [parameter.grad for parameter in self._all]
        norm = self._norm(gradients)
        if self._native:
            nn.utils.clip_grads_with_norm_(self._all, self._clip_norm, norm)
            return
        # Exactly 1 when nothing is to be clipped; no wait for the device.
        factor = self._clip_norm / norm.clamp(min=self._clip_norm)
        for gradient in gradients:
            gradient.mul_(factor)

    def _rescale(self, learning_rate: float) -> None:
        if self._rate is not None:
            for buffer in self._buffers():
                buffer.mul_(self._rate / learning_rate)

    def _coast(self) -> None:
        """A step with learning rate 0: the canonical velocity decays and still moves the parameters."""
        if self._rate is None:
            return
        reach = self._rate * (self._momentum if self._nesterov else 1.0)
        for parameter in self._all:
            buffer = self.optimizer.state[parameter]["momentum_buffer"]
            parameter.sub_(buffer.mul_(self._momentum), alpha=reach)

    def _buffers(self) -> Any:
        return [self.optimizer.state[parameter]["momentum_buffer"] for parameter in self._all]

    def canonical_state(self) -> Arrays:
        """Copies of the state under the names of :class:`crosstrain_service.training.Rule`."""
        found: Arrays = OrderedDict()
        for name, parameter in self._parameters.items():
            held = self.optimizer.state.get(parameter, {})
            for canonical, own in self._names.items():
                if held.get(own) is None:
                    value = torch.full_like(parameter, self._initial)
                elif canonical == "velocity":
                    value = held[own] * self._rate
                else:
                    value = held[own]
                found["%s.%s" % (name, canonical)] = to_array(value)
        return found

    def state(self) -> Arrays:
        """Everything the next step depends on, besides parameters and gradients."""
        found = {} if self._rate is None else {"rate": np.array(self._rate, np.float64)}
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if value is not None:
                    found["state/%s/%s" % (name, key)] = to_array(value)
        return found

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what :meth:`state` gave."""
        self._rate = float(state["rate"]) if "rate" in state else None
        if self._rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate
        held: Dict[str, Dict[str, torch.Tensor]] = {name: {} for name in self._parameters}
        for key, value in state.items():
            if key == "rate":
                continue
            _, rest = key.split("/", 1)
            name, own = rest.rsplit("/", 1)
            if name not in self._parameters:
                # Another rank's.
                continue
            # PyTorch keeps the step counts, numbers of no dimension, on the CPU.
            device = self._parameters[name].device if value.ndim else torch.device("cpu")
            held[name][own] = to_tensor(np.array(value), device)
        for name, parameter in self._parameters.items():
            self.optimizer.state[parameter] = held[name]


def _optimizer(groups: Any, rule: Rule, native: bool, adamw: bool) -> torch.optim.Optimizer:
    options: Dict[str, Any] = {}
    for constant, argument in _CONSTANTS.get(rule.name, {}).items():
        value = getattr(rule, constant)
        if value is not None:
            options[argument] = value
        elif not native:
            raise _missing(constant)
    if rule.name == "sgd":
        momentum = rule.momentum or 0.0
        # PyTorch refuses Nesterov without momentum, which changes nothing.
        return torch.optim.SGD(groups, lr=1.0, momentum=momentum, nesterov=bool(rule.nesterov and momentum))
    if rule.name == "adam":
        betas = [rule.beta1, rule.beta2]
        if None in betas and not native:
            raise _missing("beta%d" % (betas.index(None) + 1))
        options["betas"] = tuple(own if beta is None else beta for own, beta in zip(_ADAM_BETAS, betas))
        return (torch.optim.AdamW if adamw else torch.optim.Adam)(groups, lr=1.0, **options)
    kind = {"rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad, "adadelta": torch.optim.Adadelta}
    return kind[rule.name](groups, lr=1.0, **options)


def _missing(constant: str) -> Exception:
    return invalid_field("training.optimizer.%s" % constant, "canonical semantics need a value")
