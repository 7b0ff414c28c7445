"""The first decision that an engine and the one it is compared with take differently, from the steps both recorded."""

from __future__ import annotations

from typing import Any

from crosstrain.compare.certificate import NotComparable
from crosstrain.compare.freerun.flips import Flip, first_flip_of_runs
from crosstrain.compare.numerics import bounds
from crosstrain.compare.verdict import UnreadableVerdict, read_verdict
from crosstrain.labels import run_label
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service import convert
from crosstrain_service.errors import CrosstrainError

from .reading import Reader, probe_request


def first_flip_of(reader: Reader, job: coordinator_pb2.Job, label: str, reference: str) -> Flip | None:
    """The first flip of one engine against another in the steps that both recorded; None if there is none or nothing
    was recorded. Both are given by label.

    Raises:
        CrosstrainError: a record is missing or damaged.
    """
    runs = _flip_runs(job)
    own, other = runs.get(label), runs.get(reference)
    if own is None or other is None or label == reference:
        return None
    case = probe_request(reader.row(own.run.run_id)).spec.cases[0]
    network = bounds.network_of(convert.model(case.model))
    mine = reader.recorded(own.run.run_id).probes.get(case.case_id, {})
    theirs = reader.recorded(other.run.run_id).probes.get(case.case_id, {})
    # One step after the other: the records of all of them need not fit into memory.
    for step in sorted(mine.keys() & theirs.keys()):
        engine = reader.tensors(mine[step], f"step {step} of {own.run.run_id}")
        wanted = reader.tensors(theirs[step], f"step {step} of {other.run.run_id}")
        try:
            found = first_flip_of_runs(network, {step: engine}, {step: wanted})
        except NotComparable as error:
            raise CrosstrainError("INVALID_DATA", error.reason, "flip") from error
        if found is not None:
            return found
    return None


def flip_in_document(reader: Reader, job: coordinator_pb2.Job, label: str) -> Flip | None:
    """The flip that the job's verdict tells of an engine: what it was found from is removed after the verdict."""
    document = _document(reader, job)
    for engine in document["engines"] if document else ():
        flip = (engine["free_run"] or {}).get("flip")
        if engine["label"] == label and flip is not None:
            return Flip(
                step=flip["step"],
                layer=flip["layer"],
                count=flip["count"],
                decisions=flip["decisions"],
                coordinates=tuple(flip["coordinates"]),
                gap=float(flip["gap"]),
                reference_gap=float(flip["reference_gap"]),
                bound=float(flip["bound"]),
                ratio=float(flip["ratio"]),
            )
    return None


def reference_in_document(reader: Reader, job: coordinator_pb2.Job) -> str:
    """Label of the engine that a job's verdict compares the others with; empty without a verdict."""
    document = _document(reader, job)
    return str((document["reference"] or {}).get("label") or "") if document else ""


def _document(reader: Reader, job: coordinator_pb2.Job) -> dict[str, Any] | None:
    if not job.verdict_digest:
        return None
    try:
        return read_verdict(reader.artifacts.get(job.verdict_digest, "verdict"))
    except UnreadableVerdict as error:
        raise CrosstrainError("INVALID_DATA", f"the verdict of {job.job_id}: {error}", "verdict") from error


def _flip_runs(job: coordinator_pb2.Job) -> dict[str, coordinator_pb2.JobRun]:
    """Flip probes that succeeded, by label."""
    return {
        run_label(record): record
        for record in job.runs
        if record.purpose == coordinator_pb2.RUN_PURPOSE_FLIP and record.run.state == run_pb2.RUN_STATE_SUCCEEDED
    }
