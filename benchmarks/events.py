"""Step records per second from a run's spool through a service to a subscriber, over gRPC.

Writes the events of a long run (as its child would, in batches of the usual size) and reads them by WatchRun from the
real service process; one event per record as the worst case is shown beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from crosstrain_protos.v1 import run_pb2, service_pb2
from crosstrain_service.events import EventLog
from crosstrain_service.rundir import RunDir
from crosstrain_service.spool import SpoolWriter
from tests.support.service import Service


def write(state: Path, run_id: str, steps: int, batch: int) -> None:
    """A finished run of ``steps`` steps in events of ``batch`` records."""
    directory = RunDir(str(state / "runs" / run_id))
    request = service_pb2.TrainRequest(run_id=run_id, engine="reference")
    directory.create(run_pb2.RUN_KIND_TRAIN, request, time.time(), "1")
    events = EventLog(SpoolWriter(directory.spool), run_id, 1)
    for first in range(0, steps, batch):
        column = [0.5] * batch
        events.emit(steps=run_pb2.StepRecords(
            first_step=first, epoch=[0] * batch, loss=column, learning_rate=column, step_seconds=column,
            data_seconds=column, copy_seconds=column, compute_seconds=column, sync_seconds=column,
            callback_seconds=column, samples=[64] * batch))
    events.state(run_pb2.RUN_STATE_SUCCEEDED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        for batch in (1, 20, 200):
            write(state, f"batch-{batch}", arguments.steps, batch)
        with Service("reference", state=state) as service:
            for batch in (1, 20, 200):
                begin = time.perf_counter()
                records = sum(len(event.steps.loss) for event in service.watch(f"batch-{batch}", 600))
                seconds = time.perf_counter() - begin
                assert records == arguments.steps
                print(f"{batch:4} records per event: {records / seconds:12,.0f} records per second, target 50,000")
    return 0


if __name__ == "__main__":
    sys.exit(main())
