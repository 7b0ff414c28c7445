"""All evidence about two finished runs of any jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from crosstrain import spec as documents
from crosstrain.compare.verdict import EngineEvidence, Evidence
from crosstrain.labels import run_label
from crosstrain_protos.v1 import coordinator_pb2, run_pb2
from crosstrain_service.errors import CrosstrainError

from .flips import reference_in_document
from .following import REFERENCE
from .gathering import Gathering, model_name, now
from .reading import Reader


def runs_evidence(reader: Reader, run_id_a: str, run_id_b: str) -> Evidence:
    """Everything that is known about two finished runs of any jobs.

    Raises:
        CrosstrainError: ``RUN_NOT_FOUND``, or ``WRONG_STATE`` naming the run that cannot be compared.
    """
    records: list[tuple[coordinator_pb2.Job, coordinator_pb2.JobRun]] = []
    for name, run_id in (("run_id_a", run_id_a), ("run_id_b", run_id_b)):
        row = reader.row(run_id)
        if row.state != run_pb2.RUN_STATE_SUCCEEDED or row.kind == run_pb2.RUN_KIND_EVALUATE:
            message = f"{name}: run {run_id} is no training run or probe that has succeeded"
            raise CrosstrainError("WRONG_STATE", message, name)
        if records and row.kind != records[0][1].run.kind:
            message = f"{name}: run {run_id} is not of the same kind as {run_id_a}"
            raise CrosstrainError("WRONG_STATE", message, name)
        job = reader.job(row.job_id)
        records.append((job, next(record for record in job.runs if record.run.run_id == run_id)))
    labels = _labels([record for _job, record in records])
    gatherings = [Gathering(reader, job) for job, _record in records]
    engines = tuple(
        gathering.one(record, label)
        for gathering, (_job, record), label in zip(gatherings, records, labels, strict=True)
    )
    engines = (engines[0], _with_earliest_flip(reader, records, *engines))
    engines = _with_common_rates(reader, engines, [job for job, _record in records])
    failures = [failure for gathering in gatherings for failure in gathering.failures]
    first, second = (job for job, _record in records)
    spec = documents.parse_document(first.document)
    envelope = gatherings[0].envelope(engines) or gatherings[1].envelope(engines)
    return Evidence(
        job_id=first.job_id if first.job_id == second.job_id else f"{first.job_id}, {second.job_id}",
        job_name=first.name if first.name == second.name else f"{first.name}, {second.name}",
        model=model_name(spec),
        created=now(),
        semantics=spec.semantics,
        precision=spec.execution.precision or "float32",
        task="compare",
        engines=engines,
        reference=labels[0] if engines[0].trace is not None else "",
        envelope=envelope,
        could_not_compare=tuple(dict.fromkeys(failures)),
        accuracy_margin=spec.verdict.margin,
    )


def _with_common_rates(
    reader: Reader, engines: tuple[EngineEvidence, ...], jobs: Sequence[coordinator_pb2.Job]
) -> tuple[EngineEvidence, ...]:
    """Both runs as asked for the same learning rates if those of the shorter one begin those of the longer one."""
    rates = [reader.rates(job) for job in jobs]
    shared = min(map(len, rates))
    if not shared or len(rates[0]) == len(rates[1]) or not np.array_equal(rates[0][:shared], rates[1][:shared]):
        return engines
    told = {"learning rates": f"the same for {shared} steps"}
    return tuple(dataclasses.replace(engine, asked={**engine.asked, **told}) for engine in engines)


def _with_earliest_flip(
    reader: Reader,
    records: Sequence[tuple[coordinator_pb2.Job, coordinator_pb2.JobRun]],
    first: EngineEvidence,
    second: EngineEvidence,
) -> EngineEvidence:
    """The second run with the flip that parts it from the first: both were compared with the same engine.

    If only one of the two is known to have left that engine's run, that flip parts them; of two it is the earlier one.
    The reference engine gives the same run in every job; another engine only counts within one job.
    """
    known = [engine.flip for engine in (first, second) if engine.flip is not None]
    if known:
        bases = [reference_in_document(reader, job) for job, _record in records]
        common = bases[0] == bases[1] and (
            bases[0].partition("@")[0] == REFERENCE or records[0][0].job_id == records[1][0].job_id
        )
        are_base = [run_label(record) == base for (_job, record), base in zip(records, bases, strict=True)]
        if not common or (first.flip is None and not any(are_base)):
            known = []
    return dataclasses.replace(second, flip=min(known, key=lambda flip: flip.step, default=None))


def _labels(records: Sequence[coordinator_pb2.JobRun]) -> list[str]:
    labels = [run_label(record) for record in records]
    if labels[0] != labels[1]:
        return labels
    if records[0].run.run_id == records[1].run.run_id:
        raise CrosstrainError("INVALID_FIELD", "run_id_b: the two runs are the same one", "run_id_b")
    return [f"{label} {record.run.run_id}" for label, record in zip(labels, records, strict=True)]
