"""Compares two finished runs, in the process that judges."""

from __future__ import annotations

from crosstrain.judging.pool import Pool
from crosstrain_protos.v1 import coordinator_pb2

from .judgement import verdict_value

#: A comparison that takes longer is given up, seconds.
COMPARE_SECONDS = 300.0


def compare_runs(pool: Pool, run_id_a: str, run_id_b: str) -> coordinator_pb2.CompareRunsResponse:
    """The differences of two runs that have ended well, and the verdict over them.

    Raises:
        CrosstrainError: ``RUN_NOT_FOUND``, or ``WRONG_STATE`` naming the run that cannot be compared.
    """
    found = pool.call(COMPARE_SECONDS, task="compare", run_id_a=run_id_a, run_id_b=run_id_b)
    response = coordinator_pb2.CompareRunsResponse(
        verdict=verdict_value(found["verdict"]),
        verdict_digest=found["digest"],
        sentence=found["sentence"],
        first_different_step=-1,
        max_difference_step=-1,
        horizon_step=-1,
        fact_differences=[
            coordinator_pb2.FactDifference(name=item["name"], value_a=item["a"], value_b=item["b"])
            for item in found["fact_differences"]
        ],
    )
    for name, value in found.get("difference", {}).items():
        setattr(response, name, value)
    return response
