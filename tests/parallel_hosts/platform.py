"""A coordinator and two services of one engine, each on a host of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from crosstrain.client import Client
from crosstrain.launch.environments import Unavailable
from crosstrain_protos.v1 import coordinator_pb2, data_pb2, run_pb2, service_pb2
from crosstrain_service import weights
from tests.support import catalogue

from .network import Network, Server, await_true

#: The runtime's own test engine: the reference engine on several ranks.
TEST_ENGINES = Path(__file__).resolve().parents[2] / "services" / "common" / "tests" / "engines"

DOCUMENT = """
name: hosts
model: cnn2
training: {{epochs: {epochs}, batch_size: 13, optimizer: {{sgd: {{learning_rate: 0.05, momentum: 0.9}}}}}}
parallel: {{data: {data}, hosts: 2, on_rank_loss: {on_rank_loss}}}
execution: {{precision: float64, threads: 1, checkpoint_every_steps: 5}}
engines: [{engines}]
cross_evaluate: false
verdict: {{judge: false}}
"""


def document(engines: str, epochs: int = 3, data: int = 3, on_rank_loss: str = "restart") -> str:
    """A job on two hosts."""
    return DOCUMENT.format(engines=engines, epochs=epochs, data=data, on_rank_loss=on_rank_loss)


class ServicesMissing(Exception):
    """The engine's environment cannot be had here; the message says why."""


class Platform:
    """Two services of an engine package on two hosts, a coordinator on a third, and a host of a stranger."""

    def __init__(self, folder: Path, network: Network, service: str = "") -> None:
        """``service``: one of the catalogue; empty for the test engine."""
        python, variables, package = _environment(service)
        own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.folder = folder
        self.stranger = network.host()
        self.coordinator = Server(
            network.host(), folder / "coordinator",
            [sys.executable, "-m", "crosstrain.api", "--state-dir", str(folder / "state"), "--lease-seconds", "5"], own,
        )  # fmt: skip
        self.members = [
            Server(
                network.host(), folder / f"member-{place}",
                [python, "-m", "crosstrain_service", "--package", package, "--service", f"member-{place}",
                 "--state", str(folder / f"member-{place}"), "--coordinator", self.coordinator.address], variables,
            )
            for place in range(2)
        ]  # fmt: skip
        self.client = Client(self.coordinator.address)
        self.await_services()
        self.train = self._dataset(60)

    def await_services(self) -> None:
        """Returns once both are registered and answer."""
        await_true(lambda: {item.service for item in self.client.list_engines() if item.healthy} >= {
            "member-0", "member-1"}, 60)  # fmt: skip

    def _dataset(self, samples: int) -> data_pb2.Dataset:
        random = np.random.RandomState(3)
        pixels = random.randint(0, 256, (samples, 1, 8, 8)).astype(np.uint8)
        labels = (pixels[:, 0, 0, 0] % 4).astype("<i8")
        return data_pb2.Dataset(
            pixels_digest=self.client.upload(_npy(pixels)), labels_digest=self.client.upload(_npy(labels)),
            samples=samples, input_shape=(1, 8, 8), classes=4, divisor=255.0,
        )  # fmt: skip

    def create(self, text: str, job_id: str) -> str:
        """Creates a job; the id of its first run. A member that was cut off before may have to register again."""
        self.await_services()
        return self.client.create_job(text, self.train, None, job_id).runs[0].run.run_id

    def events(self, job_id: str) -> Iterable[run_pb2.RunEvent]:
        """What happens in the runs of a job, as it does."""
        for event in self.client.watch_job(job_id):
            if event.WhichOneof("event") == "run_event":
                yield event.run_event

    def require(self, engine: str, feature: str) -> None:
        """Skips the test, with the reason, if an engine does not have a feature here."""
        offer = next(item for item in self.client.list_engines() if item.description.name == engine)
        found = next(item for item in offer.description.features if item.name == feature)
        if found.support == service_pb2.SUPPORT_UNSUPPORTED:
            pytest.skip(f"{engine} has no {feature} here: {found.note}")

    def await_event(self, job_id: str, kind: str) -> Any:
        """The first event of a kind."""
        return getattr(next(event for event in self.events(job_id) if event.WhichOneof("event") == kind), kind)

    def await_steps(self, job_id: str, count: int) -> None:
        """Returns once so many steps were done."""
        next(e for e in self.events(job_id) if len(e.steps.loss) and e.steps.first_step + len(e.steps.loss) >= count)

    def finished(self, job_id: str) -> tuple[coordinator_pb2.Job, list[run_pb2.RunEvent]]:
        """The job once it has succeeded, with what happened."""
        events = list(self.events(job_id))
        job = self.client.get_job(job_id)
        assert job.state == coordinator_pb2.JOB_STATE_SUCCEEDED, job.error
        return job, events

    def tensors(self, run: coordinator_pb2.JobRun) -> dict[str, Any]:
        """Trained parameters of a run."""
        return weights.from_bytes(self.client.read(run.result.weights_digest))[0]

    def ranks(self, place: int, run_id: str) -> list[psutil.Process]:
        """Processes of the ranks of one member."""
        name = run_id if not place else f"{run_id}-m{place}"
        child = json.loads((self.members[place].folder / "runs" / name / "child.json").read_text())
        try:
            return psutil.Process(child["pid"]).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def await_free(self) -> None:
        """Returns once no process is left beside the services; fails if some stay."""
        await_true(lambda: not any(member.left() for member in self.members), 15)

    def close(self) -> None:
        self.client.close()
        for server in (*self.members, self.coordinator):
            server.close()


@contextlib.contextmanager
def started(folder: Path, network: Network, service: str) -> Iterator[Platform]:
    """A platform with a service of the catalogue; skips the tests, with the reason, where there is none."""
    try:
        opened = Platform(folder, network, service)
    except ServicesMissing as reason:
        pytest.skip(str(reason))
    try:
        yield opened
    finally:
        opened.close()


def _environment(service: str) -> tuple[str, dict[str, str], str]:
    """Interpreter, variables and package of a service."""
    if not service:
        paths = [str(TEST_ENGINES), *(path for path in sys.path if path)]
        return sys.executable, {"PYTHONPATH": os.pathsep.join(paths)}, "crosstrain_ranks"
    found = catalogue.environment(service)
    if isinstance(found, Unavailable):
        raise ServicesMissing(f"no environment for {service}: {found.reason} (to fix it: {found.remedy})")
    return str(found.python), dict(found.variables()), catalogue.catalogue().service(service).package


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
