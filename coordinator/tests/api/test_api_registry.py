"""What engine a name means."""

from __future__ import annotations

import pytest

from crosstrain.registry import Offer, resolve
from crosstrain.registry.resolve import version_key
from crosstrain_protos.v1 import service_pb2
from crosstrain_service.errors import CrosstrainError


def offer(name: str, version: str, service: str = "", preferred: bool = False, **options: object) -> Offer:
    reason = str(options.get("reason", ""))
    engine = service_pb2.EngineDescription(name=name, version=version, unavailable_reason=reason)
    return Offer(service or f"{name}-{version}", "h:1", preferred, bool(options.get("healthy", True)), engine, ())


OFFERS = [
    offer("tensorflow", "2.9.3"),
    offer("tensorflow", "2.12.1", preferred=True),
    offer("tensorflow", "2.21.0"),
    offer("tensorflow", "2.21.0", "second"),
    offer("torch", "2.13.0+cpu"),
    offer("torch", "2.9.0"),
    offer("caffe", "1.0", reason="libcaffe.so is missing"),
]


@pytest.mark.parametrize(("wanted", "service"), [
    ("tensorflow", "tensorflow-2.12.1"),
    ("tensorflow@2.9", "tensorflow-2.9.3"),
    ("tensorflow@2.12", "tensorflow-2.12.1"),
    ("tensorflow@2.21.0", "second"),
    ("torch", "torch-2.13.0+cpu"),
    ("torch@2.13.0", "torch-2.13.0+cpu"),
    ("torch@2.13.0+cpu", "torch-2.13.0+cpu"),
])
def test_names_and_versions(wanted: str, service: str) -> None:
    assert resolve(OFFERS, wanted).service == service


@pytest.mark.parametrize(("wanted", "reason", "text"), [
    ("tensorflow@2", "INVALID_FIELD", "2.9.3, 2.12.1, 2.21.0"),
    ("tensorflow@2.1", "ENGINE_NOT_FOUND", "tensorflow@2.12.1"),
    ("keras", "ENGINE_NOT_FOUND", "torch@2.13.0+cpu"),
    ("caffe", "ENVIRONMENT", "libcaffe.so is missing"),
])
def test_what_is_refused(wanted: str, reason: str, text: str) -> None:
    with pytest.raises(CrosstrainError) as caught:
        resolve(OFFERS, wanted, "engines[0]")
    assert (caught.value.reason, caught.value.field) == (reason, "engines[0]")
    assert text in caught.value.message


def test_without_any_service() -> None:
    with pytest.raises(CrosstrainError, match="registered: none"):
        resolve([], "torch")


def test_a_healthy_service_is_chosen_among_equals() -> None:
    offers = [offer("torch", "1", "a", healthy=False), offer("torch", "1", "b")]
    assert resolve(offers, "torch").service == "b"


def test_versions_are_ordered_by_their_numbers() -> None:
    ordered = ["0.1", "1.0rc1", "1.0", "1.0.1", "2.9.3", "2.12.0.dev3", "2.12.0", "2.12.0+cpu", "10.0"]
    assert sorted(set(ordered), key=version_key) == ordered
