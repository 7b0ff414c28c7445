"""A training run in this process: the task of the child with the reference, without front and processes."""

import os

import numpy as np

from crosstrain_protos.v1 import data_pb2, run_pb2, service_pb2
from crosstrain_reference.engine import ReferenceEngine
from crosstrain_service import convert, model, tasks, weights
from crosstrain_service.artifacts import ArtifactStore
from crosstrain_service.checkpoint import CheckpointStore
from crosstrain_service.events import EventLog
from crosstrain_service.rundir import StoredRequest
from crosstrain_service.spool import SpoolReader, SpoolWriter
from support import npy

#: A network over (C, L) with everything that has a state of its own.
MODEL_1D = model.Model("small", (2, 6), 3, (
    model.Convolution("conv", 3, (3,), (1,), (1,), (0,)), model.BatchNorm("norm", 1e-3), model.Relu("relu"),
    model.Flatten("flatten"), model.Dropout("drop", 0.25), model.Dense("dense", 3))).validate()


class Crash(BaseException):
    """Ends a run as a signal does: nothing may catch it and go on."""


class Local:
    """One run with its folders; :meth:`train` goes on from its newest checkpoint."""

    def __init__(self, folder, samples=26, batch=4, network=MODEL_1D):
        self.folder = str(folder)
        self.artifacts = ArtifactStore(os.path.join(self.folder, "artifacts"))
        self.checkpoints = CheckpointStore(os.path.join(self.folder, "checkpoints"))
        self.spool = os.path.join(self.folder, "spool")
        random = np.random.RandomState(1)
        pixels = random.randint(0, 256, (samples,) + network.input_shape).astype(np.uint8)
        labels = (pixels.reshape(samples, -1)[:, 0] % network.classes).astype("<i8")
        put = self.artifacts.put
        data = data_pb2.Dataset(pixels_digest=put(npy(pixels)), labels_digest=put(npy(labels)), samples=samples,
                                input_shape=network.input_shape, classes=network.classes, divisor=255)
        self.request = service_pb2.TrainRequest(run_id="local", engine="reference")
        spec = self.spec = self.request.spec
        spec.model.CopyFrom(convert.model_message(network))
        spec.train.CopyFrom(data)
        spec.test.CopyFrom(data)
        spec.training.epochs, spec.training.batch_size, spec.training.seed = 3, batch, 5
        spec.training.optimizer.sgd.momentum = 0.9
        spec.training.optimizer.sgd.nesterov = False
        spec.training.learning_rates_digest = put(npy(np.full(1000, 0.05)))
        spec.initial_weights_digest = put(weights.to_bytes(weights.initial_parameters(network, 5)))
        spec.execution.deterministic = True
        spec.execution.intra_threads = 1

    def train(self, engine=ReferenceEngine, log=EventLog):
        """One attempt; returns its events, which are read from the spool."""
        before = SpoolWriter(self.spool)
        first = before.last_sequence
        stored = StoredRequest(run_pb2.RUN_KIND_TRAIN, self.request, b"", 0.0, "1")
        events = log(before, "local", 1)
        try:
            tasks.train(tasks.Work(
                engine, stored, self.artifacts, events, self.checkpoints, self.checkpoints.newest(), 0.0))
        finally:
            self.events = self.read(first)
        return self.events

    def read(self, after=0):
        reader, found = SpoolReader(self.spool), []
        while True:
            records = reader.read(after)
            if not records:
                return found
            found += [run_pb2.RunEvent.FromString(payload) for _, payload in records]


def parts(events, kind):
    """The events of one kind, without their envelope."""
    return [getattr(event, kind) for event in events if event.WhichOneof("event") == kind]


def losses(events):
    """Loss of every step; fails on a gap."""
    found = {}
    for steps in parts(events, "steps"):
        found.update((steps.first_step + offset, loss) for offset, loss in enumerate(steps.loss))
    assert sorted(found) == list(range(min(found), max(found) + 1)) if found else True
    return found
