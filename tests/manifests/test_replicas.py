"""Pods of one service that share runs: names and addresses of their own, open to one another and to nobody else."""

from __future__ import annotations

import pytest

from crosstrain_service.server import parser

from .build import Manifest, combined, of_kind, pods, selected

NAME = "crosstrain-torch"
MEMBERS = "crosstrain-torch-members"


@pytest.fixture(scope="module", params=["base/all", "overlays/dev", "overlays/production"])
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return combined(["replicas"], request.param)


@pytest.fixture(scope="module")
def policed() -> list[Manifest]:
    return combined(["replicas"], "overlays/production")


def test_each_pod_has_a_name_and_an_address_of_its_own(manifests: list[Manifest]) -> None:
    workload = of_kind(manifests, "StatefulSet")[NAME]["spec"]
    service = of_kind(manifests, "Service")[MEMBERS]["spec"]
    assert workload["replicas"] == 2
    assert workload["serviceName"] == MEMBERS
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert selected({"matchLabels": service["selector"]}, manifests) == {NAME}
    (container,) = workload["template"]["spec"]["containers"]
    variables = {item["name"]: item for item in container["env"]}
    assert variables["POD_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    # A variable may only refer to those before it.
    names = [item["name"] for item in container["env"]]
    assert names.index("POD_NAME") < min(names.index("CROSSTRAIN_SERVICE"), names.index("CROSSTRAIN_ADDRESS"))
    found = set()
    for pod in (f"{NAME}-0", f"{NAME}-1"):
        values = {name: item.get("value", pod).replace("$(POD_NAME)", pod) for name, item in variables.items()}
        arguments = container["args"]
        for name, value in values.items():
            arguments = [item.replace(f"$({name})", value) for item in arguments]
        options = parser().parse_args(arguments)
        assert options.advertise == f"{pod}.{MEMBERS}:7441"
        assert options.preferred
        found.add(options.service)
    assert found == {f"{NAME}-0", f"{NAME}-1"}
    (spread,) = workload["template"]["spec"]["topologySpreadConstraints"]
    assert selected(spread["labelSelector"], manifests) == {NAME}


def test_other_services_stay_single(manifests: list[Manifest]) -> None:
    for name, item in of_kind(manifests, "StatefulSet").items():
        if name not in (NAME, "crosstrain-coordinator"):
            assert item["spec"]["replicas"] == 1
            assert item["spec"]["serviceName"] == name


def test_only_members_reach_members_on_any_port(policed: list[Manifest]) -> None:
    for name, policy in of_kind(policed, "NetworkPolicy").items():
        for direction, ends in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, ()):
                if name != MEMBERS:
                    assert rule["ports"], name
                    continue
                assert "ports" not in rule
                (peer,) = rule[ends]
                assert list(peer) == ["podSelector"]
                assert selected(peer["podSelector"], policed) == {NAME}
                assert selected(policy["spec"]["podSelector"], policed) == {NAME}
    assert of_kind(policed, "NetworkPolicy")[MEMBERS]["spec"]["policyTypes"] == ["Ingress", "Egress"]


def test_the_number_of_pods_is_one_line(policed: list[Manifest]) -> None:
    more = combined(["replicas"], "base/all", replicas=[{"name": NAME, "count": 4}])
    assert of_kind(more, "StatefulSet")[NAME]["spec"]["replicas"] == 4
    assert set(pods(more)) <= set(pods(policed))
