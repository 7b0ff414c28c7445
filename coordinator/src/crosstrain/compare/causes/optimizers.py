"""Conventions of adaptive rules, and of the rules' constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from crosstrain.compare.causes import defaults
from crosstrain.compare.causes.convention import Convention
from crosstrain.compare.numerics.forms import Form, with_rule
from crosstrain_service.training import Rule

#: Values of constants that frameworks use by default, or papers recommend.
CONSTANTS = {
    "momentum": (0.9, 0.5, 0.95, 0.99, 0.0),
    "rho": (0.99, 0.9, 0.95, 0.999),
    "epsilon": (1e-8, 1e-7, 1e-6, 1e-10, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 1e-16),
    "beta1": (0.9, 0.95, 0.99, 0.5),
    "beta2": (0.999, 0.99, 0.95, 0.9, 0.9999),
}
_OTHERS = (
    Rule("sgd", momentum=0.0, nesterov=False),
    Rule("sgd", momentum=0.9, nesterov=False),
    Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-8),
    Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-7),
    Rule("rmsprop", rho=0.99, epsilon=1e-8),
    Rule("rmsprop", rho=0.9, epsilon=1e-7),
    Rule("adagrad", epsilon=1e-10, initial_accumulator=0.0),
    Rule("adagrad", epsilon=1e-7, initial_accumulator=0.1),
    Rule("adadelta", rho=0.9, epsilon=1e-6),
    Rule("adadelta", rho=0.95, epsilon=1e-7),
)


def _form(rules: tuple[str, ...], **fields: Any) -> Any:
    def vary(form: Form, place: Any) -> Iterator[Form]:
        if form.rule.name in rules and any(getattr(form, name) != value for name, value in fields.items()):
            yield replace(form, **fields)

    return vary


def _no_first_moment(form: Form, place: Any) -> Iterator[Form]:
    if form.rule.name == "adam" and form.rule.beta1:
        yield with_rule(form, beta1=0.0)


def _constants(form: Form, place: Any) -> Iterator[Form]:
    for name in defaults.CONSTANTS[form.rule.name]:
        for value in CONSTANTS[name]:
            if value != getattr(form.rule, name) and (value or name != "momentum"):
                yield with_rule(form, **{name: value})
    for constants in defaults.sets(form.rule):
        yield with_rule(form, **constants)


def _short(form: Form, place: Any) -> Iterator[Form]:
    if form.rule.name in ("rmsprop", "adam", "adadelta"):
        for short in ("differences", "differences, powers", "powers", "differences, betas"):
            if form.short != short:
                yield replace(form, short=short)


def _rules(form: Form, place: Any) -> Iterator[Form]:
    for rule in _OTHERS:
        if rule.name != form.rule.name:
            yield replace(form, rule=rule)


def _accumulator(start: Any, place: Any) -> Iterator[Any]:
    """A state that holds one number everywhere."""
    found = place.arithmetic.wide(place.found)
    if place.problem.training.rule.name == "adagrad" and found.size and (found == found.flat[0]).all():
        yield found


CONVENTIONS = (
    Convention(
        "rmsprop.epsilon_inside",
        "RMSProp: epsilon inside the root",
        "The step is divided by sqrt(s + epsilon) instead of sqrt(s) + epsilon, which matters where "
        "gradients are small.",
        "Keras since 2.11, TensorFlow, Lasagne; outside in PyTorch, Caffe, Torch7 and Keras up to 2.10.",
        "No constant maps one form to the other: use one explicit rule, or tf.keras.optimizers.legacy.RMSprop.",
        {"update": _form(("rmsprop",), epsilon="inside")},
        1,
    ),
    Convention(
        "adagrad.epsilon_inside",
        "Adagrad: epsilon inside the root",
        "The step is divided by sqrt(a + epsilon) instead of sqrt(a) + epsilon.",
        "Keras since 2.11, Lasagne; outside in PyTorch, Caffe, Torch7 and older Keras.",
        "No constant maps one form to the other: use one explicit rule.",
        {"update": _form(("adagrad",), epsilon="inside")},
        1,
    ),
    Convention(
        "adagrad.initial_accumulator",
        "Adagrad: another start of the accumulator",
        "The sum of squares starts at another number, which shortens (or lengthens) the first steps.",
        "0.1 in TensorFlow and in Keras since 2.11, 0 elsewhere.",
        "initial_accumulator_value=0 in Keras, initial_accumulator_value in PyTorch; or set it in the job.",
        {"initial state": _accumulator},
        1,
    ),
    Convention(
        "adam.epsilon_hat",
        "Adam: epsilon beside the uncorrected root",
        "Epsilon is added before the bias correction, which makes it up to 31.6 times larger in the first steps.",
        "TensorFlow, Keras, Lasagne, Caffe, Torch7 (the paper's epsilon hat); PyTorch adds it after the correction.",
        "At step t use epsilon_hat = epsilon sqrt(1 - beta2^t).",
        {"update": _form(("adam",), epsilon="hat")},
        1,
    ),
    Convention(
        "adam.beta1_zero",
        "Adam without its first moment",
        "The step uses the new gradient instead of the running mean of gradients.",
        "Caffe takes beta1 from the solver's momentum, which is 0 unless set.",
        "Caffe: momentum: 0.9.",
        {"update": _no_first_moment},
        1,
    ),
    Convention(
        "adam.no_bias_correction",
        "Adam without bias correction",
        "Running means are used as they are, although they start at 0, so that the first steps have another length.",
        "Some BERT optimizers (correct_bias=False) and hand-written Adam.",
        "Divide by 1 - beta^t: correct_bias=True.",
        {"update": _form(("adam",), corrected=False)},
        2,
    ),
    Convention(
        "adam.amsgrad",
        "AMSGrad",
        "The step is divided by the largest second moment so far instead of the current one; it shows where "
        "that has fallen.",
        "amsgrad=True in PyTorch and Keras.",
        "amsgrad=False.",
        {"update": _form(("adam",), amsgrad=True)},
        3,
    ),
    Convention(
        "optimizer.constants_in_float32",
        "Small differences formed in float32",
        "1 - beta is formed from a beta that is rounded to float32 already, which loses digits: 1 - 0.999 is "
        "off by 1e-5 of "
        "itself.",
        "Caffe forms 1 - beta, TensorFlow 1 - beta^t, in float32; the others in float64.",
        "None without changing the framework: scale the rate by exact over rounded, or choose betas that "
        "float32 holds.",
        {"update": _short},
        4,
    ),
    Convention(
        "optimizer.other_constant",
        "Other constants of the rule",
        "A constant of the update rule, or several at once, has the value that some framework uses by default, "
        "not the job's.",
        "Defaults differ: epsilon 1e-8 (PyTorch), 1e-7 (Keras), 1e-6 (Lasagne); rho 0.99 (PyTorch), 0.9 "
        "(Keras, Lasagne); a constant that is not passed is the framework's own.",
        "Pass every constant explicitly.",
        {"update": _constants},
        5,
    ),
    Convention(
        "optimizer.other_rule",
        "Another update rule",
        "The weights move by another rule than the job's.",
        "A default optimizer: Keras compiles with RMSprop, Caffe with SGD.",
        "Name the rule and pass every constant.",
        {"update": _rules},
        7,
    ),
)
