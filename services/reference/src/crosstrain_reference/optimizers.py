"""Update rules with every constant explicit.

The forms are fixed: momentum keeps the learning rate inside the velocity, so that a change of the learning
rate acts on new gradients only; epsilon is added outside the square root; Adam corrects the bias of both moments
before epsilon is added (Kingma and Ba 2015, algorithm 1).
"""

import math
from typing import Any, Callable, Collection, Dict, Mapping, Optional, Tuple

import numpy as np

from .ops.checks import same_dtype

Arrays = Dict[str, np.ndarray]
Named = Mapping[str, np.ndarray]

# Momentum and Nesterov may be left out, since that means "none"; the other constants differ between frameworks
# and have no default.
_HYPERPARAMETERS = {
    "sgd": {"momentum": 0.0, "nesterov": False},
    "rmsprop": {"rho": None, "eps": None},
    "adagrad": {"eps": None, "initial_accumulator": None},
    "adam": {"beta1": None, "beta2": None, "eps": None},
    "adadelta": {"rho": None, "eps": None},
}  # type: Dict[str, Dict[str, Any]]


def global_norm(grads: Named) -> float:
    """Return the Euclidean norm over all gradients together; squares are summed in the gradients' own type."""
    return math.sqrt(sum(float(np.sum(np.square(g))) for g in grads.values()))


def clip_by_global_norm(grads: Named, clip_norm: float) -> Tuple[Arrays, float]:
    """Return the gradients times ``clip_norm / max(norm, clip_norm)``, and the norm before clipping."""
    norm = global_norm(grads)
    factor = float(clip_norm) / max(norm, float(clip_norm))
    return {name: g * factor for name, g in grads.items()}, norm


class Optimizer:
    """One update rule.  Holds constants only; state and parameters are passed in and returned.

    Rules (g is the gradient, w the parameter, t the step counted from 1):

    * "sgd": ``v = momentum v + lr g; w -= v``; with ``nesterov``, ``w -= momentum v_new + lr g``, which equals
      ``(1 + momentum) v_new - momentum v_old``.  Without momentum there is no state.
    * "rmsprop": ``s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + eps)``.
    * "adagrad": ``a = a + g^2; w -= lr g / (sqrt(a) + eps)``, a starting at ``initial_accumulator``.
    * "adam": ``m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;``
      ``w -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)``.
    * "adadelta": ``s = rho s + (1 - rho) g^2; d = g sqrt(u + eps) / sqrt(s + eps); u = rho u + (1 - rho) d^2;``
      ``w -= lr d`` (Zeiler 2012, with a learning rate).

    State names are the parameter's name followed by ".velocity", ".mean_square", ".accumulator", ".m" and ".v", or
    ".mean_square" and ".mean_update".
    """

    def __init__(
        self,
        rule: str,
        *,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        decayed: Collection[str] = (),
        clip_norm: Optional[float] = None,
        **hyperparameters: Any,
    ) -> None:
        """Choose a rule, its constants, and how gradients are prepared.

        ``clip_norm`` scales all gradients together, before weight decay.  ``weight_decay`` applies to the
        parameters named in ``decayed``: added to the gradient as ``weight_decay * w``, or, if ``decoupled``, by
        multiplying ``w`` with ``1 - lr * weight_decay`` before the step (AdamW, Loshchilov and Hutter 2019).

        Raises ValueError for an unknown rule and for a missing, unknown or impossible constant.
        """
        if rule not in _HYPERPARAMETERS:
            raise ValueError(f"optimizer: unknown rule {rule!r}, expected one of {sorted(_HYPERPARAMETERS)}")
        values = dict(_HYPERPARAMETERS[rule])
        unknown = sorted(set(hyperparameters) - set(values))
        if unknown:
            raise ValueError(f"optimizer {rule}: unknown constants {unknown}")
        values.update(hyperparameters)
        missing = sorted(name for name, value in values.items() if value is None)
        if missing:
            raise ValueError(f"optimizer {rule}: missing constants {missing}")
        self.rule = rule
        self.nesterov = bool(values.pop("nesterov", False))
        # Python floats: a NumPy float64 scalar would widen float32 arrays.
        self.constants = {name: float(value) for name, value in values.items()}
        self.weight_decay = float(weight_decay)
        self.decoupled = bool(decoupled)
        self.decayed = frozenset(decayed)
        self.clip_norm = None if clip_norm is None else float(clip_norm)
        self._validate()
        self._step: Callable[..., Tuple[np.ndarray, Arrays]] = getattr(self, "_step_" + rule)

    def _validate(self) -> None:
        constants = dict(self.constants, weight_decay=self.weight_decay)
        for name, value in constants.items():
            below_one = name in ("momentum", "rho", "beta1", "beta2")
            if not (0.0 <= value < 1.0 if below_one else 0.0 <= value < math.inf):
                limit = "0 <= value < 1" if below_one else "a finite value of at least 0"
                raise ValueError(f"optimizer {self.rule}: {name} is {value!r}, expected {limit}")
        if self.nesterov and self.constants["momentum"] == 0.0:
            raise ValueError("optimizer sgd: nesterov needs momentum")
        if self.clip_norm is not None and not 0.0 < self.clip_norm < math.inf:
            raise ValueError(
                f"optimizer {self.rule}: clip_norm is {self.clip_norm!r}, expected a finite value above 0"
            )

    def init_state(self, params: Named) -> Arrays:
        """Return the state before the first step, arrays of the parameters' shapes and types."""
        start = self.constants.get("initial_accumulator", 0.0)
        return {
            f"{name}.{suffix}": np.full_like(value, start)
            for name, value in params.items()
            for suffix in self._suffixes()
        }

    def _suffixes(self) -> Tuple[str, ...]:
        if self.rule == "sgd":
            return ("velocity",) if self.constants["momentum"] else ()
        return {
            "rmsprop": ("mean_square",),
            "adagrad": ("accumulator",),
            "adam": ("m", "v"),
            "adadelta": ("mean_square", "mean_update"),
        }[self.rule]

    def update(
        self, params: Named, grads: Named, state: Named, lr: float, step: int
    ) -> Tuple[Arrays, Arrays]:
        """Return parameters and state after one step, the inputs unchanged.

        ``lr`` is this step's learning rate and ``step`` counts from 1.  Raises ValueError if parameters, gradients
        and state do not have matching names and shapes, TypeError if their types differ.
        """
        if step < 1:
            raise ValueError(f"optimizer {self.rule}: step is {step}, expected to count from 1")
        self._check(params, grads, state)
        lr = float(lr)
        if self.clip_norm is not None:
            grads, _ = clip_by_global_norm(grads, self.clip_norm)
        new_params: Arrays = {}
        new_state: Arrays = {}
        for name, w in params.items():
            g = grads[name]
            if self.weight_decay and name in self.decayed:
                if self.decoupled:
                    w = w * (1.0 - lr * self.weight_decay)
                else:
                    g = g + self.weight_decay * w
            old = {suffix: state[f"{name}.{suffix}"] for suffix in self._suffixes()}
            change, new = self._step(g, old, lr, step)
            new_params[name] = w - change
            for suffix, value in new.items():
                new_state[f"{name}.{suffix}"] = value
        return new_params, new_state

    def _check(self, params: Named, grads: Named, state: Named) -> None:
        expected = {f"{name}.{suffix}" for name in params for suffix in self._suffixes()}
        for kind, found, wanted in (
            ("gradients", set(grads), set(params)),
            ("state", set(state), expected),
            ("decayed", self.decayed, self.decayed & set(params)),
        ):
            if found != wanted:
                raise ValueError(
                    f"optimizer {self.rule}: {kind} do not match the parameters at {sorted(found ^ wanted)}"
                )
        for name, w in params.items():
            kept = {suffix: state[f"{name}.{suffix}"] for suffix in self._suffixes()}
            same_dtype("optimizer, " + name, parameter=w, gradient=grads[name], **kept)
            for kind, array in dict(kept, gradient=grads[name]).items():
                if array.shape != w.shape:
                    raise ValueError(
                        f"optimizer {self.rule}: {kind} of {name} has shape {array.shape}, expected {w.shape}"
                    )

    def _step_sgd(self, g: np.ndarray, old: Arrays, lr: float, step: int) -> Tuple[np.ndarray, Arrays]:
        momentum = self.constants["momentum"]
        if not momentum:
            return lr * g, {}
        velocity = momentum * old["velocity"] + lr * g
        change = momentum * velocity + lr * g if self.nesterov else velocity
        return change, {"velocity": velocity}

    def _step_rmsprop(self, g: np.ndarray, old: Arrays, lr: float, step: int) -> Tuple[np.ndarray, Arrays]:
        rho = self.constants["rho"]
        mean_square = rho * old["mean_square"] + (1.0 - rho) * np.square(g)
        return lr * g / (np.sqrt(mean_square) + self.constants["eps"]), {"mean_square": mean_square}

    def _step_adagrad(self, g: np.ndarray, old: Arrays, lr: float, step: int) -> Tuple[np.ndarray, Arrays]:
        accumulator = old["accumulator"] + np.square(g)
        return lr * g / (np.sqrt(accumulator) + self.constants["eps"]), {"accumulator": accumulator}

    def _step_adam(self, g: np.ndarray, old: Arrays, lr: float, step: int) -> Tuple[np.ndarray, Arrays]:
        beta1, beta2 = self.constants["beta1"], self.constants["beta2"]
        m = beta1 * old["m"] + (1.0 - beta1) * g
        v = beta2 * old["v"] + (1.0 - beta2) * np.square(g)
        m_hat = m / (1.0 - beta1**step)
        v_hat = v / (1.0 - beta2**step)
        return lr * m_hat / (np.sqrt(v_hat) + self.constants["eps"]), {"m": m, "v": v}

    def _step_adadelta(self, g: np.ndarray, old: Arrays, lr: float, step: int) -> Tuple[np.ndarray, Arrays]:
        rho, eps = self.constants["rho"], self.constants["eps"]
        mean_square = rho * old["mean_square"] + (1.0 - rho) * np.square(g)
        change = g * np.sqrt(old["mean_update"] + eps) / np.sqrt(mean_square + eps)
        mean_update = rho * old["mean_update"] + (1.0 - rho) * np.square(change)
        return lr * change, {"mean_square": mean_square, "mean_update": mean_update}
