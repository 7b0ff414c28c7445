"""The checks of one probe run: certificate and causes of every case, kept as one small artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from crosstrain.compare.causes import Cause, explain
from crosstrain.compare.certificate import Certificate, Check, NotComparable, certify
from crosstrain.compare.verdict import CauseEvidence, CertificateEvidence, CheckEvidence, Failure, Worst
from crosstrain.labels import engine_label
from crosstrain_protos.v1 import run_pb2, training_pb2
from crosstrain_service.errors import CrosstrainError

from .following import REFERENCE
from .reading import Arrays, Reader, Recorded, is_native, probe_request
from .stored import StoredCertificate, to_bytes

#: Recorded values that say what was asked, not what was computed.
_GIVEN = frozenset({"learning_rate", "input", "labels", "mask"})


def certify_run(reader: Reader, run_id: str) -> str:
    """Checks all cases of a probe run that has ended; returns the digest of what was found.

    A case whose records are missing, damaged or of something else is a failure of that case: it says nothing about
    the engine.
    """
    row = reader.row(run_id)
    request = probe_request(row)
    recorded = reader.recorded(run_id)
    native = is_native(request.spec.execution)
    precision = asked_precision(request.spec.execution, row.engine, recorded)
    certificates: list[CertificateEvidence] = []
    causes: list[CauseEvidence] = []
    failures: list[Failure] = []
    tensors: dict[str, str] = {}
    label = engine_label(row.engine, row.engine_version, row.variant)
    for case in request.spec.cases:
        try:
            records = _records(reader, recorded, case)
            problem = reader.problem(case, precision, native)
            certificate = certify(problem, records, case.case_id)
            if not certificate.checks:
                raise NotComparable("there is nothing to check")
            found = explain(problem, records, certificate)
        except NotComparable as error:
            failures.append(Failure(f"{label}, case {case.case_id}", error.reason))
            continue
        except CrosstrainError as error:
            failures.append(Failure(f"{label}, case {case.case_id}", error.message))
            continue
        certificates.append(certificate_evidence(certificate, tuple(case.steps), case.training.batch_size))
        causes.extend(_cause(item, case.case_id) for item in found)
        tensors.update(tensor_digests(case.case_id, records))
    result = StoredCertificate(
        run_id, tuple(certificates), tuple(causes), tuple(failures), tensors, precision
    )
    return reader.artifacts.put(to_bytes(result))


def asked_precision(execution: training_pb2.Execution, engine: str, recorded: Recorded) -> str:
    """The precision that a run was asked for, whatever its engine computed in.

    A request that names none means float32; only the reference engine computes in another one then, and says so.
    """
    named = {
        training_pb2.PRECISION_FLOAT32: "float32",
        training_pb2.PRECISION_FLOAT64: "float64",
        training_pb2.PRECISION_MIXED_FLOAT16: "mixed_float16",
        training_pb2.PRECISION_MIXED_BFLOAT16: "mixed_bfloat16",
    }
    if execution.precision in named:
        return named[execution.precision]
    return recorded.facts.get("maths.precision", "float32") if engine == REFERENCE else "float32"


def _records(reader: Reader, recorded: Recorded, case: run_pb2.ProbeCase) -> dict[int, Arrays]:
    """All recorded steps of a case; raises if one that was asked for is missing or damaged."""
    if case.case_id in recorded.errors:
        raise NotComparable(f"the engine failed: {recorded.errors[case.case_id]}")
    found = recorded.probes.get(case.case_id, {})
    wanted = [*case.steps, *([-1] if case.HasField("test") else [])]
    missing = [step for step in wanted if step not in found]
    if missing:
        raise NotComparable(f"step {missing[0]} was not recorded")
    return {step: reader.tensors(found[step], f"{case.case_id}, step {step}") for step in wanted}


def certificate_evidence(certificate: Certificate, steps: tuple[int, ...], batch_size: int) -> CertificateEvidence:
    """What the verdict needs of a certificate; ``steps`` are those recorded, in batches of ``batch_size``."""
    return CertificateEvidence(
        certificate.case,
        steps,
        batch_size,
        tuple(_check(check, certificate.case) for check in certificate.checks),
        certificate.ties,
        certificate.zeros,
    )


def _check(check: Check, case: str) -> CheckEvidence:
    return CheckEvidence(
        kind=check.kind,
        subject=check.subject,
        case=case,
        step=check.step,
        ratio=float(check.ratio),
        coordinates=check.coordinates,
        found=check.found,
        expected=check.expected,
        bound=check.bound,
        count=check.count,
        size=check.size,
        note=check.note or check.detail.lstrip(": "),
        layer=check.layer,
    )


def _cause(cause: Cause, case: str) -> CauseEvidence:
    worst, element = None, cause.worst
    if None not in (element.coordinates, element.found, element.expected, element.bound):
        # mypy does not follow "None not in".
        worst = Worst(element.coordinates, element.found, element.expected, element.bound)  # type: ignore[arg-type]
    return CauseEvidence(
        tuple(cause.ids), cause.title, cause.says, case, cause.step, float(cause.ratio), tuple(cause.where),
        cause.found_in, cause.restore, cause.unknown, tuple(cause.also), worst,
    )  # fmt: skip


def tensor_digests(case: str, records: Mapping[int, Arrays]) -> dict[str, str]:
    """Digests of all computed values: equal ones are bitwise equal tensors."""
    found = {}
    for step, record in records.items():
        for name, value in record.items():
            if name.split("/", 1)[0] not in _GIVEN:
                array = np.ascontiguousarray(value)
                head = f"{array.dtype.str} {array.shape} ".encode()
                found[f"{case}/{step}/{name}"] = hashlib.sha256(head + array.tobytes()).hexdigest()
    return found
