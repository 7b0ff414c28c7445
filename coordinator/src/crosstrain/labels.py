"""How an engine is called in results: engine, version, and what tells it apart from others of the same version."""

from __future__ import annotations

from crosstrain_protos.v1 import coordinator_pb2


def engine_label(engine: str, version: str, variant: str = "") -> str:
    """``engine@version``, with the settings that a job adds in brackets: ``torch@2.13.0[data=2]``."""
    label = f"{engine}@{version}" if version else engine
    return f"{label}[{variant}]" if variant else label


def rank_count(record: coordinator_pb2.JobRun) -> int:
    """Ranks of a run: data x tensor x pipeline."""
    parallel = record.parallel
    return max(1, parallel.data) * max(1, parallel.tensor) * max(1, parallel.pipeline)


def run_label(record: coordinator_pb2.JobRun) -> str:
    """The label of a run."""
    return engine_label(record.run.engine, record.run.engine_version, record.variant)
