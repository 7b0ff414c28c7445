"""What a plant may change: everything between the engine's interface and the real engine, and nothing else."""

import contextlib
from dataclasses import replace

import numpy as np

from crosstrain_service.engine import Intermediates


class Plant:
    """One wrong convention; this one has none. Made for one case; subclasses override what they need.

    ``model`` and ``training`` are what was asked for. All arrays are canonical.
    """

    #: Whether the real engine is run in its native semantics.
    native = False

    def __init__(self, model, training):
        self.asked = model
        self.asked_training = training

    def model(self):
        """The model that the real engine is built with."""
        return self.asked

    def training(self):
        """The training settings that the real engine is built with."""
        return self.asked_training

    def execution(self, execution):
        """The execution settings that the real engine is built with."""
        return replace(execution, semantics="native") if self.native else execution

    def attach(self, engine):
        """Called with the real engine once it is built."""

    @contextlib.contextmanager
    def patched(self):
        """Patches of the framework, in force whenever the real engine works."""
        yield

    def batch(self, batch):
        """The batch that the real engine is given."""
        return batch

    def rate(self, step, rate):
        """The learning rate that the real engine is given, also in its batches."""
        return rate

    def give(self, name, value):
        """A parameter on its way into the real engine."""
        return value

    def take(self, name, value):
        """A parameter, its gradient or its state on the way out: the inverse of :meth:`give`."""
        return value

    def inside(self, found):
        """The recorded values of the real engine, gradients of parameters not yet taken out."""
        return found

    def recorded(self, engine, batch):
        """Called after the values inside a step were recorded, before the step itself."""

    def loss(self, engine, batch, loss):
        """The reported loss of a training step; ``batch`` is the one given to the real engine."""
        return loss

    def train(self, engine, loop):
        """Trains."""
        engine.train(loop)

    def predict(self, engine, x):
        """Logits."""
        return engine.predict(x)

    def batch_statistics(self, engine, x):
        """Statistics of a batch for evaluation."""
        return engine.batch_statistics(x)

    def load_statistics(self, engine, statistics):
        """Sets the evaluation statistics."""
        engine.load_statistics(statistics)

    def state(self, found):
        """The state of the update rule, taken out."""
        return found


def changed_layers(model, change):
    """The model with ``change(layer)``, one layer or a list of layers, in place of every layer."""
    layers = []
    for layer in model.layers:
        result = change(layer)
        layers.extend(result if isinstance(result, list) else [result])
    return replace(model, layers=tuple(layers)).validate()


def map_outputs(found, change):
    """Recorded values with ``change`` applied to the tables of outputs and of their gradients."""
    return Intermediates(found.loss, change(found.outputs), change(found.output_gradients), found.gradients)


def take_all(plant, arrays):
    """All arrays through :meth:`Plant.take`, each contiguous."""
    return {name: np.ascontiguousarray(plant.take(name, value)) for name, value in arrays.items()}


@contextlib.contextmanager
def replaced(holder, attribute, value):
    """An attribute or an item of ``holder`` replaced for a while."""
    if isinstance(holder, dict):
        before = holder[attribute]
        holder[attribute] = value
        try:
            yield before
        finally:
            holder[attribute] = before
        return
    before = holder.__dict__[attribute] if attribute in vars(holder) else None
    had = attribute in vars(holder)
    setattr(holder, attribute, value)
    try:
        yield before
    finally:
        if had:
            setattr(holder, attribute, before)
        else:
            delattr(holder, attribute)
