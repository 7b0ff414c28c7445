"""What is in the images, as they were built."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.manifests.test_images import CPU_LOCKS, versions

from .docker import docker, inspect
from .images import ROOT, targets

#: Targets of the bake file and the lock of each.
LOCKS = {
    "coordinator": "coordinator", "reference": "reference", "torch-cpu": "torch-cpu",
    "tensorflow-2-21-cpu": "tensorflow-2.21-cpu", "tensorflow-2-12-cpu": "tensorflow-2.12-cpu",
    "keras-theano-cpu": "keras_theano", "caffe-cpu": "caffe",
}  # fmt: skip


def image_of(target: str, setup: dict[str, str]) -> str:
    return str(targets(target, setup)[target]["tags"][0])


def test_all_images_are_tested(setup: dict[str, str]) -> None:
    assert set(targets("cpu", setup)) == set(LOCKS)
    assert set(LOCKS.values()) == set(CPU_LOCKS)


@pytest.mark.parametrize("target", LOCKS)
def test_configuration(target: str, setup: dict[str, str]) -> None:
    config = inspect(image_of(target, setup))["Config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"][:3] == ["/usr/bin/tini", "--", "python"]
    assert config["Healthcheck"]["Test"][:4] == ["CMD", "python", "-m", "crosstrain_service.healthcheck"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"].startswith("Crosstrain ")
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert labels["org.opencontainers.image.revision"] == setup["REVISION"]


@pytest.mark.parametrize("target", LOCKS)
def test_nothing_needs_a_network_a_writable_root_or_rights(target: str, setup: dict[str, str]) -> None:
    package = "crosstrain.api" if target == "coordinator" else "crosstrain_service"
    said = docker(
        "run", "--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        "--tmpfs=/tmp:mode=1777,exec", image_of(target, setup), "--help",
    )  # fmt: skip
    assert "usage: " in said and package in said


@pytest.mark.parametrize("target", LOCKS)
def test_list_of_packages_is_that_of_the_lock(target: str, setup: dict[str, str]) -> None:
    folder = Path(setup["LISTS"]) / target
    listed = json.loads((folder / "python.json").read_text())
    found = {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in listed}
    expected = versions(ROOT / "docker" / "locks" / f"{LOCKS[target]}.txt")
    assert {name: found.get(name) for name in expected} == expected
    if target == "torch-cpu":
        assert found["torch"].partition("+")[0] == "2.13.0"
    assert not {name for name in found if name.startswith("nvidia-") and name != "nvidia-ml-py"}, "CPU images"
    debian = dict(line.split() for line in (folder / "debian.txt").read_text().splitlines())
    assert "libc6" in debian and "tini" in debian
    assert ("g++" in debian) == (target == "keras-theano-cpu"), "what only the build needs is not in the image"
