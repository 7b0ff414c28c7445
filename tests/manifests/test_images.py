"""Dockerfiles, their locks and the compose file, as far as they can be checked without building an image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from crosstrain_service.server import parser

from .build import ROOT, overlay, pods

DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
BAKE = (DOCKER / "docker-bake.hcl").read_text(encoding="utf-8")
SERVICES = ROOT / "services"
#: Locks by the one whose versions they must have.
CPU_LOCKS = {
    "coordinator": ROOT / "coordinator" / "locks" / "coordinator.txt",
    "reference": SERVICES / "reference" / "locks" / "reference.txt",
    "torch-cpu": SERVICES / "torch" / "locks" / "torch.txt",
    "tensorflow-2.21-cpu": SERVICES / "tensorflow" / "locks" / "tensorflow-2.21.txt",
    "tensorflow-2.12-cpu": SERVICES / "tensorflow" / "locks" / "tensorflow-2.12.txt",
    "keras_theano": SERVICES / "keras_theano" / "locks" / "keras_theano.txt",
    "caffe": SERVICES / "caffe" / "locks" / "caffe.txt",
}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_passes(path: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [hadolint, "--no-color", "--config", DOCKER / ".hadolint.yaml", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_need_no_root_and_no_shell(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    last = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 65532:65532$", last, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["/usr/bin/tini", "--", "python", ', last, re.MULTILINE)
    assert re.search(r'^    CMD \["python", "-m", "crosstrain_service.healthcheck", ', last, re.MULTILINE)
    assert "--require-hashes" in text
    assert "org.opencontainers.image.licenses" in last
    assert "ARG BASE_IMAGE=" in text[: text.index("FROM ")]
    assert "\nVOLUME" not in text, "a forgotten volume must be noticed"
    assert "pip.conf" not in text, "what a closed network needs belongs into its base image"


def versions(path: Path) -> dict[str, str]:
    """Pinned versions by the name of the package."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)([^\n]*)", path.read_text(), re.MULTILINE)
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version, marker in found
        if not re.search(r"platform == '(win32|darwin)'|>= '3.1[2-9]'", marker)
    }


@pytest.mark.parametrize("name", CPU_LOCKS)
def test_images_have_the_versions_of_the_tested_environments(name: str) -> None:
    tested, built = versions(CPU_LOCKS[name]), versions(DOCKER / "locks" / f"{name}.txt")
    if name == "torch-cpu":
        assert tested.pop("torch") in BAKE
    assert {package: built.get(package) for package in tested} == tested, "run docker/lock.sh"


def test_every_package_has_a_hash() -> None:
    locks = sorted((DOCKER / "locks").glob("*.txt"))
    assert set(re.findall(r'LOCK += "([a-z_]+)"', BAKE)) | {"coordinator", "caffe"} <= {path.stem for path in locks}
    for path in locks:
        entries = re.split(r"\n(?=[A-Za-z])", path.read_text(encoding="utf-8").strip())
        # NCCL is one library; all others are whole environments.
        assert len(entries) == 1 if path.stem == "caffe-nccl" else len(entries) > 10
        assert all("--hash=sha256:" in entry for entry in entries), path.name
        assert "://" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["2.12", "2.21"])
def test_gpu_builds_are_of_the_same_version(version: str) -> None:
    cpu = versions(DOCKER / "locks" / f"tensorflow-{version}-cpu.txt")
    cuda = versions(DOCKER / "locks" / f"tensorflow-{version}-cuda.txt")
    assert cuda["tensorflow"] == cpu["tensorflow-cpu"]
    assert ("nvidia-cudnn-cu12" in cuda) == (version == "2.21")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return {name: item for name, item in services.items() if "profiles" not in item}


def test_compose_gives_least_rights(compose: dict[str, Any]) -> None:
    for name, item in compose.items():
        assert item["read_only"] is True and item["user"] == "65532:65532", name
        assert item["cap_drop"] == ["ALL"] and item["security_opt"] == ["no-new-privileges:true"]
        assert any(volume.endswith(":/data") for volume in item["volumes"])
        assert all(port.startswith("127.0.0.1:") for port in item.get("ports", ()))


def test_compose_starts_what_the_processes_understand(compose: dict[str, Any]) -> None:
    wanted = {options.service for options in map(_options, _services(compose).values())}
    assert wanted == {"reference", "torch", "tensorflow-2.21", "tensorflow-2.12", "keras_theano", "caffe"}
    for name, item in _services(compose).items():
        options = _options(item)
        assert options.advertise == f"{name}:7441" and options.coordinator == "coordinator:7440"
        assert options.drain_seconds < float(item["stop_grace_period"].rstrip("s"))
    preferred = [options.package for options in map(_options, _services(compose).values()) if options.preferred]
    assert len(preferred) == len(set(preferred)) == 5


def _services(compose: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in compose.items() if name != "coordinator"}


def _options(item: dict[str, Any]) -> Any:
    return parser().parse_args(item["command"])


def test_prometheus_of_compose_scrapes_all_of_it(compose: dict[str, Any]) -> None:
    config = yaml.safe_load((DOCKER / "monitoring" / "prometheus.yaml").read_text(encoding="utf-8"))
    (targets,) = config["scrape_configs"][0]["static_configs"]
    assert set(targets["targets"]) == {f"{name}:9464" for name in compose}


def test_compose_and_kubernetes_run_the_same_images(compose: dict[str, Any]) -> None:
    def plain(image: str) -> str:
        return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", image)

    of_compose = {plain(item["image"]) for item in compose.values()}
    of_pods = {pod["spec"]["containers"][0]["image"] for pod in pods(overlay("dev")).values()}
    assert of_compose == of_pods | {"crosstrain/tensorflow-2.12:2.12-cpu"}
