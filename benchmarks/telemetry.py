"""Cost of the training loop in the training thread: an engine that computes nothing, per step.

Measures what ``step_done`` and the hand-over of a batch cost while records are written and telemetry samples
in their own threads, as in a real run; reading the batch itself is not included (it is the data time of a run).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from crosstrain_service.checkpoint import CheckpointStore, Position
from crosstrain_service.engine import Batch
from crosstrain_service.events import EventLog
from crosstrain_service.loop import TrainingLoop
from crosstrain_service.spool import SpoolWriter
from crosstrain_service.telemetry import Telemetry
from crosstrain_service.testing import cnn2
from crosstrain_service.training import Execution, Rule, Training


class Nothing:
    """An engine and a feed without any work."""

    steps_per_epoch = 1 << 40
    rows = held_out = np.arange(0)

    def __init__(self, steps: int) -> None:
        self.total_steps = steps
        self._batch = Batch(0, np.zeros((64, 1)), np.zeros(64, np.int64), 0.05)

    def batches(self, epoch: int, first: int, count: int):
        for step in range(count):
            yield Batch(step, self._batch.x, self._batch.labels, 0.05)

    def synchronize(self) -> None: ...

    def state(self) -> dict:
        return {"a": np.zeros(1, np.float32)}


def once(steps: int) -> float:
    """Microseconds per step of one run."""
    with tempfile.TemporaryDirectory() as folder:
        events = EventLog(SpoolWriter(str(Path(folder) / "spool")), "run", 1)
        telemetry = Telemetry(events)
        telemetry.start()
        nothing = Nothing(steps)
        training = Training(1, 64, 0, Rule("sgd"), np.full(steps, 0.05))
        loop = TrainingLoop(nothing, cnn2(), training, Execution(), nothing, None, None, np.float32, events,
                            CheckpointStore(str(Path(folder) / "checkpoints")), Position())
        spent = 0.0
        for epoch in loop.epochs():
            for _ in epoch.batches():
                begin = time.perf_counter()
                loop.step_done(0.5)
                spent += time.perf_counter() - begin
        loop.close()
        telemetry.stop()
        return spent / steps * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    values = [once(arguments.steps) for _ in range(arguments.runs)]
    print(f"{statistics.median(values):.1f} us per step ({min(values):.1f} to {max(values):.1f}), target 20")
    return 0


if __name__ == "__main__":
    sys.exit(main())
