"""What the checks of a probe found, as JSON: small, and kept when the recorded tensors are gone."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from crosstrain.compare.verdict import CauseEvidence, CertificateEvidence, CheckEvidence, Failure, Worst
from crosstrain_service.errors import CrosstrainError

VERSION = 1
_FLOATS = ("ratio", "found", "expected", "bound")


@dataclass(frozen=True)
class StoredCertificate:
    """The checks of one probe run. ``tensors`` maps "case/step/name" to digests of recorded values."""

    run_id: str
    certificates: tuple[CertificateEvidence, ...]
    causes: tuple[CauseEvidence, ...]
    failures: tuple[Failure, ...] = ()
    tensors: dict[str, str] = field(default_factory=dict)
    precision: str = "float32"

    @property
    def holds(self) -> bool:
        """Whether there are checks and all of them hold."""
        return bool(self.certificates) and not any(item.failed for item in self.certificates)


def to_bytes(found: StoredCertificate) -> bytes:
    """As JSON, the same bytes for the same content."""
    values = {
        "version": VERSION,
        "run_id": found.run_id,
        "precision": found.precision,
        "certificates": [_plain(dataclasses.asdict(item)) for item in found.certificates],
        "causes": [_plain(dataclasses.asdict(item)) for item in found.causes],
        "failures": [dataclasses.asdict(item) for item in found.failures],
        "tensors": found.tensors,
    }
    return json.dumps(values, allow_nan=False, separators=(",", ":"), sort_keys=True).encode()


def from_bytes(data: bytes, field_name: str) -> StoredCertificate:
    """Reads what :func:`to_bytes` wrote; raises ``INVALID_DATA`` naming the field if it is something else."""
    try:
        values = json.loads(data)
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']}")
        return StoredCertificate(
            str(values["run_id"]),
            tuple(_certificate(item) for item in values["certificates"]),
            tuple(_cause(item) for item in values["causes"]),
            tuple(Failure(**item) for item in values["failures"]),
            dict(values["tensors"]),
            str(values["precision"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        message = f"{field_name}: holds no certificate of this version ({type(error).__name__})"
        raise CrosstrainError("INVALID_DATA", message, field_name) from error


def _certificate(values: dict[str, Any]) -> CertificateEvidence:
    checks = tuple(CheckEvidence(**_numbers(item)) for item in values.pop("checks"))
    steps = tuple(values.pop("steps"))
    return CertificateEvidence(**values, steps=steps, checks=checks)


def _cause(values: dict[str, Any]) -> CauseEvidence:
    found = _numbers(values)
    worst = found.pop("worst")
    for name in ("ids", "where", "also"):
        found[name] = tuple(found[name])
    return CauseEvidence(**found, worst=None if worst is None else Worst(**_numbers(worst)))


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers that JSON does not know were written as text."""
    found: dict[str, Any] = {
        name: float(value) if name in _FLOATS and isinstance(value, str) else value for name, value in values.items()
    }
    if found.get("coordinates") is not None:
        found["coordinates"] = tuple(found["coordinates"])
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
