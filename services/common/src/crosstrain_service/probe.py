"""Recording what an engine computes inside a training step."""

from typing import Any, Callable, Collection, Dict, Iterable, Iterator, Optional, Set, Tuple

import numpy as np

from crosstrain_protos.v1 import run_pb2

from .engine import Arrays, Batch, Engine, Epoch, Loop, Rows
from .spool import SpoolReader

#: What a record may hold: the part of a tensor's name before the "/", or all of it.
GROUPS = ("input", "labels", "learning_rate", "mask", "parameter", "state", "probe_loss", "output", "output_grad",
          "gradient", "loss", "parameter_after", "state_after", "logits", "statistic")


class _OneBatch(Epoch):
    def __init__(self, batch: Batch, rows: Optional[Rows]) -> None:
        self._batch = batch
        self._rows = rows
        self.steps = 1

    def batches(self) -> Iterator[Batch]:
        yield self._batch

    def rows(self) -> Optional[Rows]:
        return self._rows


class SingleStep(Loop):
    """A loop of exactly one step, so that a probe goes through the real training path.

    ``rows``: the batch as rows of the data set, where a training epoch would offer them.
    """

    def __init__(self, batch: Batch, rows: Optional[Rows] = None) -> None:
        self.batch = batch
        self.rows = rows
        self.step = batch.step
        self.loss: Optional[float] = None

    def epochs(self) -> Iterator[Epoch]:
        yield _OneBatch(self.batch, self.rows)

    def step_done(self, loss: Any, correct: Optional[Any] = None, sync_seconds: float = 0.0,
                  copy_seconds: float = 0.0) -> None:
        if self.loss is not None:
            raise RuntimeError("the engine reported more than one step")
        self.loss = float(loss)
        self.step += 1

    def learning_rate(self, step: int) -> float:
        return self.batch.learning_rate


def record_steps(engine: Engine, batches: Iterable[Batch], wanted: Collection[int],
                 rows: Optional[Callable[[int], Optional[Rows]]] = None) -> Iterator[
                     Tuple[int, Dict[str, np.ndarray]]]:
    """Trains on ``batches`` one after the other and yields (step, tensors) for the ``wanted`` steps.

    ``rows`` gives a step's batch as rows of the data set (``Feed.step_rows``), which the training step may
    use instead of the batch; what is recorded as input, and the recording pass, is always the batch.

    Tensor names are those of ``ProbeRecorded.digest``; "loss" is the loss that the training step
    reported, "probe_loss" the loss seen by the recording pass before it.
    """
    for batch in batches:
        record: Arrays = {}
        if batch.step in wanted:
            record = _before(engine, batch)
        loop = SingleStep(batch, rows(batch.step) if rows is not None else None)
        engine.train(loop)
        if loop.loss is None:
            raise RuntimeError("the engine reported no step")
        if batch.step in wanted:
            record["loss"] = np.asarray(loop.loss, dtype=np.float64)
            record.update(_named("parameter_after", engine.parameters()))
            record.update(_named("state_after", engine.optimizer_state()))
            yield batch.step, record


def only(record: Arrays, groups: Collection[str]) -> Arrays:
    """The tensors of a record that belong to some groups; all of them if no group is named."""
    if not groups:
        return record
    return {name: value for name, value in record.items() if name.split("/", 1)[0] in groups}


def recorded_digests(spool: str) -> Set[str]:
    """Digests of the records that a probe's events name."""
    reader = SpoolReader(spool)
    found: Set[str] = set()
    while True:
        records = reader.read()
        if not records:
            return found
        for _sequence, payload in records:
            event = run_pb2.RunEvent.FromString(payload)
            if event.WhichOneof("event") == "probe_recorded" and event.probe_recorded.digest:
                found.add(event.probe_recorded.digest)


def _before(engine: Engine, batch: Batch) -> Arrays:
    record = {
        "input": batch.x,
        "labels": batch.labels,
        "learning_rate": np.asarray(batch.learning_rate, dtype=np.float64),
    }
    record.update(_named("mask", batch.masks))
    record.update(_named("parameter", engine.parameters()))
    record.update(_named("state", engine.optimizer_state()))
    inside = engine.intermediates(batch)
    record["probe_loss"] = np.asarray(inside.loss, dtype=np.float64)
    record.update(_named("output", inside.outputs))
    record.update(_named("output_grad", inside.output_gradients))
    record.update(_named("gradient", inside.gradients))
    return record


def _named(prefix: str, arrays: Arrays) -> Arrays:
    return {"%s/%s" % (prefix, name): np.array(value) for name, value in arrays.items()}
