"""What is asked of every pod: least rights, limits, probes, an orderly end, no open path but the named ones."""

from __future__ import annotations

from typing import Any

import pytest

from crosstrain.api.settings import PREFIX, Settings, parse
from crosstrain_service.server import parser

from .build import OVERLAYS, Manifest, combined, of_kind, overlay, pods, selected

SERVICES = {"crosstrain-caffe", "crosstrain-keras-theano", "crosstrain-reference", "crosstrain-tensorflow",
            "crosstrain-torch"}  # fmt: skip


@pytest.fixture(scope="module")
def built() -> dict[str, list[Manifest]]:
    return {name: overlay(name) for name in OVERLAYS}


@pytest.fixture(scope="module", params=OVERLAYS)
def manifests(request: pytest.FixtureRequest, built: dict[str, list[Manifest]]) -> list[Manifest]:
    return built[request.param]


def test_pods_have_the_least_rights(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 10000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
        assert not any("hostPath" in volume for volume in spec["volumes"])
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
    for account in of_kind(manifests, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False
    assert not of_kind(manifests, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret")
    (namespace,) = of_kind(manifests, "Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_pods_have_limits_probes_and_versions(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        (container,) = pod["spec"]["containers"]
        for kind in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= container["resources"][kind].keys(), name
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["grpc"]["port"] == ports["grpc"]
        image, _, tag = container["image"].partition(":")
        assert image.startswith("crosstrain/") and tag and tag != "latest", container["image"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert "sizeLimit" in volumes["tmp"]["emptyDir"]


def test_what_is_written_is_on_a_volume(manifests: list[Manifest]) -> None:
    for workload in of_kind(manifests, "StatefulSet").values():
        (claim,) = workload["spec"]["volumeClaimTemplates"]
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts["/data"] == claim["metadata"]["name"]
        assert mounts["/tmp"] == "tmp"
        state = [item for item in container["args"] if item.startswith(("--state=", "--state-dir=", "--artifacts="))]
        assert state and all(item.partition("=")[2].startswith("/data") for item in state)


def arguments(pod: Manifest) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a pod's container as its process gets them."""
    (container,) = pod["spec"]["containers"]
    variables = {item["name"]: item.get("value", "from a secret") for item in container["env"]}
    values = container["args"]
    for name, value in variables.items():
        values = [item.replace(f"$({name})", value) for item in values]
    assert not any("$(" in item for item in values)
    return values, variables


def test_processes_understand_their_arguments(manifests: list[Manifest]) -> None:
    """The real parsers read what the manifests pass; a pod has the time to end that its process may take."""
    addresses = {
        f"{name}:{item['spec']['ports'][0]['port']}" for name, item in of_kind(manifests, "Service").items()
    }
    for name, pod in pods(manifests).items():
        values, variables = arguments(pod)
        if name == "crosstrain-coordinator":
            own = {key: value for key, value in variables.items() if key.startswith(PREFIX)}
            known = {PREFIX + field.upper() for field in Settings.__dataclass_fields__}
            assert own.keys() <= known
            settings = parse(values, own)
            assert (settings.listen, settings.metrics_port) == ("0.0.0.0:7440", "9464")
        else:
            options = parser().parse_args(values)
            assert options.advertise in addresses and options.advertise.startswith(f"{name}:")
            assert options.coordinator in addresses
            assert options.metrics_port == "9464"
            assert 60 <= options.drain_seconds < pod["spec"]["terminationGracePeriodSeconds"]


def test_selectors_take_exactly_one_workload(manifests: list[Manifest]) -> None:
    for item in of_kind(manifests, "Service").values():
        assert selected({"matchLabels": item["spec"]["selector"]}, manifests) == {item["metadata"]["name"]}
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert set(budgets) == set(pods(manifests))
    for name, item in budgets.items():
        assert selected(item["spec"]["selector"], manifests) == {name}
        assert item["spec"]["maxUnavailable"] == 1
    for name, item in of_kind(manifests, "StatefulSet").items():
        assert selected(item["spec"]["selector"], manifests) == {name}
        assert item["spec"]["serviceName"] in of_kind(manifests, "Service")


def paths(manifests: list[Manifest], direction: str) -> set[tuple[str, str, str, int]]:
    """(workload, direction, peer, port) of everything that the policies open."""
    found = set()
    for policy in of_kind(manifests, "NetworkPolicy").values():
        spec = policy["spec"]
        for rule in spec.get(direction.lower(), ()):
            peers = rule["from" if direction == "Ingress" else "to"]
            assert peers and rule["ports"], policy["metadata"]["name"]
            for workload in selected(spec["podSelector"], manifests):
                for peer in peers:
                    for port in rule["ports"]:
                        found |= {(workload, direction, name, port["port"]) for name in _peers(peer, manifests)}
    return found


def _peers(peer: Manifest, manifests: list[Manifest]) -> set[str]:
    if "ipBlock" in peer:
        assert peer["ipBlock"]["cidr"] not in ("0.0.0.0/0", "::/0")
        return {peer["ipBlock"]["cidr"]}
    labels = peer["podSelector"]["matchLabels"]
    if "namespaceSelector" in peer:
        (namespace,) = peer["namespaceSelector"]["matchLabels"].values()
        return {f"{namespace}/{'+'.join(labels.values())}"}
    return selected(peer["podSelector"], manifests) or {"+".join(labels)}


def test_no_path_is_open_but_the_named_ones(built: dict[str, list[Manifest]]) -> None:
    manifests = built["production"]
    deny = of_kind(manifests, "NetworkPolicy")["crosstrain-default-deny"]["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    services = {*SERVICES, "crosstrain-tensorflow-2-12"}
    coordinator, everything = "crosstrain-coordinator", {*services, "crosstrain-coordinator"}
    ingress = {(coordinator, "Ingress", name, 7440) for name in services}
    ingress |= {(name, "Ingress", coordinator, 7441) for name in services}
    ingress |= {(coordinator, "Ingress", "crosstrain/client", 7440)}
    ingress |= {(coordinator, "Ingress", "ingress-nginx/ingress-nginx", 7440)}
    ingress |= {(name, "Ingress", "monitoring/prometheus", 9464) for name in everything}
    assert paths(manifests, "Ingress") == ingress
    egress = {(name, "Egress", coordinator, 7440) for name in services}
    egress |= {(coordinator, "Egress", name, 7441) for name in services}
    egress |= {(name, "Egress", "kube-system/kube-dns", 53) for name in everything}
    egress |= {(name, "Egress", "istio-system/istiod", 15012) for name in everything}
    egress |= {(coordinator, "Egress", "192.0.2.10/32", 5432), (coordinator, "Egress", "198.51.100.0/24", 443)}
    assert paths(manifests, "Egress") == egress


def images(manifests: list[Manifest]) -> dict[str, str]:
    return {name: pod["spec"]["containers"][0]["image"] for name, pod in pods(manifests).items()}


def test_one_line_swaps_the_image_of_one_framework(built: dict[str, list[Manifest]]) -> None:
    before = images(built["gpu"])
    swapped = images(combined([], "overlays/gpu", images=[{"name": "crosstrain/torch", "newTag": "2.14-cuda"}]))
    assert {name for name in before if before[name] != swapped[name]} == {"crosstrain-torch"}
    assert swapped["crosstrain-torch"] == "crosstrain/torch:2.14-cuda"


def test_two_versions_of_one_framework_stand_side_by_side(built: dict[str, list[Manifest]]) -> None:
    found = pods(built["production"])
    options = [
        parser().parse_args(arguments(found[name])[0])
        for name in ("crosstrain-tensorflow", "crosstrain-tensorflow-2-12")
    ]
    assert {item.package for item in options} == {"crosstrain_tensorflow"}
    assert [item.service for item in options] == ["tensorflow-2.21", "tensorflow-2.12"]
    assert [item.preferred for item in options] == [True, False]
    assert len({item.advertise for item in options}) == 2
    found_images = images(built["production"])
    assert found_images["crosstrain-tensorflow"] != found_images["crosstrain-tensorflow-2-12"]


def gpus(pod: Manifest) -> tuple[Any, Any]:
    resources = pod["spec"]["containers"][0]["resources"]
    return resources["limits"].get("nvidia.com/gpu"), resources["requests"].get("nvidia.com/gpu")


def test_gpus_go_to_the_frameworks_that_use_them(built: dict[str, list[Manifest]]) -> None:
    for name, pod in pods(built["gpu"]).items():
        wanted = name in ("crosstrain-torch", "crosstrain-tensorflow")
        assert gpus(pod) == ((1, 1) if wanted else (None, None)), name
        tolerations = pod["spec"].get("tolerations", [])
        assert ("nvidia.com/gpu" in [item["key"] for item in tolerations]) == wanted
        assert images(built["gpu"])[name].endswith("-cuda") == wanted
    assert all(gpus(pod) == (None, None) for pod in pods(built["dev"]).values())


def test_stores_outside_the_cluster_come_from_secrets(built: dict[str, list[Manifest]]) -> None:
    workload = of_kind(built["production"], "StatefulSet")["crosstrain-coordinator"]
    assert workload["spec"]["replicas"] == 2
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    secrets = {
        item["name"]: item["valueFrom"]["secretKeyRef"]["name"] for item in container["env"] if "valueFrom" in item
    }
    assert secrets == {
        "CROSSTRAIN_DATABASE_URL": "crosstrain-database", "CROSSTRAIN_ARTIFACTS_URL": "crosstrain-s3",
        "AWS_ACCESS_KEY_ID": "crosstrain-s3", "AWS_SECRET_ACCESS_KEY": "crosstrain-s3",
        "AWS_ENDPOINT_URL_S3": "crosstrain-s3",
    }  # fmt: skip
    for name in ("dev", "gpu"):
        assert of_kind(built[name], "StatefulSet")["crosstrain-coordinator"]["spec"]["replicas"] == 1


def test_metrics_are_found_and_dashboards_are_the_generated_ones(built: dict[str, list[Manifest]]) -> None:
    manifests = built["gpu"]
    for name, pod in pods(manifests).items():
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9464", name
    (monitor,) = of_kind(manifests, "PodMonitor").values()
    assert selected(monitor["spec"]["selector"], manifests) == set(pods(manifests))
    (dashboards,) = (item for item in manifests if item["metadata"]["name"] == "crosstrain-dashboards")
    assert set(dashboards["data"]) == {
        "crosstrain-live-job.json", "crosstrain-framework-versions.json", "crosstrain-health.json",
    }  # fmt: skip
    assert len(str(dashboards)) < 1 << 20
