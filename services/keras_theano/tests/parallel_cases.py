"""What ranks of the tests execute; imported by each of them."""

import numpy as np

from crosstrain_service import weights
from crosstrain_service.engine import Batch
from crosstrain_service.model import BatchNorm, Convolution, Dense, Dropout, Flatten, Model, Pool, Relu
from crosstrain_service.parallel.trial import FAULTS, Case
from crosstrain_service.testing import cnn2, make_batches
from crosstrain_service.training import Rule, Training, WeightDecay

PACKAGE = "crosstrain_keras_theano"
ENGINES = ("keras-theano", "lasagne")
RULES = {
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "adam": Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-5),
}
RATES = (0.05, 0.05, 0.01, 0.01)
#: 13 samples, and a last batch that is smaller than any number of ranks.
SIZES = (13, 13, 13, 1)
SMALL = cnn2((1, 8, 8), 3, (2,), 4)
#: No biases before batch norm: their gradient is 0 but for rounding, which Adam's division would make large.
EVERYTHING = Model("norm", (2, 6, 6), 3, (
    Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1), bias=False), BatchNorm("norm1", 1e-3), Relu("relu1"),
    Pool("pool", "max", (2, 2), (2, 2), (0, 0), (0, 0)), Flatten("flatten"), Dropout("dropout", 0.4),
    Dense("dense1", 5, bias=False), BatchNorm("norm2", 1e-3), Relu("relu2"), Dense("dense2", 3))).validate()
#: With batch norm and dropout of the framework's own.
LOCAL = Model("local", (2, 6, 6), 3, (
    Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1)), BatchNorm("norm", 1e-3), Relu("relu"), Flatten("flatten"),
    Dropout("dropout", 0.5), Dense("dense", 3))).validate()


def batches(model, dtype, sizes=SIZES, rates=RATES):
    """Whole batches of these sizes."""
    found = []
    for made, size, rate in zip(make_batches(model, len(sizes), max(sizes), seed=3), sizes, rates):
        masks = {name: mask[:size].astype(dtype) for name, mask in made.masks.items()}
        found.append(Batch(made.step, made.x[:size].astype(dtype), made.labels[:size], rate, masks))
    return found


def case(engine, model, rule, precision="float64", sizes=SIZES, **settings):
    execution = {"precision": precision, "semantics": settings.pop("semantics", "canonical")}
    training = Training(1, 13, 7, RULES[rule], np.asarray(RATES), **settings)
    parameters = weights.initial_parameters(model, 0)
    return Case(engine, model, training, batches(model, precision, sizes), parameters, execution)


CASES = {}
for _engine in ENGINES:
    _all = case(_engine, EVERYTHING, "adam", clip_norm=0.05, weight_decay=WeightDecay(0.1))
    CASES.update({
        _engine + " everything": _all._replace(halfway=2, probe=True),
        _engine + " float32": case(_engine, SMALL, "momentum", "float32")._replace(
            faults=[name for name in FAULTS if name]),
        _engine + " native": case(_engine, SMALL, "adam", semantics="native", clip_norm=0.05,
                                  weight_decay=WeightDecay(0.05)),
        _engine + " local": case(_engine, LOCAL, "momentum", semantics="native"),
        _engine + " second half": _all._replace(
            batches=_all.batches[2:], state="{folder}/" + _engine + " everything-2-0.npz"),
    })
