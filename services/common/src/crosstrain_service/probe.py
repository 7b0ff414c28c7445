"""Recording what an engine computes inside a training step."""

from typing import Any, Callable, Collection, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import numpy as np

from crosstrain_protos.v1 import run_pb2

from .engine import Arrays, Batch, Engine, Epoch, Loop, Rows
from .parallel import progress, replicas
from .parallel.team import ALONE, Team
from .spool import SpoolReader

#: What a record may hold: the part of a tensor's name before the "/", or all of it.
GROUPS = ("input", "labels", "learning_rate", "mask", "parameter", "state", "probe_loss", "output", "output_grad",
          "gradient", "loss", "skipped", "parameter_after", "state_after", "logits", "statistic")


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
        self.done = False

    def epochs(self) -> Iterator[Epoch]:
        yield _OneBatch(self.batch, self.rows)

    def step_done(self, loss: Any, correct: Optional[Any] = None, sync_seconds: float = 0.0,
                  copy_seconds: float = 0.0) -> None:
        if self.done:
            raise RuntimeError("the engine reported more than one step")
        self.done = True
        self.loss = None if loss is None else float(loss)
        self.step += 1

    def learning_rate(self, step: int) -> float:
        return self.batch.learning_rate


def record_steps(engine: Engine, batches: Iterable[Batch], wanted: Collection[int],
                 rows: Optional[Callable[[int], Optional[Rows]]] = None, team: Team = ALONE,
                 whole: Optional[Iterable[Batch]] = None) -> Iterator[Tuple[int, Dict[str, np.ndarray]]]:
    """Trains on ``batches`` one after the other and yields (step, tensors) for the ``wanted`` steps.

    ``rows`` gives a step's batch as rows of the data set (``Feed.step_rows``), which the training step may
    use instead of the batch; what is recorded as input, and the recording pass, is always the batch.
    With several processes all call it with the batches of their shares, and process 0, which alone yields
    records, with the ``whole`` batches as well. Raises ``RANK_DIVERGED`` where data parallel ranks hold other
    parameters before or after a wanted step.

    Tensor names are those of ``ProbeRecorded.digest``; "loss" is the loss that the training step
    reported, "probe_loss" the loss seen by the recording pass before it; "skipped" is there, as 1, where the engine
    left out the update because a gradient overflowed float16.
    """
    wholes = iter(whole) if whole is not None and team.size > 1 and team.leads else None
    for batch in batches:
        entire = next(wholes) if wholes is not None else batch
        record: Arrays = {}
        if batch.step in wanted:
            progress.enter(progress.RECORDING, batch.step)
            record = _before(engine, batch, entire, team)
        skipped = engine.skipped_updates()
        progress.enter(progress.STEP, batch.step)
        loop = SingleStep(batch, rows(batch.step) if rows is not None else None)
        engine.train(loop)
        if not loop.done:
            raise RuntimeError("the engine reported no step")
        if batch.step in wanted:
            progress.enter(progress.RECORDING, batch.step + 1)
            losses = [numbers for _, numbers in team.gather_arrays({}, {"loss": loop.loss, "samples": batch.samples})]
            after = engine.parameters()
            replicas.compare(team, after, "after step %d" % batch.step)
            record.update(_named("parameter_after", after))
            record.update(_named("state_after", engine.optimizer_state()))
            if team.leads:
                record["loss"] = np.asarray(_mean(losses), dtype=np.float64)
                if engine.skipped_updates() > skipped:
                    record["skipped"] = np.asarray(1, dtype=np.int64)
                yield batch.step, record


def _mean(parts: List[Dict[str, Any]]) -> float:
    """Mean loss of the whole batch from those of its shares."""
    if len(parts) == 1:
        return float(parts[0]["loss"])
    counted = [part for part in parts if part["samples"]]
    return sum(part["loss"] * part["samples"] for part in counted) / sum(part["samples"] for part in counted)


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


def _before(engine: Engine, batch: Batch, whole: Batch, team: Team) -> Arrays:
    record = {
        "input": whole.x,
        "labels": whole.labels,
        "learning_rate": np.asarray(whole.learning_rate, dtype=np.float64),
    }
    record.update(_named("mask", whole.masks))
    before = engine.parameters()
    replicas.compare(team, before, "before step %d" % batch.step)
    record.update(_named("parameter", before))
    record.update(_named("state", engine.optimizer_state()))
    record.update(_inside(engine, batch, team))
    return record


def _inside(engine: Engine, batch: Batch, team: Team) -> Arrays:
    """What the recording pass sees: rows of all shares after one another, gradients added."""
    inside = engine.intermediates(batch)
    local: Arrays = {}
    if team.size == 1 or batch.samples:
        local.update(_named("output", inside.outputs))
        local.update(_named("output_grad", inside.output_gradients))
    local.update(_named("gradient", inside.gradients))
    parts = team.gather_arrays(local, {
        "loss": None if inside.loss is None else float(inside.loss), "samples": batch.samples})
    if not parts:
        return {}
    record: Arrays = {"probe_loss": np.asarray(_mean([numbers for _, numbers in parts]), dtype=np.float64)}
    for name in parts[0][0]:
        found = [arrays[name] for arrays, _ in parts if name in arrays]
        if len(found) == 1:
            record[name] = found[0]
        elif name.startswith("gradient/"):
            # In double precision: that the addends came from several ranks must not look like a rounding of theirs.
            record[name] = sum(value.astype(np.float64) for value in found).astype(found[0].dtype)
        else:
            record[name] = np.concatenate(found)
    return record


def _named(prefix: str, arrays: Arrays) -> Arrays:
    return {"%s/%s" % (prefix, name): np.array(value) for name, value in arrays.items()}
