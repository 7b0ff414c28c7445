"""Every overlay and every pair of components builds and is valid for Kubernetes 1.29 to the newest known."""

from __future__ import annotations

import itertools

import kubernetes_validate
import pytest

from .build import COMPONENTS, FOREIGN, K8S, OVERLAYS, Manifest, combined, kustomize, overlay

NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
#: Both say how much a service may use.
EXCLUSIVE = {("cpu", "gpu")}


def check(manifests: list[Manifest], version: str) -> None:
    """Raises for an unknown field, a wrong type or two resources of one name."""
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in manifests]
    assert len(names) == len(set(names))
    for item in manifests:
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_are_valid_for_all_versions(name: str) -> None:
    manifests = overlay(name)
    # Production holds what the others hold, so for these the ends will do.
    for minor in range(29, NEWEST + 1) if name == "production" else (29, NEWEST):
        check(manifests, f"1.{minor}")


def test_the_exporter_of_gpu_metrics_is_valid() -> None:
    check(kustomize(K8S / "extras" / "dcgm-exporter"), f"1.{NEWEST}")


def combinations() -> list[tuple[str, ...]]:
    """None, each, each pair, and as many as go together."""
    found: list[tuple[str, ...]] = [(), *((name,) for name in COMPONENTS)]
    found += [pair for pair in itertools.combinations(COMPONENTS, 2) if pair not in EXCLUSIVE]
    found += [tuple(name for name in COMPONENTS if name != left_out) for left_out in ("cpu", "gpu")]
    return found


@pytest.mark.parametrize("components", combinations(), ids="+".join)
def test_components_go_together(components: tuple[str, ...]) -> None:
    check(combined(components), f"1.{NEWEST}")


def test_a_wrong_field_is_found() -> None:
    manifests = overlay("dev")
    pod = next(item for item in manifests if item["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    pod["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(manifests, f"1.{NEWEST}")
