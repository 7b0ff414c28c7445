"""What a run's events mean for the record of the run."""

from __future__ import annotations

from crosstrain_protos.v1 import coordinator_pb2, run_pb2

TERMINAL_RUN_STATES = frozenset(
    {run_pb2.RUN_STATE_SUCCEEDED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED}
)
TERMINAL_JOB_STATES = frozenset(
    {
        coordinator_pb2.JOB_STATE_SUCCEEDED,
        coordinator_pb2.JOB_STATE_FAILED,
        coordinator_pb2.JOB_STATE_CANCELLED,
    }
)


def apply_event(record: coordinator_pb2.JobRun, event: run_pb2.RunEvent) -> None:
    """Brings ``record`` up to date with the run's next event."""
    run = record.run
    run.last_sequence = event.sequence
    kind = event.WhichOneof("event")
    if kind == "state_changed":
        change = event.state_changed
        run.state = change.state
        if change.state == run_pb2.RUN_STATE_RUNNING and not run.HasField("start_time"):
            run.start_time.CopyFrom(event.time)
        if change.state in TERMINAL_RUN_STATES:
            run.end_time.CopyFrom(event.time)
        if change.state == run_pb2.RUN_STATE_FAILED:
            run.error.CopyFrom(change.error)
    elif kind == "attempt_started":
        run.attempt = event.attempt
        if not run.HasField("start_time"):
            run.start_time.CopyFrom(event.time)
    elif kind == "result":
        record.result.CopyFrom(event.result)
    elif kind == "evaluated":
        # A later attempt evaluates again what an earlier one had done.
        for known in record.evaluations:
            if known.weights_digest == event.evaluated.weights_digest:
                known.CopyFrom(event.evaluated)
                return
        record.evaluations.append(event.evaluated)
