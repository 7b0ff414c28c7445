"""The constants that each framework takes for an update rule when the caller gives none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from crosstrain_service.training import Rule

#: Constants of a rule that its update uses (where an accumulator starts shows in the state, not in the update).
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "sgd": ("momentum",),
    "rmsprop": ("rho", "epsilon"),
    "adagrad": ("epsilon",),
    "adam": ("beta1", "beta2", "epsilon"),
    "adadelta": ("rho", "epsilon"),
}


@dataclass(frozen=True)
class Defaults:
    """One rule of one framework; ``epsilon_place`` is that of :class:`crosstrain.compare.numerics.forms.Form`."""

    framework: str
    rule: Rule
    epsilon_place: str = "outside"


def _rmsprop(framework: str, rho: float, epsilon: float, place: str = "outside") -> Defaults:
    return Defaults(framework, Rule("rmsprop", rho=rho, epsilon=epsilon), place)


def _adagrad(framework: str, epsilon: float, start: float, place: str = "outside") -> Defaults:
    return Defaults(framework, Rule("adagrad", epsilon=epsilon, initial_accumulator=start), place)


def _adam(framework: str, beta1: float, beta2: float, epsilon: float, place: str = "hat") -> Defaults:
    return Defaults(framework, Rule("adam", beta1=beta1, beta2=beta2, epsilon=epsilon), place)


def _adadelta(framework: str, rho: float, epsilon: float) -> Defaults:
    # Both epsilons are inside the roots in every framework.
    return Defaults(framework, Rule("adadelta", rho=rho, epsilon=epsilon))


_TORCH, _KERAS, _LEGACY = "PyTorch", "Keras since 2.11", "Keras up to 2.10"
_THEANO, _LASAGNE, _CAFFE, _TORCH7 = "Keras 2.3 on Theano", "Lasagne", "Caffe", "Torch7"

#: SGD is left out: its one constant is 0 by default nearly everywhere, see ``momentum.missing``.
DEFAULTS: tuple[Defaults, ...] = (
    _rmsprop(_TORCH, 0.99, 1e-8),
    _rmsprop(_LEGACY, 0.9, 1e-7),
    _rmsprop(_KERAS, 0.9, 1e-7, "inside"),
    _rmsprop(_THEANO, 0.9, 1e-7),
    _rmsprop(_LASAGNE, 0.9, 1e-6, "inside"),
    _rmsprop(_CAFFE, 0.99, 1e-8),
    _rmsprop(_TORCH7, 0.99, 1e-8),
    _adagrad(_TORCH, 1e-10, 0.0),
    _adagrad(_LEGACY, 1e-7, 0.1),
    _adagrad(_KERAS, 1e-7, 0.1, "inside"),
    _adagrad(_THEANO, 1e-7, 0.0),
    _adagrad(_LASAGNE, 1e-6, 0.0, "inside"),
    _adagrad(_CAFFE, 1e-8, 0.0),
    _adagrad(_TORCH7, 1e-10, 0.0),
    _adam(_TORCH, 0.9, 0.999, 1e-8, "outside"),
    _adam(_LEGACY, 0.9, 0.999, 1e-7),
    _adam(_KERAS, 0.9, 0.999, 1e-7),
    _adam(_THEANO, 0.9, 0.999, 1e-7),
    _adam(_LASAGNE, 0.9, 0.999, 1e-8),
    # beta1, and the decay of AdaDelta, are the solver's momentum, which is 0 unless set.
    _adam(_CAFFE, 0.0, 0.999, 1e-8),
    _adam(_TORCH7, 0.9, 0.999, 1e-8),
    _adadelta(_TORCH, 0.9, 1e-6),
    _adadelta(_LEGACY, 0.95, 1e-7),
    _adadelta(_KERAS, 0.95, 1e-7),
    _adadelta(_THEANO, 0.95, 1e-7),
    _adadelta(_LASAGNE, 0.95, 1e-6),
    _adadelta(_CAFFE, 0.0, 1e-8),
    _adadelta(_TORCH7, 0.9, 1e-6),
)


def changed(rule: Rule, asked: Rule) -> dict[str, float]:
    """The constants of ``rule`` that are not those asked for; none where it is another rule."""
    if rule.name != asked.name:
        return {}
    values = {name: getattr(rule, name) for name in CONSTANTS[rule.name]}
    return {name: value for name, value in values.items() if value != getattr(asked, name)}


def sets(asked: Rule) -> Iterator[dict[str, float]]:
    """What defaults of a framework may stand in place of the constants asked for: all of them, or two and more.

    A caller may have given some of the constants, so that every part of a framework's set counts. One alone
    is left to the single constants.
    """
    seen: list[dict[str, float]] = []
    for item in DEFAULTS:
        own = changed(item.rule, asked)
        for count in range(2, len(own) + 1):
            for names in combinations(own, count):
                part = {name: own[name] for name in names}
                if part not in seen:
                    seen.append(part)
                    yield part


def frameworks_of(name: str, constants: Mapping[str, float]) -> tuple[str, ...]:
    """The frameworks whose defaults of a rule hold all of some constants."""
    return tuple(
        item.framework
        for item in DEFAULTS
        if item.rule.name == name and all(getattr(item.rule, key) == value for key, value in constants.items())
    )
