"""Services of the same engine that can share one run."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from crosstrain_protos.v1 import service_pb2
from crosstrain_service.errors import CrosstrainError

from .resolve import Offer

#: Differing features that an error names.
_NAMED = 5


def choose_replicas(offers: Sequence[Offer], like: Offer, count: int, field: str) -> list[Offer]:
    """``count`` services with the engine of ``like`` in its version, in order of their names.

    Services that answer and those on machines of their own come first; all of them agree in what the engine can do.

    Raises:
        CrosstrainError: ``UNSUPPORTED`` if there are too few, saying how many there are or in what they differ, or if
            they cannot reach one another at the addresses that they gave.
    """
    same = [offer for offer in offers if offer.label == like.label and not offer.engine.unavailable_reason]
    if len(same) < count:
        names = ", ".join(offer.service for offer in same)
        text = f"{count} services with {like.label} are needed; registered: {len(same)} ({names})"
        raise CrosstrainError("UNSUPPORTED", f"{field}: {text}", field)
    agreeing = [offer for offer in same if not _differences(offer, like)]
    if len(agreeing) < count:
        other = next(offer for offer in same if _differences(offer, like))
        found = _differences(other, like)
        named = ", ".join(found[:_NAMED]) + (" and more" if len(found) > _NAMED else "")
        text = f"the services {like.service} and {other.service} of {like.label} differ: {named}"
        raise CrosstrainError("UNSUPPORTED", f"{field}: {text}", field)
    return _reachable(_spread(agreeing, count), field)


def _spread(offers: Sequence[Offer], count: int) -> list[Offer]:
    """The first so many, those on hosts of their own first."""
    hosts: set[str] = set()
    first: list[Offer] = []
    rest: list[Offer] = []
    for offer in sorted(offers, key=lambda offer: (not offer.healthy, _natural(offer.service))):
        (rest if offer.host in hosts else first).append(offer)
        hosts.add(offer.host)
    return sorted((first + rest)[:count], key=lambda offer: _natural(offer.service))


def _reachable(offers: list[Offer], field: str) -> list[Offer]:
    """The same, unless some gave addresses that mean something else elsewhere."""
    local = [offer for offer in offers if _local(offer.host)]
    anywhere = next((offer for offer in offers if offer.host in ("0.0.0.0", "::")), None)
    wrong = anywhere or (local[0] if 0 < len(local) < len(offers) else None)
    if wrong is not None:
        text = (
            f"the service {wrong.service} gave the address {wrong.address}, at which the others cannot reach it; "
            "start it with --advertise and an address of the network that they share"
        )
        raise CrosstrainError("UNSUPPORTED", f"{field}: {text}", field)
    return offers


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _differences(one: Offer, other: Offer) -> list[str]:
    """Names of features in which two offers differ."""
    a, b = _support(one), _support(other)
    unsupported = service_pb2.SUPPORT_UNSUPPORTED
    return sorted(name for name in a.keys() | b.keys() if a.get(name, unsupported) != b.get(name, unsupported))


def _support(offer: Offer) -> dict[str, int]:
    unset = service_pb2.SUPPORT_UNSPECIFIED
    return {
        item.name: service_pb2.SUPPORT_UNSUPPORTED if item.support == unset else item.support
        for item in offer.engine.features
    }


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Orders torch-2 before torch-10."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts if part]
