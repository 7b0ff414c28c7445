"""Probe runs: a few steps of small batches, every value of which is recorded and then checked.

Every engine of a job gets the same cases:

``start``        the job's training with a small batch; the steps of ``verdict.steps``, then the test data
``rate-change``  where the learning rate changes: two steps before its largest change and two after it
``last-batch``   where the last batch of an epoch is smaller: one whole batch and one smaller one
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosstrain import spec as documents
from crosstrain.artifacts import ArtifactStore
from crosstrain_protos.v1 import data_pb2, run_pb2
from crosstrain_service.model import BatchNorm, Model
from crosstrain_service.streams import steps_per_epoch

START, RATE_CHANGE, LAST_BATCH = "start", "rate-change", "last-batch"
#: Most rows of test data that a probe evaluates.
MAX_TEST_ROWS = 256
_SMALLEST_BATCH = 2
_FLOAT = 4
#: Tensors of a parameter's shape in a record: itself before and after, its gradient, and state before and after.
_COPIES = {"rmsprop": 5, "adagrad": 5, "adam": 7, "adadelta": 7}


@dataclass(frozen=True)
class ProbePlanner:
    """Lays out the cases of a job, which are the same for all engines; small data sets are stored."""

    artifacts: ArtifactStore
    spec: documents.JobSpec
    model: Model

    def cases(self, base: run_pb2.TrainSpec, rates: NDArray[np.float64]) -> list[run_pb2.ProbeCase]:
        """The cases for an engine that is asked to train ``base`` with these learning rates, one per step."""
        rule = base.training.optimizer.WhichOneof("rule") or ""
        batch = probe_batch(self.model, base.training.batch_size, self.spec.verdict.probe_record_mib, rule)
        rows = documents.training_rows(self.spec, base.train.samples)
        return list(self._cases(base, rates, batch, rows))

    def _cases(
        self, base: run_pb2.TrainSpec, rates: NDArray[np.float64], batch: int, rows: int
    ) -> Iterator[run_pb2.ProbeCase]:
        steps = self.spec.verdict.steps
        count = steps[-1] + 1
        train = base.train
        if self.model.layers_of(BatchNorm):
            # Statistics are taken over all training data, which must then be little.
            train = self._head(train, min(count * batch, train.samples // batch * batch))
        first = self._case(START, base, train, batch, _padded(rates, count), steps)
        if base.HasField("test"):
            first.test.CopyFrom(self._head(base.test, self._test_rows()))
        yield first
        change = largest_change(rates)
        if change is not None:
            before, after = change
            yield self._case(RATE_CHANGE, base, train, batch, np.array([before, before, after, after]), [1, 2])
        rest = rows % base.training.batch_size
        per_epoch = steps_per_epoch(rows, base.training.batch_size, base.training.drop_last)
        if rest and not base.training.drop_last and len(rates) >= per_epoch:
            smaller = min(rest, batch - 1)
            data = self._head(train, batch + smaller)
            if data.samples == batch + smaller:
                yield self._case(LAST_BATCH, base, data, batch, _padded(rates, 2), [0, 1])

    def _case(
        self,
        name: str,
        base: run_pb2.TrainSpec,
        train: data_pb2.Dataset,
        batch: int,
        rates: NDArray[np.float64],
        steps: list[int],
    ) -> run_pb2.ProbeCase:
        case = run_pb2.ProbeCase(
            case_id=name, model=base.model, train=train, training=base.training,
            initial_weights_digest=base.initial_weights_digest, steps=steps,
        )  # fmt: skip
        training = case.training
        training.ClearField("early_stopping")
        training.batch_size = min(batch, train.samples)
        training.max_steps = len(rates)
        per_epoch = steps_per_epoch(train.samples, training.batch_size, training.drop_last)
        training.epochs = -(-len(rates) // per_epoch)
        training.learning_rates_digest = self.artifacts.put(npy(rates.astype("<f8")))
        return case

    def _head(self, data: data_pb2.Dataset, rows: int) -> data_pb2.Dataset:
        """The first rows of a data set, stored as one of their own."""
        if rows >= data.samples:
            return data
        head = data_pb2.Dataset()
        head.CopyFrom(data)
        for name in ("pixels_digest", "labels_digest"):
            array = self.artifacts.array_head(getattr(data, name), rows, name)
            setattr(head, name, self.artifacts.put(npy(array)))
        head.samples = rows
        return head

    def _test_rows(self) -> int:
        budget = self.spec.verdict.probe_record_mib << 20
        return int(np.clip(budget // (_FLOAT * _values_per_sample(self.model)), _SMALLEST_BATCH, MAX_TEST_ROWS))


def probe_batch(model: Model, batch_size: int, record_mib: int, rule: str = "sgd") -> int:
    """The job's batch size, cut so that one recorded step takes at most ``record_mib`` MiB in float32.

    At least 2 (1 if the job's is 1), however large the network is. ``rule`` is the update rule's name.
    """
    parameters = sum(int(np.prod(shape)) for shape in model.parameter_shapes().values())
    room = (record_mib << 20) - _FLOAT * _COPIES.get(rule, 5) * parameters
    # An output and the gradient with respect to it are recorded for every layer.
    fitting = room // (2 * _FLOAT * _values_per_sample(model))
    return min(batch_size, max(_SMALLEST_BATCH, fitting))


def largest_change(rates: NDArray[np.float64]) -> tuple[float, float] | None:
    """The learning rates before and after their largest relative change; None if they never change."""
    if len(rates) < 2:
        return None
    ratio = np.abs(np.log(rates[1:]) - np.log(rates[:-1]))
    place = int(ratio.argmax())
    return (float(rates[place]), float(rates[place + 1])) if ratio[place] > 0 else None


def npy(values: NDArray[Any]) -> bytes:
    """An array as the bytes of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def _padded(rates: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return rates[np.minimum(np.arange(count), len(rates) - 1)]


def _values_per_sample(model: Model) -> int:
    shapes = model.output_shapes()
    return int(np.prod(model.input_shape)) + sum(int(np.prod(shape)) for shape in shapes.values())
