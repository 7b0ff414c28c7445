"""The same training step in float64 NumPy, by the reference package, under the names of a probe."""

import dataclasses

import numpy as np

from crosstrain_reference import (
    LRN,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Network,
    Optimizer,
    Pad,
    Pool,
    Relu,
    clip_by_global_norm,
)
from crosstrain_service import model as plain
from crosstrain_service.engine import Batch
from crosstrain_service.model import Model
from crosstrain_service.probe import record_steps
from crosstrain_service.training import Execution, Rule, Training
from crosstrain_torch.engine import TorchEngine

#: Every update rule with constants that tell the places of epsilon apart.
RULES = {
    "sgd": Rule("sgd", momentum=0.0, nesterov=False),
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "nesterov": Rule("sgd", momentum=0.9, nesterov=True),
    "rmsprop": Rule("rmsprop", rho=0.9, epsilon=1e-3),
    "adagrad": Rule("adagrad", epsilon=1e-3, initial_accumulator=0.1),
    "adam": Rule("adam", beta1=0.9, beta2=0.99, epsilon=1e-3),
    "adadelta": Rule("adadelta", rho=0.9, epsilon=1e-3),
}


def training(rule, rates=(0.05,) * 8, **settings):
    return Training(1, 8, 0, rule, np.array(rates, np.float64), **settings)


def parameters(model, seed=3):
    """Random values for every parameter, float32, none of them special."""
    random = np.random.RandomState(seed)
    shapes = model.parameter_shapes()
    values = {name: random.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    return {name: (v + 1 if name.endswith("gamma") else v).astype(np.float32) for name, v in values.items()}


def engine(model, settings, **execution):
    built = TorchEngine(model, settings, Execution(**execution))
    built.load_parameters(parameters(model))
    return built


def cast(batch, dtype):
    masks = {name: mask.astype(dtype) for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x.astype(dtype), batch.labels, batch.learning_rate, masks)


def single(*layers, input_shape):
    """A network around ``layers``: before them a 1x1 convolution without bias, so that blanks stay 0."""
    dims = len(input_shape) - 1
    one, zero = (1,) * dims, (0,) * dims
    before = plain.Convolution("first", 3, one, one, zero, zero, bias=False)
    after = (plain.Flatten("flatten"), plain.Dense("last", 4))
    return Model("single", tuple(input_shape), 4, (before,) + layers + after).validate()


def _layer(layer):
    if isinstance(layer, (plain.Convolution, plain.Pool)):
        # Same names, same order.
        kind = Convolution if isinstance(layer, plain.Convolution) else Pool
        return kind(*[getattr(layer, field.name) for field in dataclasses.fields(kind)])
    if isinstance(layer, plain.Dense):
        return Dense(layer.name, layer.units, layer.bias)
    if isinstance(layer, plain.Dropout):
        return Dropout(layer.name, layer.rate)
    if isinstance(layer, plain.BatchNorm):
        return BatchNorm(layer.name, layer.epsilon)
    if isinstance(layer, plain.LocalResponseNorm):
        return LRN(layer.name, layer.size, layer.alpha_sum, layer.beta, layer.k, layer.region)
    if isinstance(layer, plain.Pad):
        return Pad(layer.name, layer.begin, layer.end)
    return {plain.Relu: Relu, plain.Flatten: Flatten}[type(layer)](layer.name)


def network(model):
    return Network([_layer(layer) for layer in model.layers])


class Adadelta:
    """Zeiler 2012, algorithm 1, which the reference's optimizers lack; clipping and L2 as there."""

    def __init__(self, rule, decay, clip_norm, decayed):
        self.rule, self.decay, self.clip_norm, self.decayed = rule, decay, clip_norm, decayed

    def init_state(self, params):
        return {n + s: np.zeros_like(w) for n, w in params.items() for s in (".mean_square", ".mean_update")}

    def update(self, params, grads, state, lr, step):
        if self.clip_norm:
            grads, _ = clip_by_global_norm(grads, self.clip_norm)
        rho, eps = self.rule.rho, self.rule.epsilon
        after, kept = {}, {}
        for name, w in params.items():
            g = grads[name]
            if name in self.decayed and self.decay.decoupled:
                w = w * (1 - lr * self.decay.rate)
            elif name in self.decayed:
                g = g + self.decay.rate * w
            square = rho * state[name + ".mean_square"] + (1 - rho) * g * g
            change = g * np.sqrt(state[name + ".mean_update"] + eps) / np.sqrt(square + eps)
            kept[name + ".mean_square"] = square
            kept[name + ".mean_update"] = rho * state[name + ".mean_update"] + (1 - rho) * change * change
            after[name] = w - lr * change
        return after, kept


def optimizer(settings, names):
    rule, decay = settings.rule, settings.weight_decay
    decayed = [name for name in names if decay is not None and decay.applies_to(name)]
    clip = settings.clip_norm or None
    if rule.name == "adadelta":
        return Adadelta(rule, decay, clip, decayed)
    constants = {
        "sgd": {"momentum": rule.momentum, "nesterov": rule.nesterov},
        "rmsprop": {"rho": rule.rho, "eps": rule.epsilon},
        "adagrad": {"eps": rule.epsilon, "initial_accumulator": rule.initial_accumulator},
        "adam": {"beta1": rule.beta1, "beta2": rule.beta2, "eps": rule.epsilon},
    }[rule.name]
    if decayed:
        constants.update(weight_decay=decay.rate, decoupled=decay.decoupled, decayed=decayed)
    return Optimizer(rule.name, clip_norm=clip, **constants)


def reference_steps(model, settings, batches):
    """One record per batch, starting from :func:`parameters`, all in float64."""
    chain = network(model)
    params = {name: value.astype(np.float64) for name, value in parameters(model).items()}
    rule = optimizer(settings, params)
    state = rule.init_state(params)
    for number, batch in enumerate(batches, 1):
        batch = cast(batch, np.float64)
        result = chain.loss_and_gradients(batch.x, batch.labels, params, batch.masks)
        record = {"loss": np.asarray(result.loss), "probe_loss": np.asarray(result.loss)}
        for prefix, arrays in (
            ("parameter", params),
            ("state", state),
            ("output", result.forward.outputs),
            ("output_grad", result.backward.outputs),
            ("gradient", result.gradients),
        ):
            record.update(("%s/%s" % (prefix, name), value) for name, value in arrays.items())
        params, state = rule.update(params, result.gradients, state, batch.learning_rate, number)
        record.update(("parameter_after/" + name, value) for name, value in params.items())
        record.update(("state_after/" + name, value) for name, value in state.items())
        yield record


def assert_steps_equal(built, model, settings, batches, tolerance):
    """Every value of every step within ``tolerance`` of the reference, relative to the tensor's largest."""
    dtype = np.float64 if tolerance < 1e-9 else np.float32
    wanted = {batch.step for batch in batches}
    recorded = record_steps(built, [cast(batch, dtype) for batch in batches], wanted)
    for (step, record), expected in zip(recorded, reference_steps(model, settings, batches)):
        for name, value in expected.items():
            found = record[name]
            assert found.shape == value.shape, (step, name)
            error = np.abs(found - value).max()
            assert error <= tolerance * max(np.abs(value).max(), 1e-3), (step, name, error)
        assert set(expected) <= set(record)
        unexpected = {n for n in record if n.split("/")[0] in ("output", "gradient", "state", "state_after")}
        assert unexpected <= set(expected)
