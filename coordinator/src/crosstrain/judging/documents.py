"""Verdict documents, stored as artifacts."""

from __future__ import annotations

from typing import Any

from crosstrain.compare.freerun.traces import difference
from crosstrain.compare.verdict import judge, verdict_json
from crosstrain.compare.verdict.facts import fact_differences

from .gathering import job_evidence
from .pairing import runs_evidence
from .reading import Reader


def judge_job(reader: Reader, job_id: str) -> dict[str, Any]:
    """Judges a job: verdict, sentence and digest of the document."""
    return _stored(reader, judge(job_evidence(reader, job_id)))


def compare_runs(reader: Reader, run_id_a: str, run_id_b: str) -> dict[str, Any]:
    """Judges two runs; beside the verdict, how far apart their losses are and which facts differ."""
    evidence = runs_evidence(reader, run_id_a, run_id_b)
    result = _stored(reader, judge(evidence))
    a, b = evidence.engines
    result["fact_differences"] = fact_differences(a.facts, b.facts)
    if a.trace is not None and b.trace is not None:
        apart = difference(a.trace, b.trace)
        result["difference"] = {
            "steps_compared": apart.steps_compared,
            "losses_equal": apart.equal,
            "first_different_step": apart.first_different_step,
            "max_abs_difference": apart.max_abs,
            "max_difference_step": apart.max_step,
            "horizon_step": apart.horizon_step,
        }
    return result


def _stored(reader: Reader, document: dict[str, Any]) -> dict[str, Any]:
    text = verdict_json(document)
    digest = reader.artifacts.put(text if isinstance(text, bytes) else text.encode())
    pairs = [pair["verdict"] for pair in document["pairs"]]
    return {"verdict": document["verdict"], "sentence": document["sentence"], "digest": digest, "pairs": pairs}
