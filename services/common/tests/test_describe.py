"""Describing an engine: whatever its framework prints or does, the service starts."""

import subprocess
import types

import pytest

from crosstrain_protos.v1 import service_pb2
from crosstrain_service import describe

LINE = (describe._MARK + '{"name": "e", "version": "2", "libraries": {"numpy": "1"}, '
        '"features": {"probe": ["exact", ""], "layer.pad": ["unsupported", "no"]}}')


def described(monkeypatch, stdout="", stderr="", status=0, error=None):
    """The description when the engine's process gives this."""
    def run(command, **options):
        assert command[-2:] == ["package", "e"] and options["timeout"] > 0 and options["env"]["ONE"] == "1"
        if error is not None:
            raise error
        return types.SimpleNamespace(returncode=status, stdout=stdout.encode(), stderr=stderr.encode())

    monkeypatch.setattr(subprocess, "run", run)
    return describe._describe("package", "e", lambda engine, execution, folder: {"ONE": "1"})


def test_what_a_framework_prints_around_it_does_not_matter(monkeypatch):
    found = described(monkeypatch, "loading {...}\n" + LINE + "\nfreed 3 blocks\n", "a warning\n")
    assert (found.name, found.version, dict(found.libraries)) == ("e", "2", {"numpy": "1"})
    assert [(item.name, item.support) for item in found.features] == [
        ("layer.pad", service_pb2.SUPPORT_UNSUPPORTED), ("probe", service_pb2.SUPPORT_EXACT)]


@pytest.mark.parametrize("outcome, reason", [
    ({"status": 1, "stderr": "Traceback\nImportError: /opt/x/lib.so: wrong ELF class\n\n"},
     "ImportError: <path>: wrong ELF class"),
    ({"status": -11, "stdout": LINE}, "describing it failed"),
    ({"status": 0}, "describing it failed"),
    ({"error": subprocess.TimeoutExpired("python", 300)}, "importing its framework took over 300 seconds"),
])
def test_engine_that_cannot_describe_itself_says_why(monkeypatch, outcome, reason):
    found = described(monkeypatch, **outcome)
    assert found.name == "e" and found.unavailable_reason == reason and not found.features
