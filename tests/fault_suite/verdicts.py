"""From records to what the verdict says of them, as for a job of task "check"."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crosstrain.compare.certificate import Certificate
from crosstrain.compare.numerics.bounds import Arrays
from crosstrain.compare.verdict import CertificateEvidence, CheckEvidence, EngineEvidence, Evidence, judge

MISMATCH = "MISMATCH"

#: Recorded values that say what was asked, not what was computed.
_GIVEN = frozenset({"learning_rate", "input", "labels", "mask"})


def evidence(
    label: str, engine: str, certificate: Certificate, records: Mapping[int, Arrays], batch_size: int
) -> EngineEvidence:
    """What is known of one engine; ``engine`` is name@version."""
    name, _, version = engine.partition("@")
    checks = tuple(
        CheckEvidence(check.kind, check.subject, certificate.case, check.step, check.ratio, check.coordinates,
                      check.found, check.expected, check.bound, check.count, check.size, check.note)
        for check in certificate.checks
    )  # fmt: skip
    steps = tuple(sorted(step for step in records if step >= 0))
    known = CertificateEvidence(certificate.case, steps, batch_size, checks, certificate.ties, certificate.zeros)
    return EngineEvidence(name, version, label, certificates=(known,), tensors=_digests(records))


def document(engines: Sequence[EngineEvidence]) -> dict[str, Any]:
    """The verdict document over some engines, without a reference."""
    return judge(Evidence("fault-suite", "fault suite", "case", "2000-01-01T00:00:00Z", "canonical", "float32", "check",
                          tuple(engines)))  # fmt: skip


def _digests(records: Mapping[int, Arrays]) -> dict[str, str]:
    found = {}
    for step, record in records.items():
        for name, value in record.items():
            if name.split("/", 1)[0] not in _GIVEN:
                array = np.ascontiguousarray(value)
                head = f"{array.dtype.str} {array.shape} ".encode()
                found[f"{step}/{name}"] = hashlib.sha256(head + array.tobytes()).hexdigest()
    return found
