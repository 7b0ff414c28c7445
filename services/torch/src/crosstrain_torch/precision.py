"""Mixed precision: operations that gain from it in 16 bits, parameters, loss and update in float32.

Which operations run in 16 bits is autocast's choice. In float16 the loss is multiplied before
differentiation and the gradients divided before clipping by PyTorch's ``GradScaler``, which leaves out the update of
a step whose gradients are not finite and halves the factor; such steps are counted and logged.
"""

import logging
from contextlib import nullcontext
from typing import Any, ContextManager, Dict, Mapping

import numpy as np
import torch

from crosstrain_service.engine import Arrays

from .optimizer import UpdateRule

_DTYPES = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
_LOG = logging.getLogger(__name__)


class Precision:
    """How an engine computes: ``dtype`` of its parameters and, in mixed precision, of most products."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.dtype = torch.float64 if name == "float64" else torch.float32
        self._low = _DTYPES.get(name)
        self._device = device
        self.scaler: Any = torch.amp.GradScaler(device.type) if self._low is torch.float16 else None
        self.skipped = 0

    def autocast(self) -> ContextManager[Any]:
        """The context of a forward pass."""
        if self._low is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._low)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What is differentiated."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def factor(self) -> float:
        """By which :meth:`scaled` multiplies."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def update(self, rule: UpdateRule, learning_rate: float, step: int) -> None:
        """The rule's update from the gradients of what :meth:`scaled` gave."""
        if self.scaler is None:
            rule.step(learning_rate)
            return
        before = self.factor()
        self.scaler.unscale_(rule.optimizer)
        rule.step(learning_rate, lambda: self.scaler.step(rule.optimizer))
        self.scaler.update()
        if self.factor() < before:
            self.skipped += 1
            _LOG.warning("step %d: gradients are not finite in float16, no update (%d steps so far); loss scale now %g",
                         step, self.skipped, self.factor())

    def state(self) -> Arrays:
        """What the next steps depend on."""
        if self.scaler is None:
            return {}
        held = self.scaler.state_dict()
        return {"scale": np.array(held["scale"], np.float64), "tracker": np.array(held["_growth_tracker"], np.int64),
                "skipped": np.array(self.skipped, np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what :meth:`state` gave."""
        if self.scaler is None:
            return
        held: Dict[str, Any] = self.scaler.state_dict()
        held.update(scale=float(state["scale"]), _growth_tracker=int(state["tracker"]))
        self.scaler.load_state_dict(held)
        self.skipped = int(state.get("skipped", 0))
