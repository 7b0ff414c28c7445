"""Decoded data sets as memory maps, and the batches of an epoch."""

import queue
import threading
import time
from typing import Any, Iterator, Optional, Tuple

import numpy as np

from crosstrain_protos.v1 import data_pb2

from .artifacts import ArtifactStore
from .engine import Batch, Epoch, Rows
from .errors import CrosstrainError
from .model import Model
from .parallel.shares import share_slice
from .streams import EpochOrders, batch_rows, dropout_masks, steps_per_epoch, validation_split
from .training import Training


class Samples:
    """A data set whose arrays are memory-mapped.

    ``pixels`` (N, C, H, W) or (N, C, L) uint8 or float32, ``labels`` (N,) int64, ``divisor`` float32.
    """

    def __init__(self, store: ArtifactStore, message: data_pb2.Dataset, field: str) -> None:
        self.pixels = store.array(message.pixels_digest, field + ".pixels_digest")
        self.labels = store.array(message.labels_digest, field + ".labels_digest")
        shape = (message.samples,) + tuple(message.input_shape)
        if self.pixels.shape != shape or self.pixels.dtype.str not in ("|u1", "<f4"):
            raise CrosstrainError("INVALID_DATA", "%s: pixels are %s %s, announced were %s as uint8 or float32"
                                  % (field, self.pixels.dtype, self.pixels.shape, shape), field + ".pixels_digest")
        if self.labels.shape != shape[:1] or self.labels.dtype.str != "<i8":
            raise CrosstrainError("INVALID_DATA", "%s: labels are %s %s, announced were %s as int64"
                                  % (field, self.labels.dtype, self.labels.shape, shape[:1]), field + ".labels_digest")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= message.classes:
            bad = int(np.flatnonzero((self.labels < 0) | (self.labels >= message.classes))[0])
            raise CrosstrainError("INVALID_DATA", "%s: sample %d has the label %d, allowed are 0 to %d"
                                  % (field, bad, int(self.labels[bad]), message.classes - 1), field + ".labels_digest")
        self.divisor = np.float32(message.divisor)

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, rows: Any) -> np.ndarray:
        """Network inputs of some rows: float32(pixels) / float32(divisor), C-contiguous (B, ...)."""
        # A stored array may be in Fortran order; what is handed out never is.
        return np.divide(np.ascontiguousarray(self.pixels[rows]), self.divisor, dtype=np.float32)


class Feed:
    """The training batches of a run: rows, masks and learning rates of every step."""

    def __init__(self, samples: Samples, model: Model, training: Training, dtype: Any, share: int = 0,
                 shares: int = 1) -> None:
        """``share`` of ``shares``: the part of every batch that is handed out, see :mod:`.parallel.shares`."""
        self._share, self._shares = share, shares
        self._samples = samples
        self._model = model
        self._training = training
        self._dtype = dtype
        self._masked = "dropout" if dropout_masks(model, 1, 0, training.seed) else ""
        share = training.early_stopping.validation_share if training.early_stopping else 0.0
        if share:
            self.rows, self.held_out = validation_split(len(samples), share, training.seed)
        else:
            self.rows, self.held_out = np.arange(len(samples)), np.arange(0)
        if not len(self.rows):
            raise CrosstrainError("INVALID_DATA", "no sample is left to train on", "training.early_stopping")
        self._orders = EpochOrders(len(self.rows), training.seed)
        # Epoch and its order as used last: a probe asks for it at every step.
        self._latest: Tuple[int, np.ndarray] = (-1, self.rows)
        self.steps_per_epoch = steps_per_epoch(len(self.rows), training.batch_size, training.drop_last)
        if not self.steps_per_epoch:
            raise CrosstrainError(
                "INVALID_DATA", "%d samples give no batch of %d when the last partial batch is dropped"
                % (len(self.rows), training.batch_size), "training.batch_size")
        if training.batch_size > len(self.rows):
            raise CrosstrainError("INVALID_DATA", "training.batch_size %d is larger than the %d training samples"
                                  % (training.batch_size, len(self.rows)), "training.batch_size")
        total = training.epochs * self.steps_per_epoch
        self.total_steps = min(total, training.max_steps) if training.max_steps else total
        if len(training.learning_rates) < self.total_steps:
            raise CrosstrainError("INVALID_FIELD", "%d learning rates for %d steps"
                                  % (len(training.learning_rates), self.total_steps), "training.learning_rates_digest")

    def batches(self, epoch: int, first: int, count: int) -> Iterator[Batch]:
        """``count`` batches of an epoch from its batch number ``first`` on."""
        training = self._training
        parts = batch_rows(self._order(epoch), training.batch_size, training.drop_last)
        for index in range(first, first + count):
            step = epoch * self.steps_per_epoch + index
            rows = parts[index]
            total = len(rows)
            masks = {}
            if self._masked:
                masks = dropout_masks(self._model, total, step, training.seed)
            mine, counted = self._part(total)
            rows = rows[mine]
            x = self._samples.inputs(rows)
            masks = {name: mask[mine] for name, mask in masks.items()}
            if self._dtype != np.float32:
                x = x.astype(self._dtype)
                masks = {name: mask.astype(self._dtype) for name, mask in masks.items()}
            yield Batch(step, x, np.array(self._samples.labels[rows]), float(training.learning_rates[step]), masks,
                        counted, total)

    def _part(self, total: int) -> Tuple[slice, int]:
        """Rows of this share in a batch, and how many of them count: an empty share has one row to stand in."""
        mine = share_slice(total, self._shares, self._share)
        count = mine.stop - mine.start
        return (mine, count) if count else (slice(0, 1), 0)

    def batch_rows(self, epoch: int, first: int, count: int) -> Optional[Rows]:
        """The same batches as rows of the data set; None with dropout masks."""
        if self._masked:
            return None
        size = self._training.batch_size
        order = self._order(epoch)[first * size:(first + count) * size]
        totals = None
        if self._shares > 1:
            whole, rest = divmod(len(order), size)
            if size < self._shares or 0 < rest < self._shares:
                return None  # an empty share cannot be told by rows
            totals = np.array([size] * whole + [rest] * (rest > 0), dtype=np.int64)
            mine = share_slice(size, self._shares, self._share)
            order = np.concatenate([order[:whole * size].reshape(whole, size)[:, mine].ravel(),
                                    order[whole * size:][share_slice(rest, self._shares, self._share)]])
            size = mine.stop - mine.start
        return Rows(self._samples.pixels, self._samples.labels, self._samples.divisor, order, size, totals)

    def step_rows(self, step: int) -> Optional[Rows]:
        """The batch of one step as rows of the data set, as :meth:`batch_rows` gives it."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self.batch_rows(epoch, index, 1)

    def _order(self, epoch: int) -> np.ndarray:
        if self._training.keep_order:
            return self.rows
        latest = self._latest
        if latest[0] != epoch:
            latest = self._latest = (epoch, self.rows[self._orders.order(epoch)])
        return latest[1]


class FeedEpoch(Epoch):
    """Some batches of one epoch, optionally prepared ahead; notes how long each was waited for."""

    def __init__(self, feed: Feed, index: int, first: int, count: int, prefetch: int, clock: "StepClock") -> None:
        self.index = index
        self.steps = count
        self._feed = feed
        self._first = first
        self._prefetch = prefetch
        self._clock = clock

    def batches(self) -> Iterator[Batch]:
        source = self._feed.batches(self.index, self._first, self.steps)
        ahead = Prefetch(source, self._prefetch) if self._prefetch else None
        pull = iter(ahead or source)
        try:
            while True:
                begin = time.perf_counter()
                batch = next(pull, None)
                if batch is None:
                    return
                self._clock.waited(batch.step, batch.samples, time.perf_counter() - begin)
                yield batch
        finally:
            if ahead is not None:
                ahead.close()

    def rows(self) -> Optional[Rows]:
        found = self._feed.batch_rows(self.index, self._first, self.steps)
        if found is not None:
            self._clock.gathered(self.index * self._feed.steps_per_epoch + self._first, len(found.order),
                                 found.batch_size)
        return found


class StepClock:
    """What is known of batches handed out whose step is not done yet."""

    def __init__(self) -> None:
        self._entries: dict = {}
        # Of batches that a framework gathers: first step, samples of all, samples of each but the last.
        self._rows = (0, 0, 1)

    def waited(self, step: int, samples: int, seconds: float) -> None:
        """Notes a batch."""
        self._entries[step] = (samples, seconds)

    def gathered(self, first_step: int, samples: int, batch_size: int) -> None:
        """Notes the batches of the steps from ``first_step`` on, which take no waiting time unless noted as well."""
        self._rows = (first_step, samples, batch_size)

    def take(self, step: int) -> Tuple[int, float]:
        """Samples and waiting time of a step's batch; each can be taken once."""
        if step in self._entries:
            return self._entries.pop(step)
        first, samples, batch_size = self._rows
        left = samples - (step - first) * batch_size
        if step < first or left <= 0:
            raise KeyError(step)
        return min(batch_size, left), 0.0


class Prefetch:
    """Runs an iterator in a thread, at most ``depth`` items ahead."""

    _END = object()

    def __init__(self, source: Iterator[Any], depth: int) -> None:
        self._queue: queue.Queue = queue.Queue(depth)
        self._closed = False
        self._error: Any = None
        self._thread = threading.Thread(target=self._run, args=(source,), name="prefetch", daemon=True)
        self._thread.start()

    def _run(self, source: Iterator[Any]) -> None:
        try:
            for item in source:
                if not self._put(item):
                    return
        except BaseException as error:  # handed to the consumer, which raises it
            self._error = error
        self._put(self._END)

    def _put(self, item: Any) -> bool:
        while not self._closed:
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Any]:
        while True:
            item = self._queue.get()
            if item is self._END:
                if self._error is not None:
                    raise self._error
                return
            yield item

    def close(self) -> None:
        """Stops the thread."""
        self._closed = True
        self._thread.join()
