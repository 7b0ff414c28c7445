"""Starts a real service process and talks to it over gRPC."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2

from crosstrain.launch.environments import Unavailable
from crosstrain_protos.v1 import (
    artifact_pb2,
    artifact_pb2_grpc,
    run_pb2,
    service_pb2,
    service_pb2_grpc,
)
from crosstrain_service import weights
from crosstrain_service.capabilities import EMULATED, EXACT, UNSUPPORTED, Feature

from . import catalogue

_START_SECONDS = 300
_CHUNK = 512 << 10
_SUPPORT = {
    service_pb2.SUPPORT_EXACT: EXACT,
    service_pb2.SUPPORT_EMULATED: EMULATED,
}


class ServiceUnavailable(Exception):
    """A service cannot run here; the message says why and what would change it."""


class RunFailed(Exception):
    """A run ended without success."""


class Service:
    """A service process of the catalogue with a fresh state folder, and a client of it.

    Use it as a context manager. ``options`` are added to the command line, ``folders`` to the import path,
    ``variables`` to the environment. Raises :class:`ServiceUnavailable` if the environment cannot be had or
    the process does not come up.
    """

    def __init__(
        self,
        name: str,
        state: Path | None = None,
        options: tuple[str, ...] = (),
        folders: tuple[Path, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        found = catalogue.environment(name)
        if isinstance(found, Unavailable):
            raise ServiceUnavailable(f"no environment for {name}: {found.reason} (to fix it: {found.remedy})")
        self.name = name
        self._temporary = None if state else tempfile.TemporaryDirectory(prefix=f"crosstrain-{name}-")
        self.state = Path(state or self._temporary.name)  # type: ignore[union-attr]
        self.log = self.state / "front.log"
        port_file = self.state / "port"
        port_file.unlink(missing_ok=True)
        command = [
            str(found.python), "-m", "crosstrain_service",
            "--package", catalogue.catalogue().service(name).package, "--service", name,
            "--state", str(self.state), "--port-file", str(port_file), *options,
        ]  # fmt: skip
        environment = {**os.environ, **found.variables(), **(variables or {})}
        paths = [environment["PYTHONPATH"], *map(str, folders)]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.state
            )
        self.port = self._wait_for(port_file)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.training = service_pb2_grpc.TrainingServiceStub(self.channel)
        self.artifacts = artifact_pb2_grpc.ArtifactServiceStub(self.channel)
        self._digests: dict[str, str] = {}

    def _wait_for(self, port_file: Path) -> int:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if port_file.exists():
                return int(port_file.read_text())
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        log = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        self.close()
        raise ServiceUnavailable(f"service {self.name} did not start: {' '.join(log)[:500]}")

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process, with its runs, and removes its state folder."""
        if self.process.poll() is None:
            self._cancel_runs()
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _cancel_runs(self) -> None:
        """Ends unfinished runs, whose processes would outlive the front."""
        if not hasattr(self, "training"):
            return
        try:
            for run in self.training.ListRuns(service_pb2.ListRunsRequest(), timeout=10).runs:
                if run.state in (run_pb2.RUN_STATE_QUEUED, run_pb2.RUN_STATE_RUNNING):
                    self.training.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id), timeout=20)
        except grpc.RpcError as error:
            print(f"service {self.name}: {error.code().name}", file=sys.stderr)

    def describe(self) -> dict[str, service_pb2.EngineDescription]:
        """Descriptions of the engines by name."""
        answer = self.training.Describe(service_pb2.DescribeRequest(), timeout=60)
        return {item.name: item for item in answer.engines}

    def upload(self, data: bytes) -> str:
        """Stores an artifact and returns its digest; what was stored before is not sent again."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._digests:
            self.artifacts.Write(_parts(digest, data), timeout=120)
            self._digests[digest] = digest
        return digest

    def upload_array(self, value: np.ndarray) -> str:
        """Stores an array as a ``.npy`` file."""
        import io

        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return self.upload(buffer.getvalue())

    def upload_tensors(self, tensors: dict[str, np.ndarray]) -> str:
        """Stores tensors as a safetensors file."""
        return self.upload(weights.to_bytes(tensors))

    def download(self, digest: str) -> bytes:
        """The bytes of an artifact."""
        request = artifact_pb2.ReadRequest(digest=digest)
        return b"".join(part.chunk for part in self.artifacts.Read(request, timeout=120))

    def tensors(self, digest: str) -> dict[str, np.ndarray]:
        """The tensors of a safetensors artifact."""
        return weights.from_bytes(self.download(digest))[0]

    def watch(self, run_id: str, seconds: float, after: int = 0) -> Iterator[run_pb2.RunEvent]:
        """A run's events as they happen."""
        request = service_pb2.WatchRunRequest(run_id=run_id, after_sequence=after)
        for answer in self.training.WatchRun(request, timeout=seconds):
            yield from answer.events

    def finish(self, run_id: str, seconds: float) -> list[run_pb2.RunEvent]:
        """All events of a run once it has succeeded; raises :class:`RunFailed` otherwise."""
        events = list(self.watch(run_id, seconds))
        last = events[-1].state_changed
        if last.state != run_pb2.RUN_STATE_SUCCEEDED:
            raise RunFailed(f"run {run_id}: {run_pb2.RunState.Name(last.state)}: {last.error.message}")
        return events


def features(description: service_pb2.EngineDescription) -> dict[str, Feature]:
    """The features that an engine declares, by name."""
    return {
        item.name: Feature(_SUPPORT.get(item.support, UNSUPPORTED), item.note)
        for item in description.features
    }


def error_info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo | None:
    """The ``google.rpc.ErrorInfo`` of a failed call; None if it carries none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for part in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if part.Unpack(info):
                    return info
    return None


def _parts(digest: str, data: bytes) -> Iterator[Any]:
    header = artifact_pb2.ArtifactHeader(digest=digest, size_bytes=len(data))
    yield artifact_pb2.WriteRequest(header=header)
    for start in range(0, len(data), _CHUNK):
        yield artifact_pb2.WriteRequest(chunk=data[start : start + _CHUNK])
