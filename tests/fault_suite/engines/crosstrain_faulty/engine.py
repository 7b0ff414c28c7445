"""Wraps a real engine: whatever passes its interface goes through the case's plant."""

import importlib
from dataclasses import replace

import numpy as np

from crosstrain_service.engine import Engine, Epoch, Intermediates, Loop

from . import PACKAGE, REAL
from .plant import Plant, take_all

_PREFIX = "fault."
_CLASSES = {}


def __getattr__(name):
    if name not in REAL:
        raise AttributeError(name)
    if name not in _CLASSES:
        module, _, attribute = REAL[name].partition(":")
        real = getattr(importlib.import_module(module), attribute)
        _CLASSES[name] = type("Faulty_" + attribute, (FaultyEngine,), {"name": name, "real": real,
                              "default_precision": real.default_precision})
    return _CLASSES[name]


def plants():
    """All plants that this package's engines know, by name."""
    found = dict(importlib.import_module(__package__ + ".plants_any").PLANTS)
    found.update(importlib.import_module(__package__ + ".plants_ranks").PLANTS)
    own = {"crosstrain_torch": ("plants_torch", "plants_torch_ranks"),
           "crosstrain_tensorflow": ("plants_tensorflow", "plants_tensorflow_ranks"),
           "crosstrain_keras_theano": ("plants_theano", "plants_theano_ranks"),
           "crosstrain_caffe": ("plants_caffe_ranks",)}.get(PACKAGE, ())
    for name in own:
        found.update(importlib.import_module("%s.%s" % (__package__, name)).PLANTS)
    return found


def planted(plant, batch):
    """A batch as the real engine is given it."""
    return plant.batch(replace(batch, learning_rate=plant.rate(batch.step, batch.learning_rate)))


class _Batches(Epoch):
    def __init__(self, epoch, plant, seen):
        self._epoch = epoch
        self._plant = plant
        self._seen = seen
        self.index = epoch.index
        self.steps = epoch.steps

    def batches(self):
        for batch in self._epoch.batches():
            given = planted(self._plant, batch)
            self._seen.append(given)
            yield given


class _PlantedLoop(Loop):
    """The loop with every batch, and every reported loss, through the plant."""

    def __init__(self, loop, plant, engine):
        self._loop = loop
        self._plant = plant
        self._engine = engine
        self._seen = []

    @property
    def step(self):
        return self._loop.step

    def epochs(self):
        for epoch in self._loop.epochs():
            yield _Batches(epoch, self._plant, self._seen)

    def step_done(self, loss, correct=None, sync_seconds=0.0, copy_seconds=0.0):
        batch = self._seen.pop(0)
        self._loop.step_done(self._plant.loss(self._engine, batch, loss), correct, sync_seconds, copy_seconds)

    def learning_rate(self, step):
        return self._plant.rate(step, self._loop.learning_rate(step))


class FaultyEngine(Engine):
    """A real engine (class attribute ``real``) behind a plant."""

    real = None

    @classmethod
    def info(cls):
        return cls.real.info()

    def __init__(self, model, training, execution):
        kind = Plant
        if model.name.startswith(_PREFIX):
            kind = plants()[model.name[len(_PREFIX):]]
        self._plant = kind(model, training)
        with self._plant.patched():
            self._engine = self.real(self._plant.model(), self._plant.training(), self._plant.execution(execution))
            self._plant.attach(self._engine)

    def train(self, loop):
        with self._plant.patched():
            self._plant.train(self._engine, _PlantedLoop(loop, self._plant, self._engine))

    def predict(self, x):
        with self._plant.patched():
            return self._plant.predict(self._engine, x)

    def intermediates(self, batch):
        with self._plant.patched():
            given = planted(self._plant, batch)
            found = self._plant.inside(self._engine.intermediates(given))
            self._plant.recorded(self._engine, given)
        return Intermediates(found.loss, found.outputs, found.output_gradients, take_all(self._plant, found.gradients))

    def parameters(self):
        return take_all(self._plant, self._engine.parameters())

    def load_parameters(self, parameters):
        self._engine.load_parameters({
            name: np.ascontiguousarray(self._plant.give(name, value)) for name, value in parameters.items()})

    def optimizer_state(self):
        found = self._engine.optimizer_state()
        taken = {}
        for name, value in found.items():
            parameter, slot = name.rsplit(".", 1)
            taken[name] = np.ascontiguousarray(self._plant.take(parameter, value))
        return self._plant.state(taken)

    def state(self):
        return self._engine.state()

    def load_state(self, state):
        self._engine.load_state(state)

    def batch_statistics(self, x):
        with self._plant.patched():
            return self._plant.batch_statistics(self._engine, x)

    def statistics(self):
        return self._engine.statistics()

    def load_statistics(self, statistics):
        self._plant.load_statistics(self._engine, statistics)

    def fingerprint(self):
        return self._engine.fingerprint()

    def synchronize(self):
        self._engine.synchronize()

    def allocator_peak_bytes(self):
        return self._engine.allocator_peak_bytes()

    def close(self):
        self._engine.close()
