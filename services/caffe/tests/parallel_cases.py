"""What ranks of the tests execute; imported by each of them."""

import numpy as np

from crosstrain_service import weights
from crosstrain_service.engine import Batch
from crosstrain_service.model import BatchNorm, Convolution, Dense, Flatten, Model, Relu
from crosstrain_service.parallel.trial import FAULTS, Case
from crosstrain_service.testing import cnn2, make_batches
from crosstrain_service.training import Rule, Training, WeightDecay

PACKAGE = "crosstrain_caffe"
RULES = {
    "plain": Rule("sgd"),
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "nesterov": Rule("sgd", momentum=0.9, nesterov=True),
    "rmsprop": Rule("rmsprop", rho=0.9, epsilon=1e-5),
    "adagrad": Rule("adagrad", epsilon=1e-5, initial_accumulator=0.1),
    "adam": Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-5),
    "adadelta": Rule("adadelta", rho=0.9, epsilon=1e-4),
}
RATES = (0.05, 0.05, 0.01, 0.01, 0.02)
#: 13 samples, and a last batch that is smaller than any number of ranks.
SIZES = (13, 13, 13, 13, 1)
SMALL = cnn2((1, 8, 8), 3, (3, 4), 6)
DROPPING = cnn2((1, 8, 8), 3, (3, 4), 6, dropout=0.5)
NORMAL = Model("norm", (2, 6, 6), 3, (
    Convolution("conv", 4, (3, 3), (1, 1), (1, 1), (1, 1)), BatchNorm("norm", 1e-3), Relu("relu"), Flatten("flatten"),
    Dense("dense", 3))).validate()


def batches(model, sizes=SIZES, rates=RATES):
    """Whole batches of these sizes."""
    found = []
    for made, size, rate in zip(make_batches(model, len(sizes), max(sizes), seed=3), sizes, rates):
        masks = {name: mask[:size] for name, mask in made.masks.items()}
        found.append(Batch(made.step, made.x[:size], made.labels[:size], rate, masks))
    return found


def case(model, rule, execution=None, **settings):
    training = Training(1, 13, 7, RULES[rule], np.asarray(RATES), **settings)
    return Case("caffe", model, training, batches(model), weights.initial_parameters(model, 0), execution or {})


CASES = {rule: case(SMALL, rule) for rule in RULES}
CASES["clip and decay"] = case(SMALL, "adam", clip_norm=0.05, weight_decay=WeightDecay(0.1))
CASES["decoupled"] = case(SMALL, "momentum", clip_norm=0.05, weight_decay=WeightDecay(0.2, decoupled=True))
CASES["masks"] = case(DROPPING, "momentum")._replace(probe=True)
CASES["native"] = case(SMALL, "adam", {"semantics": "native"}, weight_decay=WeightDecay(0.01), clip_norm=1.0)
CASES["native dropout"] = case(DROPPING, "momentum", {"semantics": "native"})
CASES["local batch norm"] = case(NORMAL, "momentum", {"semantics": "native"})
CASES["momentum"] = CASES["momentum"]._replace(faults=[name for name in FAULTS if name])
CASES["clip and decay"] = CASES["clip and decay"]._replace(halfway=3)
CASES["second half"] = CASES["clip and decay"]._replace(
    halfway=0, batches=CASES["clip and decay"].batches[3:], state="{folder}/clip and decay-2-0.npz")
