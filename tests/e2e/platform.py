"""One coordinator and the services of three engines, as processes, with a client and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosstrain.cli.jobfile import send_data
from crosstrain.client import Client
from crosstrain.data import DataCache, ImportOptions, import_sources
from crosstrain.results import JobRecord, RunRecord
from crosstrain_protos.v1 import coordinator_pb2, data_pb2
from crosstrain_service.errors import CrosstrainError
from tests.faults.processes import Process
from tests.support.service import Service, ServiceUnavailable

#: Engines by the service of the catalogue that offers them here.
SERVICES = {"reference": "reference", "torch": "torch", "tensorflow": "tensorflow-2.21"}
ENGINES = tuple(SERVICES)


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Platform:
    """Started once per session. ``unavailable`` says which engines cannot be had here, and why."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        self.services: dict[str, Service] = {}
        self.unavailable: dict[str, str] = {}
        self._process = Process(
            folder, "coordinator", "crosstrain.api", "--state-dir", str(folder / "state"),
            "--data-dir", str(self.data_dir),
        )  # fmt: skip
        self.address = self._process.address
        self.client = Client(self.address)
        self.cache = DataCache(folder / "cache" / "data")
        try:
            for engine, name in SERVICES.items():
                try:
                    options = ("--coordinator", self.address)
                    self.services[engine] = Service(name, options=options)
                except ServiceUnavailable as reason:
                    self.unavailable[engine] = str(reason)
            self._wait_registered()
        except BaseException:
            self.close()
            raise

    def _wait_registered(self) -> None:
        deadline = time.monotonic() + 60
        wanted = {service.name for service in self.services.values()}
        while not wanted <= {item.service for item in self.client.list_engines() if item.healthy}:
            assert time.monotonic() < deadline, "the services did not register"
            time.sleep(0.1)

    def close(self) -> None:
        self.client.close()
        for service in self.services.values():
            service.close()
        self._process.close()

    @property
    def log(self) -> str:
        """What the coordinator has logged."""
        return (self._process.folder / "log").read_text()

    def send(
        self, train: Path | None, test: Path | None = None, **options: Any
    ) -> tuple[data_pb2.Dataset | None, data_pb2.Dataset | None]:
        """Imports files and stores their arrays at the coordinator, as the command line does."""
        found = import_sources(train, test, ImportOptions(**options), self.cache)
        return send_data(self.client, found.train, self.cache), send_data(self.client, found.test, self.cache)

    def finish(self, job: coordinator_pb2.Job) -> JobRecord:
        """Everything a job recorded, once it has succeeded."""
        record = JobRecord(job).add_all(self.client.watch_job(job.job_id))
        record.update(self.client.get_job(job.job_id))
        assert record.state == coordinator_pb2.JOB_STATE_SUCCEEDED, record.error
        return record

    def run(self, text: str, data: tuple[Any, Any], job_id: str = "") -> JobRecord:
        """Creates a job and waits until it has succeeded."""
        return self.finish(self.client.create_job(text, *data, job_id))

    def crosstrain(self, *arguments: object, seconds: float = 200) -> Ran:
        """Runs a command as a process, with a cache and a state folder of its own, for ``seconds`` at most."""
        variables = {
            **os.environ,
            "CROSSTRAIN_CACHE": str(self.folder / "cache"),
            "CROSSTRAIN_STATE_DIR": str(self.folder / "up"),
            "CROSSTRAIN_COORDINATOR": self.address,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        done = subprocess.run(
            [sys.executable, "-m", "crosstrain", *map(str, arguments)],
            env=variables, capture_output=True, text=True, timeout=seconds, check=False, cwd=self.folder,
        )  # fmt: skip
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def refused(self, text: str, data: tuple[Any, Any] = (None, None)) -> CrosstrainError:
        """The error with which a job is refused; nothing of the job is left behind."""
        before = {job.job_id for job in self.client.list_jobs()}
        try:
            self.client.create_job(text, *data)
        except CrosstrainError as error:
            assert {job.job_id for job in self.client.list_jobs()} == before, "a refused job is listed"
            assert "Traceback" not in error.message
            assert str(self.folder) not in error.message
            return error
        raise AssertionError("the job was accepted")


def one(record: JobRecord, engine: str, repeat: int = 0) -> RunRecord:
    """The training run of an engine."""
    return next(run for run in record.training_runs() if (run.engine, run.repeat) == (engine, repeat))
