"""From records to what the verdict says of them, as for a job of task "check"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosstrain.compare.certificate import Certificate
from crosstrain.compare.numerics.bounds import Arrays
from crosstrain.compare.verdict import EngineEvidence, Evidence, judge
from crosstrain.judging.certifying import certificate_evidence, tensor_digests

MISMATCH = "MISMATCH"


def evidence(
    label: str, engine: str, certificate: Certificate, records: Mapping[int, Arrays], batch_size: int
) -> EngineEvidence:
    """What is known of one engine; ``engine`` is name@version."""
    name, _, version = engine.partition("@")
    steps = tuple(sorted(step for step in records if step >= 0))
    known = certificate_evidence(certificate, steps, batch_size)
    tensors = tensor_digests(certificate.case, records)
    return EngineEvidence(name, version, label, certificates=(known,), tensors=tensors)


def document(engines: Sequence[EngineEvidence]) -> dict[str, Any]:
    """The verdict document over some engines, without a reference."""
    return judge(Evidence("fault-suite", "fault suite", "case", "2000-01-01T00:00:00Z", "canonical", "float32", "check",
                          tuple(engines)))  # fmt: skip
