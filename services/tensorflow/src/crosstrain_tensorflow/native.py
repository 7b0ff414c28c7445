"""Keras's own optimizers for native semantics, made from a rule whose unset constants keep Keras's defaults.

Forms (Keras 2.12 and 3): sgd as the canonical one, with the velocity's sign reversed; rmsprop and adagrad
with epsilon inside the root, adagrad starting at 0.1; adam with "epsilon hat" beside the uncorrected root;
adadelta as the canonical one. Default epsilon 1e-7. ``global_clipnorm`` clips the gradient with the penalty's
part in it; ``weight_decay`` is decoupled.
"""

from typing import Any, Dict, List, Tuple

from crosstrain_service.training import Rule, Training

# Rule name: class, constants (ours to Keras's), state (ours to attribute and sign).
_OPTIMIZERS: Dict[str, Tuple[str, Dict[str, str], Dict[str, Tuple[str, float]]]] = {
    "sgd": ("SGD", {"momentum": "momentum", "nesterov": "nesterov"}, {"velocity": ("momentums", -1.0)}),
    "rmsprop": ("RMSprop", {"rho": "rho", "epsilon": "epsilon", "momentum": "momentum"},
                {"mean_square": ("_velocities", 1.0)}),
    "adagrad": ("Adagrad", {"epsilon": "epsilon", "initial_accumulator": "initial_accumulator_value"},
                {"accumulator": ("_accumulators", 1.0)}),
    "adam": ("Adam", {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"},
             {"m": ("_momentums", 1.0), "v": ("_velocities", 1.0)}),
    "adadelta": ("Adadelta", {"rho": "rho", "epsilon": "epsilon"},
                 {"mean_square": ("_accumulated_grads", 1.0), "mean_update": ("_accumulated_delta_vars", 1.0)}),
}


def class_name(rule: Rule) -> str:
    """Name of Keras's class in ``keras.optimizers``."""
    return _OPTIMIZERS[rule.name][0]


def constants(rule: Rule) -> Dict[str, Any]:
    """Keyword arguments for the constants that are set."""
    names = _OPTIMIZERS[rule.name][1]
    values = {theirs: getattr(rule, ours) for ours, theirs in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def decoupled_rate(training: Training) -> float:
    """Rate of decoupled weight decay, 0 without."""
    decay = training.weight_decay
    return decay.rate if decay is not None and decay.decoupled else 0.0


def l2_rate(training: Training) -> float:
    """Rate of L2 weight decay, 0 without."""
    decay = training.weight_decay
    return decay.rate if decay is not None and not decay.decoupled else 0.0


def options(training: Training) -> Dict[str, Any]:
    """Keyword arguments for clipping and decoupled decay."""
    result: Dict[str, Any] = {}
    if training.clip_norm:
        result["global_clipnorm"] = training.clip_norm
    if decoupled_rate(training):
        result["weight_decay"] = decoupled_rate(training)
    return result


def exclude_from_decay(optimizer: Any, training: Training, variables: Dict[str, Any]) -> None:
    """Keeps Keras's decoupled decay off the ``variables`` (by canonical name) that the job does not decay."""
    decay = training.weight_decay
    if decay is None or not decay.decoupled:
        return
    excluded = [variable for name, variable in variables.items() if not decay.applies_to(name)]
    if excluded:
        optimizer.exclude_from_weight_decay(var_list=excluded)


def slots(optimizer: Any, rule: Rule) -> Dict[str, Tuple[List[Any], float]]:
    """Keras's state by canonical name: variables in the order of the trained ones, and their sign."""
    found: Dict[str, Tuple[List[Any], float]] = {}
    for name, (attribute, sign) in _OPTIMIZERS[rule.name][2].items():
        variables = list(getattr(optimizer, attribute))
        if rule.name == "sgd" and not rule.momentum:
            continue
        found[name] = (variables, sign)
    return found
