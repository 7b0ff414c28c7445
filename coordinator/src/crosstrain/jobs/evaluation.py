"""The second stage of a job: every engine evaluates the final weights of every engine."""

from __future__ import annotations

from crosstrain.purposes import FOR_THE_VERDICT, is_training
from crosstrain.store import NewRun, Store
from crosstrain_protos.v1 import coordinator_pb2, run_pb2, service_pb2

from .naming import run_id
from .requests import parse_request
from .runs import parallel_of


def evaluation_runs(store: Store, job_id: str) -> list[NewRun]:
    """One Evaluate run per engine whose first repeat succeeded, over all such engines' final weights.

    Empty without test data or without a training run that succeeded.
    """
    runs = [
        store.jobs.run(record.run.run_id)
        for record in store.jobs.job(job_id).runs
        if is_training(record)
        and record.run.state == run_pb2.RUN_STATE_SUCCEEDED
        and record.repeat == 0
    ]
    weights = list(dict.fromkeys(row.record.result.weights_digest for row in runs))
    planned = []
    for row in runs:
        train = parse_request(row.kind, row.request)
        assert isinstance(train, service_pb2.TrainRequest)
        if not train.spec.HasField("test"):
            return []
        name = run_id(job_id, row.engine, row.engine_version, row.variant, "evaluate")
        spec = run_pb2.EvaluateSpec(
            model=train.spec.model,
            test=train.spec.test,
            weights_digests=weights,
            execution=train.spec.execution,
        )
        request = service_pb2.EvaluateRequest(run_id=name, engine=row.engine, spec=spec)
        planned.append(
            NewRun(
                run_id=name,
                kind=run_pb2.RUN_KIND_EVALUATE,
                repeat=0,
                service=row.service,
                engine=row.engine,
                engine_version=row.engine_version,
                device_key=row.device_key,
                request=request.SerializeToString(deterministic=True),
                purpose=coordinator_pb2.RUN_PURPOSE_EVALUATE,
                variant=row.variant,
                parallel=parallel_of(request),
            )
        )
    return planned


def first_failure(job: coordinator_pb2.Job) -> coordinator_pb2.JobRun | None:
    """The first run of a job, in order, that did not succeed, apart from those that only serve the verdict."""
    return next(
        (
            record
            for record in job.runs
            if record.run.state != run_pb2.RUN_STATE_SUCCEEDED and record.purpose not in FOR_THE_VERDICT
        ),
        None,
    )
