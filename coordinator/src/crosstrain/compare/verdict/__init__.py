"""From evidence to the verdict document, its files and the exit code."""

from crosstrain.compare.verdict.evidence import (
    CauseEvidence,
    CertificateEvidence,
    CheckEvidence,
    EngineEvidence,
    EnvelopeEvidence,
    Evidence,
    Failure,
    Worst,
)
from crosstrain.compare.verdict.exits import COULD_NOT_COMPARE, exit_code
from crosstrain.compare.verdict.judge import judge
from crosstrain.compare.verdict.junit import junit_xml
from crosstrain.compare.verdict.reading import UnreadableVerdict, read_verdict, schema, verdict_json

__all__ = [
    "COULD_NOT_COMPARE",
    "CauseEvidence",
    "CertificateEvidence",
    "CheckEvidence",
    "EngineEvidence",
    "EnvelopeEvidence",
    "Evidence",
    "Failure",
    "UnreadableVerdict",
    "Worst",
    "exit_code",
    "judge",
    "junit_xml",
    "read_verdict",
    "schema",
    "verdict_json",
]
