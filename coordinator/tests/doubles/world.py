"""A coordinator with fake services and small data, ready for jobs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crosstrain.api import CoordinatorServer, Settings
from crosstrain.client import Client
from crosstrain_protos.v1 import coordinator_pb2, data_pb2

from .fake_service import FakeService

DOCUMENT = """
name: small
model: cnn2
training: {epochs: 1, batch_size: 8, optimizer: {sgd: {learning_rate: 0.1}}}
engines: [%s]
repeats: %d
cross_evaluate: %s
verdict: %s
"""


def document(
    *engines: str, repeats: int = 1, cross_evaluate: bool = False, verdict: str = "{judge: false}", task: str = ""
) -> str:
    """A job document, without a verdict unless its section is given."""
    text = DOCUMENT % (", ".join(engines or ("torch",)), repeats, str(cross_evaluate).lower(), verdict)
    return f"{text}task: {task}\n" if task else text


def npy(array: Any) -> bytes:
    """An array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def upload_dataset(client: Client, samples: int = 16, classes: int = 3, seed: int = 0) -> data_pb2.Dataset:
    """Random images 1x8x8 in the coordinator's store."""
    random = np.random.RandomState(seed)
    return data_pb2.Dataset(
        pixels_digest=client.upload(npy(random.randint(0, 256, (samples, 1, 8, 8)).astype(np.uint8))),
        labels_digest=client.upload(npy(np.arange(samples) % classes)),
        samples=samples,
        input_shape=(1, 8, 8),
        classes=classes,
        divisor=255.0,
    )


def wait_for(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Returns when ``condition`` holds; fails after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class World:
    """Everything a test of jobs needs; closed by the fixture."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = {"listen": "127.0.0.1:0", "state_dir": str(folder / "state"), **settings}
        self.services: list[FakeService] = []
        self.server = CoordinatorServer(Settings(**self.settings))
        self.server.start()
        self.settings["listen"] = self.server.address
        self.client = Client(self.server.address)

    def restart(self) -> None:
        """Another coordinator on the same store and port."""
        self.server.stop()
        self.server = CoordinatorServer(Settings(**self.settings))
        self.server.start()

    def service(self, name: str = "fake", preferred: bool = False, **options: Any) -> FakeService:
        """A registered fake service."""
        service = FakeService(self.folder, name, **options).start()
        self.services.append(service)
        self.client.register_service(name, service.address, preferred)
        return service

    def create(self, text: str, job_id: str = "", test: bool = True) -> coordinator_pb2.Job:
        """A job with training and test data."""
        train = upload_dataset(self.client)
        return self.client.create_job(text, train, upload_dataset(self.client, 8, seed=1) if test else None, job_id)

    def finished(self, job_id: str) -> coordinator_pb2.Job:
        """The job once it has ended, its events checked on the way."""
        check_events(list(self.client.watch_job(job_id)))
        return self.client.get_job(job_id)

    def close(self) -> None:
        """Stops everything."""
        self.client.close()
        self.server.stop()
        for service in self.services:
            service.stop()


def check_events(events: list[coordinator_pb2.JobEvent]) -> None:
    """Sequence numbers of the job and of each of its runs are gap-free from 1."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    counts: dict[str, int] = {}
    for event in events:
        if event.WhichOneof("event") == "run_event":
            run = event.run_event.run_id
            counts[run] = counts.get(run, 0) + 1
            assert event.run_event.sequence == counts[run]
