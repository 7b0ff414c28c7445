"""What the runs of a job are for: its results, or its verdict alone."""

from __future__ import annotations

from crosstrain_protos.v1 import coordinator_pb2, run_pb2

#: Runs that only serve the verdict: a job does not fail with them, and they are no results.
FOR_THE_VERDICT = frozenset(
    {
        coordinator_pb2.RUN_PURPOSE_PROBE,
        coordinator_pb2.RUN_PURPOSE_ENVELOPE,
        coordinator_pb2.RUN_PURPOSE_FLIP,
        coordinator_pb2.RUN_PURPOSE_SEED,
    }
)


def is_training(record: coordinator_pb2.JobRun) -> bool:
    """Whether a run is a training that the job asked for."""
    return record.run.kind == run_pb2.RUN_KIND_TRAIN and record.purpose not in FOR_THE_VERDICT
