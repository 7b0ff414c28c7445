"""Which engine of which service a job means by ``name`` or ``name@version``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crosstrain_protos.v1 import service_pb2
from crosstrain_service.errors import CrosstrainError


@dataclass(frozen=True)
class Offer:
    """One engine of one registered service."""

    service: str
    address: str
    preferred: bool
    healthy: bool
    engine: service_pb2.EngineDescription
    devices: tuple[service_pb2.DeviceDescription, ...]

    @property
    def label(self) -> str:
        """``name@version``."""
        return f"{self.engine.name}@{self.engine.version}"

    @property
    def host(self) -> str:
        """Host name or IP address at which the service is reached."""
        return self.address.rpartition(":")[0].strip("[]").lower()


def resolve(offers: Sequence[Offer], wanted: str, field: str = "engines") -> Offer:
    """The offer that ``wanted`` means.

    A bare name means the engine of the preferred service, else the highest version. A version may
    be cut after any of its parts (``@2.12`` for 2.12.1) if only one version begins so. Among
    services with the same version a preferred one, then a healthy one, then the first by name wins.

    Raises:
        CrosstrainError: ``ENGINE_NOT_FOUND`` naming the registered engines, ``ENVIRONMENT`` if the
            engine is there but cannot run, ``INVALID_FIELD`` if the version is ambiguous.
    """
    name, _, version = wanted.partition("@")
    named = [offer for offer in offers if offer.engine.name == name and (not version or _begins(offer, version))]
    if not named:
        known = ", ".join(sorted({offer.label for offer in offers})) or "none"
        raise CrosstrainError(
            "ENGINE_NOT_FOUND", f"no registered service offers the engine {wanted!r}; registered: {known}", field
        )
    usable = [offer for offer in named if not offer.engine.unavailable_reason]
    if not usable:
        reason = named[0].engine.unavailable_reason
        raise CrosstrainError("ENVIRONMENT", f"the engine {named[0].label} cannot run: {reason}", field)
    exact = [offer for offer in usable if offer.engine.version == version]
    candidates = exact or usable
    versions = sorted({offer.engine.version for offer in candidates}, key=version_key)
    if version and len(versions) > 1:
        raise CrosstrainError(
            "INVALID_FIELD", f"{wanted!r} fits the versions {', '.join(versions)}; name one of them", field
        )
    return min(
        candidates,
        key=lambda offer: (
            not offer.preferred,
            -versions.index(offer.engine.version),
            not offer.healthy,
            offer.service,
        ),
    )


def version_key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Orders versions by their leading numbers; a pre-release comes before its release."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = tuple(int(part) for part in match.group().split(".")) if match else ()
    rest = version[match.end() :] if match else version
    return numbers, not re.match(r"[-.]?(a|b|c|rc|dev|alpha|beta|pre)", rest), rest


def _begins(offer: Offer, version: str) -> bool:
    own = offer.engine.version
    return own == version or (own.startswith(version) and not own[len(version)].isalnum())
