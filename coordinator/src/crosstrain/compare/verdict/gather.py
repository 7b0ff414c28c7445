"""Evidence from the results of the other packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crosstrain.compare.certificate import Certificate, Check
from crosstrain.compare.verdict.evidence import CertificateEvidence, CheckEvidence


def certificate_evidence(
    certificate: Certificate, records: Mapping[int, Any], probe_batch_size: int
) -> CertificateEvidence:
    """A case's certificate; ``records`` are the records that it was made from, by step."""
    return CertificateEvidence(
        certificate.case,
        tuple(sorted(step for step in records if step >= 0)),
        probe_batch_size,
        tuple(check_evidence(check, certificate.case) for check in certificate.checks),
        certificate.ties,
        certificate.zeros,
    )


def check_evidence(check: Check, case: str) -> CheckEvidence:
    """One check. What it says of a value that could not be compared element by element becomes its note."""
    note = check.note
    if not note and check.coordinates is None and not check.holds:
        note = check.detail.strip(" :;")
    return CheckEvidence(
        check.kind,
        check.subject,
        case,
        check.step,
        check.ratio,
        check.coordinates,
        check.found,
        check.expected,
        check.bound,
        check.count,
        check.size,
        note,
        check.layer,
    )
