"""The same steps in Caffe and in the float64 reference, recorded as a probe records them."""

import numpy as np

from crosstrain_caffe.engine import CaffeEngine
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import model as plain
from crosstrain_service.engine import Batch
from crosstrain_service.model import Model
from crosstrain_service.probe import record_steps
from crosstrain_service.training import Execution, Rule, Training

#: Every update rule with constants that tell the places of epsilon apart.
RULES = {
    "sgd": Rule("sgd", momentum=0.0, nesterov=False),
    "momentum": Rule("sgd", momentum=0.9, nesterov=False),
    "nesterov": Rule("sgd", momentum=0.9, nesterov=True),
    "rmsprop": Rule("rmsprop", rho=0.99, epsilon=1e-3),
    "adagrad": Rule("adagrad", epsilon=1e-3, initial_accumulator=0.1),
    "adam": Rule("adam", beta1=0.9, beta2=0.999, epsilon=1e-3),
    "adadelta": Rule("adadelta", rho=0.9, epsilon=1e-3),
}


def training(rule, rates=(0.05,) * 8, batch_size=8, **settings):
    return Training(1, batch_size, 0, rule, np.array(rates, np.float64), **settings)


def parameters(model, seed=3):
    """Random values for every parameter, float32, none of them special."""
    random = np.random.RandomState(seed)
    shapes = model.parameter_shapes()
    values = {name: random.uniform(-0.5, 0.5, shape) for name, shape in shapes.items()}
    return {name: (v + 1 if name.endswith("gamma") else v).astype(np.float32) for name, v in values.items()}


def engine(model, settings, **execution):
    built = CaffeEngine(model, settings, Execution(**execution))
    built.load_parameters(parameters(model))
    return built


def reference(model, settings):
    built = ReferenceEngine(model, settings, Execution(precision="float64"))
    built.load_parameters({name: value.astype(np.float64) for name, value in parameters(model).items()})
    return built


def wide(batch):
    masks = {name: mask.astype(np.float64) for name, mask in batch.masks.items()}
    return Batch(batch.step, batch.x.astype(np.float64), batch.labels, batch.learning_rate, masks)


def single(*layers, input_shape):
    """A network around ``layers``: before them a 1x1 convolution without bias, so that blanks stay 0."""
    dims = len(input_shape) - 1
    one, zero = (1,) * dims, (0,) * dims
    before = plain.Convolution("first", 3, one, one, zero, zero, bias=False)
    after = (plain.Flatten("flatten"), plain.Dense("last", 4))
    return Model("single", tuple(input_shape), 4, (before,) + layers + after).validate()


def assert_steps_equal(built, model, settings, batches, tolerance=2e-6):
    """Every value of every step within ``tolerance`` of the reference, relative to the tensor's largest or 0.01."""
    wanted = {batch.step for batch in batches}
    expected = record_steps(reference(model, settings), [wide(batch) for batch in batches], wanted)
    for (step, found), (_, record) in zip(record_steps(built, batches, wanted), expected):
        assert set(found) == set(record)
        for name, value in record.items():
            if name.split("/")[0] in ("input", "labels", "mask"):
                continue
            assert found[name].shape == value.shape, (step, name)
            error = np.abs(found[name] - value).max()
            assert error <= tolerance * max(np.abs(value).max(), 1e-2), (step, name, error)
