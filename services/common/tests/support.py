"""A real service process and the requests to drive it."""

import hashlib
import io
import os
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2

from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc, data_pb2, run_pb2, service_pb2, service_pb2_grpc
from crosstrain_service import convert, testing, weights

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = testing.cnn2((1, 8, 8), 4, (2, 3), 5)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


class Service:
    """A service process of the test engines; it may be killed and started again on the same state."""

    def __init__(self, state, package="crosstrain_slow", options=("--metrics-port", "0")):
        self.state = str(state)
        self.package = package
        self.options = options
        self.start()

    def start(self):
        port_file = os.path.join(self.state, "port")
        os.makedirs(self.state, exist_ok=True)
        if os.path.exists(port_file):
            os.unlink(port_file)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([os.path.join(HERE, "engines")] + sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crosstrain_service", "--package", self.package, "--service", "slow",
             "--state", self.state, "--port-file", port_file, *self.options], env=environment,
            stderr=open(os.path.join(self.state, "front.log"), "ab"))
        deadline = time.time() + 60
        while not os.path.exists(port_file):
            assert self.process.poll() is None, open(os.path.join(self.state, "front.log")).read()
            assert time.time() < deadline, "the service did not start"
            time.sleep(0.02)
        with open(port_file) as file:
            self.channel = grpc.insecure_channel("127.0.0.1:" + file.read().strip())
        self.training = service_pb2_grpc.TrainingServiceStub(self.channel)
        self.artifacts = artifact_pb2_grpc.ArtifactServiceStub(self.channel)

    def kill(self):
        """Ends the front as a crash does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.channel.close()

    def close(self):
        if self.process.poll() is None:
            for run in self.training.ListRuns(service_pb2.ListRunsRequest()).runs:
                self.training.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id))
            self.process.terminate()
            self.process.wait(20)
        self.channel.close()

    def put(self, data):
        digest = hashlib.sha256(data).hexdigest()

        def messages():
            yield artifact_pb2.WriteRequest(header=artifact_pb2.ArtifactHeader(digest=digest, size_bytes=len(data)))
            for start in range(0, len(data), 1 << 19):
                yield artifact_pb2.WriteRequest(chunk=data[start:start + (1 << 19)])

        assert self.artifacts.Write(messages()).digest == digest
        return digest

    def get(self, digest):
        return b"".join(part.chunk for part in self.artifacts.Read(artifact_pb2.ReadRequest(digest=digest)))

    def dataset(self, samples=60, model=MODEL, seed=3):
        random = np.random.RandomState(seed)
        pixels = random.randint(0, 256, (samples,) + model.input_shape).astype(np.uint8)
        labels = (pixels.reshape(samples, -1)[:, 0].astype("<i8")) % model.classes
        return data_pb2.Dataset(pixels_digest=self.put(npy(pixels)), labels_digest=self.put(npy(labels)),
                                samples=samples, input_shape=model.input_shape, classes=model.classes, divisor=255)

    def spec(self, steps=30, batch=6, model=MODEL, epochs=1000, **execution):
        data = self.dataset(model=model)
        spec = run_pb2.TrainSpec(model=convert.model_message(model), train=data, test=data)
        training = spec.training
        training.epochs, training.max_steps, training.batch_size, training.seed = epochs, steps, batch, 5
        training.optimizer.sgd.momentum = 0.9
        training.optimizer.sgd.nesterov = False
        training.learning_rates_digest = self.put(npy(np.full(steps, 0.05)))
        spec.initial_weights_digest = self.put(weights.to_bytes(weights.initial_parameters(model, 5)))
        spec.execution.deterministic = True
        for name, value in execution.items():
            setattr(spec.execution, name, value)
        return spec

    def train(self, run_id, engine="slow", spec=None):
        request = service_pb2.TrainRequest(run_id=run_id, engine=engine, spec=spec or self.spec())
        return self.training.Train(request, timeout=20).run

    def watch(self, run_id, after=0, timeout=120):
        request = service_pb2.WatchRunRequest(run_id=run_id, after_sequence=after)
        for response in self.training.WatchRun(request, timeout=timeout):
            yield from response.events

    def run(self, run_id):
        return self.training.GetRun(service_pb2.GetRunRequest(run_id=run_id)).run

    def cancel(self, run_id):
        return self.training.CancelRun(service_pb2.CancelRunRequest(run_id=run_id), timeout=20).run

    def child_pid(self, run_id):
        import json

        with open(os.path.join(self.state, "runs", run_id, "child.json")) as file:
            return json.load(file)["pid"]


def curve(events):
    """Losses by step after the rule for superseded records; fails on gaps and doubles."""
    losses = {}
    sequence = 0
    for event in events:
        assert event.sequence == sequence + 1, "sequence numbers have a gap"
        sequence = event.sequence
        kind = event.WhichOneof("event")
        if kind == "attempt_started":
            losses = {step: loss for step, loss in losses.items() if step < event.attempt_started.resume_step}
        elif kind == "steps":
            for offset, loss in enumerate(event.steps.loss):
                step = event.steps.first_step + offset
                assert step == len(losses), "step %d is lost or doubled" % step
                losses[step] = loss
    return losses


def failure(error):
    """Status code name, ErrorInfo and field violations of a failed call."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    info, fields = error_details_pb2.ErrorInfo(), []
    if details:
        for part in status_pb2.Status.FromString(details).details:
            if part.Is(info.DESCRIPTOR):
                part.Unpack(info)
            elif part.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad = error_details_pb2.BadRequest()
                part.Unpack(bad)
                fields = [violation.field for violation in bad.field_violations]
    return error.code().name, info, fields
