"""The type stubs describe the generated code: they check under mypy --strict and catch mistakes."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import protos_tool as protos
import pytest

pytest.importorskip("mypy", reason="type stubs are checked where mypy is installed, as in CI")
pytest.importorskip("grpc", reason="the stubs are compared with the modules, which need grpcio")

SOURCES = protos.ROOT / "protos" / "python"

# Every "type: ignore" marks a mistake that must be found: --strict reports one that is not needed.
USE = """
import grpc
from google.protobuf import timestamp_pb2
from crosstrain_protos.v1 import artifact_pb2, artifact_pb2_grpc, run_pb2, service_pb2, service_pb2_grpc


def call(channel: grpc.Channel) -> None:
    stub = service_pb2_grpc.TrainingServiceStub(channel)
    response: service_pb2.GetRunResponse = stub.GetRun(service_pb2.GetRunRequest(run_id="a"), timeout=1)
    stub.GetRun(service_pb2.TrainRequest())  # type: ignore[arg-type]
    for batch in stub.WatchRun(service_pb2.WatchRunRequest(run_id="a", after_sequence=2)):
        first = batch.events[0]
        if first.WhichOneof("event") == "steps":
            losses: list[float] = list(first.steps.loss)
            losses.append("x")  # type: ignore[arg-type]
        first.WhichOneof("evnt")  # type: ignore[arg-type]
    written: artifact_pb2.WriteResponse = artifact_pb2_grpc.ArtifactServiceStub(channel).Write(
        iter([artifact_pb2.WriteRequest(chunk=b"")])
    )
    state: run_pb2.RunState.ValueType = response.run.state
    print(run_pb2.RunState.Name(state), written.digst)  # type: ignore[attr-defined]


def build() -> run_pb2.Run:
    run_pb2.Run(run_idd="a")  # type: ignore[call-arg]
    run_pb2.Run(run_id=1)  # type: ignore[arg-type]
    facts: dict[str, str] = dict(run_pb2.Fingerprint(facts={"a": "b"}).facts)
    print(facts)
    return run_pb2.Run(state=run_pb2.RUN_STATE_RUNNING, create_time=timestamp_pb2.Timestamp(seconds=1))


class Artifacts(artifact_pb2_grpc.ArtifactServiceServicer):
    def Stat(
        self, request: artifact_pb2.StatRequest, context: grpc.ServicerContext
    ) -> artifact_pb2.StatResponse:
        return artifact_pb2.StatResponse(missing=request.digests)


Artifacts()  # type: ignore[abstract]
"""


def _mypy(arguments: list[str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), *arguments],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCES), "MYPY_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_are_strict_and_catch_mistakes(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    _mypy(["-p", "crosstrain_protos"], tmp_path)
    _mypy(["use.py"], tmp_path)


@pytest.mark.parametrize("stub", sorted(protos.PACKAGE.glob("*.pyi")), ids=lambda path: path.stem)
def test_public_names_of_a_stub_exist(stub: Path) -> None:
    """What a stub declares at module level is there at run time, but for aliases and helpers of typing."""
    module = importlib.import_module(f"crosstrain_protos.v1.{stub.stem}")
    declared = set()
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    public = {name for name in declared if not name.startswith(("_", "Global___"))}
    # An asyncio channel's stub has a name for type checkers only.
    public = {name for name in public if not name.endswith("AsyncStub")}
    assert public, "the stub declares nothing"
    assert sorted(name for name in public if not hasattr(module, name)) == []
